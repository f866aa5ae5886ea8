"""Which known mistake gives these very values?

`diagnose_dump.diagnose` is the entry: it judges the dump, then searches the catalogue (`faults`) for the mistake that
reproduces the wrong values. `by_nodes` searches in dumps of whole tensors, `by_runs` in printed values, `by_feeds` and
`by_tokens` for other tokens, `likelihood` for faults that are smaller than the noise. `fault_trials` computes what a
mistake would have given. `result` holds the answer, `answer` and `wording` put it into words.

Touch this package when a mistake of the catalogue is not named, or the wrong one is. A new mistake belongs in `faults`.
"""
