"""Measure the quality of a model: perplexity, KL divergence, multiple choice, and the cost of quantising each tensor.

It judges models, not engines; `verify` judges engines.
"""
