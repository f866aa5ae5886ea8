"""From an engine to generated text: model files, scheduling, sampling, and interfaces for callers.

    find and open a model    hub, hf, ollama_store, registry_models, model_names, local, opening
    run many sequences       scheduler, step_planner, fair_shares, sequence, sequence_errors
    memory of the cache      pages (the allocator), cache_slots (windows and fixed-size state), prefix_keys (prefixes)
    choose a token           sampler, params, draws, stops
    constrain the tokens     grammar; `compiler` compiles a client's grammar in a sandbox first, because some never end
    speculative decoding     speculation, ngram_draft, draft_model
    interfaces               generate (the caller's thread), worker (a thread of its own), session (a chat)
    embeddings               pooling

Touch this package to change how requests are scheduled or tokens are drawn. It knows no HTTP, and no kernel.
"""
