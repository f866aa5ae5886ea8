"""The HTTP server: OpenAI, Anthropic, Ollama and llama-server routes over continuous batching, and a web page.

    http    connections, bodies, replies and event streams; knows no model
    pool    the models in memory and their workers; knows no request
    api     schemas, routes and handlers
    app     the ASGI application
    server  start, listen, shut down

Touch `api` to add or change a route, `limits` to change a bound, `http` for the protocol itself.
"""
