"""From an engine to generated text: model files, scheduling, sampling, and interfaces for callers.

    find and open a model    hub, hf, ollama_store, registry_models, local, opening
    run many sequences       scheduler, step_planner, fair_shares, pages, sequence
    choose a token           sampler, params, draws, grammar, compiler, stops
    speculative decoding     speculation, ngram_draft, draft_model
    interfaces               generate (the caller's thread), worker (a thread of its own), session (a chat)
    embeddings               pooling

Touch this package to change how requests are scheduled or tokens are drawn. It knows no HTTP, and no kernel.
"""
