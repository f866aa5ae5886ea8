"""Which node, row and layout an observation is of, decided by comparing its values with the definition's."""
