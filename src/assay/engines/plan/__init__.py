"""The plan that the cpu and cuda engines share: nodes computed together, a batch cut into steps, the layout of a page.

`fuse.py` groups the nodes of a graph. `batching.py` cuts a batch into steps and gathers their results.
`state_layout.py` lays out a page. `values.py` has widths, heads, rope tables and masks. Nothing here chooses a kernel:
each engine's own compiler turns a group into its kernels. Touch this package when every engine should fuse or batch in
another way; touch an engine's compiler when only that engine should.
"""
