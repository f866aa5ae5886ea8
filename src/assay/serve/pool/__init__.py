"""The models in memory, a worker each, and the way from a worker's thread to a coroutine. It knows no request."""
