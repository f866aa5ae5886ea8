"""The API: schemas of requests and responses, the route table, and the handlers.

A *dialect* is one program's wire format: OpenAI's, Anthropic's, Ollama's or llama-server's.

    routes, schemas, openapi     the table of routes, what they accept and answer, and the document made from both
    OpenAI                       chat_completions, completions, responses; texts has embeddings and the list of models
    Anthropic                    messages
    Cohere and Jina              rerank
    Ollama                       ollama
    llama-server                 llama_server; texts has tokenizing, detokenizing and templates
    assay's own routes           trace_route, diagnose_route, status; texts has the list of replicas
    shared by handlers           answers, request_tokens, reasoning, tools, server_state

To add a route, write its handler in the module of its dialect and add a row to `routes`.
"""
