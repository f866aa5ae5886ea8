"""Ground truth: traces, foreign dumps, noise, verdicts, faults and their diagnosis."""
