"""Somebody's run as observations of our nodes: read, named, laid out, resolved; and traces, the dumps we write."""
