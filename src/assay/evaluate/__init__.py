"""How good a model is: perplexity and divergence on a text, choices, and what each tensor's rounding costs."""
