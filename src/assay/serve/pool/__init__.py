"""The models of a server and what runs them: a worker for each loaded model, queues from its thread to request
handlers, thread pools for slow work, and metrics. Touch it to change loading and unloading; it knows no API."""
