"""Names: tables from the words and names that people use to nodes, layers, token rows and statistics."""
