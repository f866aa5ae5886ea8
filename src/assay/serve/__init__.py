"""The server: an OpenAI-compatible API over continuous batching, and a page to look at it with."""
