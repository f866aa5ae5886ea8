"""Is a node right? Legitimate arithmetics, their noise, the evidence on a node's own inputs, the verdict."""
