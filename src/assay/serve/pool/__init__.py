"""The models in memory with their workers, metrics and queues to coroutines. It knows no HTTP request."""
