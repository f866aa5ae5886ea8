"""The black box: what a server's log-probabilities alone tell about the engine behind it."""
