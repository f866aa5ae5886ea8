"""The black server: what a server's log-probabilities alone tell about the engine behind it."""
