"""Is a dumped value right, noise, or wrong, and is the node itself at fault?

An observation is judged in one direction. `verdict.judge` gathers the run's inputs (`run_inputs`). `examine` passes
over the graph once and measures every observed node (`evidence`) against the noise of legitimate arithmetics (`noise`,
`arithmetic`). `inferred` chooses the arithmetic that the engine computes in. `verdict.decide` gives one verdict a node.
`compare_nodes` holds the result, `text` prints it, `overflow` explains the first value that is not finite.

Touch this package when a right engine is called wrong, or a wrong one right. Which mistake was made is the question of
`diagnosis`.
"""
