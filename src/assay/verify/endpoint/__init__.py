"""Black box: a diagnosis of the engine behind a server from its log-probabilities alone.

`blackbox` runs the probes and names the causes. `client` speaks the server's protocol, and `prompt_ids` finds the ids
that the server fed. `nucleus_draws` tests its sampling. `simulated` predicts a server with a given fault.

Touch this package to add a probe of a server.
"""
