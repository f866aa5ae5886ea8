"""Planting: what engine authors get wrong in the families beside Llama, in the order of the computation."""

from assay.verify.faults.families import attention_variants, inputs, outputs

__all__ = ["attention_variants", "inputs", "outputs"]
