"""Reads what a person prints while debugging an engine. Only observations leave this package, through `read_log`.

The passes, in order: `line_prefixes` and `lexer` cut a line into lexemes; `line_parser` with `bracket_rules` and
`number_runs`, `tables` with `columns`, and `block_statements` make statements; `heading_rules` and `subjects` add the
headings' context; `statement_observations` makes observations. Values decide the rest (`dumps/matching`).

Every habit of printing is a row of a table (`rule_rows.py`). To read a new habit, add a row with its example.
"""
