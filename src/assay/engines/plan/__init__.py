"""The lowering that compiled engines share: nodes computed together, a batch cut into steps, the layout of a page.

`fuse.py` groups the nodes of a graph, `batching.py` cuts a batch into steps and gathers their results, and
`state_layout.py` lays out a page. An engine's own compiler turns each group into its kernels. Touch this package when
every engine should fuse or batch in another way; touch an engine's compiler when only that engine should.
"""
