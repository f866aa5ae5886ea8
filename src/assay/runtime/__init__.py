"""Between an engine and its user: models by name, the paged cache, the sampler, the generation loop."""
