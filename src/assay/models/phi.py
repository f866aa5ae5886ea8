"""phi3 (Phi-3, Phi-4) and phimoe: one matrix for q, k and v, one for gate and up; long and short RoPE factors.

The sliding window in the file is ignored, as in llama.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.llama import decoder


def phi3(b: Builder) -> Graph:
    """phimoe's norms have biases, and its experts' weights sum to 1: the default of `Experts`."""
    hp = b.read(mode="neox")
    b.hp = hp.each(lambda i, row: replace(row, scale_query=True))
    b.rope_factors(long=True)
    return b.head(decoder(b, b.embedding()))
