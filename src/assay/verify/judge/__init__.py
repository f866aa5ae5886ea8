"""Is a dumped value right, noise, or wrong, and is the node itself at fault?

The modules in the order in which a dump passes through them:

    verdict.judge        the entry; it gathers the run's inputs (`run_inputs`)
    examine              passes over the graph once and measures every observed node
    evidence             the deviation of a node from the definition, given the dump's own values of its inputs
    noise, arithmetic    the deviation that a right engine may have, for each legitimate way to round
    inferred             chooses the arithmetic that the engine computes in
    verdict.decide       gives one verdict a node
    compare_nodes, text  hold the result, and print it
    overflow             explains the first value that is not finite

Touch this package when a right engine is called wrong, or a wrong one right. Which mistake was made is the question of
`diagnosis`.
"""
