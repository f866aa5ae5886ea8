"""Reads what a person prints while debugging an engine: lexer, lines, tables and headings to observations."""
