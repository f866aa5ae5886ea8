"""Between an engine and its user: models by name, the paged cache, the sampler, grammars, the scheduler that every
generation goes through, and those who step it."""
