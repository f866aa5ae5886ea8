"""Which known mistake gives these very values?

`diagnose_dump.diagnose` is the entry: it judges the dump, then searches the catalogue (`faults`) for the mistake that
reproduces the wrong values. Where none without a number does, edits composed for the place are tried
(`faults.edit_grammar`). The searches:

    by_nodes     dumps with whole tensors: every node that is wrong on its own inputs
    by_runs      printed values and statistics: hypotheses are run from the tokens
    likelihood   faults whose effect is smaller than the noise; `hypothesis_score` has the likelihood ratio
    by_feeds     the given tokens were right, but the engine computed another sequence (a token fed twice)
    by_tokens    the given token ids are not those of the model's tokenizer and chat template

`fault_trials` computes the values that a mistake would have given. `result` holds the answer, `answer` and `wording`
put it into words.

`posterior` turns a fit into a confidence, for every search and for the package `endpoint`. `by_tokens` alone reports a
constant of `thresholds`, because it compares ids exactly. `time_budget` ends the searches in time, and `early_layers`
judges the first layers of a large model before the rest.

Touch this package when a mistake of the catalogue is not named, or the wrong one is. A new mistake belongs in `faults`.
"""
