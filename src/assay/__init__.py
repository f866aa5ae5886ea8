"""assay runs GGUF language models and proves every number."""

__version__ = "0.1.0"
