"""Convert a Hugging Face folder to a GGUF file with the names, layouts, keys and vocabulary that llama.cpp expects.

Touch `architectures` for a new architecture, `vocabulary` for a new tokenizer.
"""
