"""A Hugging Face folder in, a GGUF file out: names, rows, hyper-parameters and vocabulary as llama.cpp has them."""
