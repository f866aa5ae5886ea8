"""Which node, row and layout an observation is of, decided by comparing its values with the definition's.

The definition is the reference engine's run of the same tokens. Touch this package when names leave a reading open and
the wrong one is chosen.
"""
