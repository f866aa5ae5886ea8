"""What people call a node, a layer, a token's row and a statistic: tables from words and names to nodes."""
