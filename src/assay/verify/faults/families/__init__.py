"""Edits of mistakes that only model families other than Llama can have, in the order of the computation.

A family here is a group of architectures with a feature that Llama lacks: experts, latent attention, post-norms, sinks.
Touch this package to add a mistake that needs such a feature. Mistakes that a Llama file can have are in the package
above.
"""

from assay.verify.faults.families import attention_variants, inputs, outputs

__all__ = ["attention_variants", "inputs", "outputs"]
