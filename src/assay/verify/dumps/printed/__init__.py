"""Reads what a person prints while debugging an engine. Only observations leave this package, through `read_log`.

    lexeme     a word, a number, a mark or a bracket of a printed line
    statement  what one line (or one cell of a table) says: its words, its values, and the layer and row that it names
    subject    what a statement is about: node, layer and row
    heading    a line that names a node, a layer, a position or an engine and gives no values: "Layer 3:"

The passes, in order:

    number_notations, diff_lines,
    nested_documents                         rewrite a text: hexadecimal numbers, comparisons, JSON and YAML by records
    decode_steps                             notes which tokens are fed behind the prompt
    line_prefixes, lexer                     cut a line into lexemes
    line_parser, bracket_rules, number_runs  make statements of lines
    tables, columns; block_statements        make statements of tables, and of numbers below each other
    heading_rules, subjects                  complete a statement's subject from the headings above it
    statement_observations                   turns statements into observations

Later, `dumps/matching` decides by values where the words leave a reading open.

Every habit of printing is a row of a table (`rule_rows.py`). To read a new habit, add a row with its example.
"""
