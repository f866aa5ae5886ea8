"""The models of a server in memory. This package knows no HTTP request.

    models        opens models, loads them on demand and evicts idle ones
    update_queue  carries the tokens of a sequence from its worker to the coroutine that answers the request
    threads       thread pools for slow work off the event loop
    meter         Prometheus metrics

Touch this package to change when models are loaded and evicted, or which metrics are exported.
"""
