"""Readers of file formats: NumPy arrays, safetensors, JSON lines, llama-eval-callback. One module a format."""
