"""Edits of mistakes in architectures other than Llama, in the order of the computation.

Touch this package to add a mistake that needs a feature which Llama lacks: experts, latent attention, post-norms,
sinks.
"""

from assay.verify.faults.families import attention_variants, inputs, outputs

__all__ = ["attention_variants", "inputs", "outputs"]
