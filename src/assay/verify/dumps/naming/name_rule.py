"""One rule of the table of foreign names, and the parts that patterns share."""

from __future__ import annotations

from dataclasses import dataclass

HF = r"(?:model\.|transformer\.|base_model\.model\.)*"
N = r"(?P<n>\d{1,9})"
LAYER = rf"(?:layers?|blk|blocks?|h)[. _-]?{N}[. _/-]+"


@dataclass(frozen=True)
class NameRule:
    """`pattern` (the whole name, any case) denotes the first of `nodes` that the graph has."""

    family: str
    pattern: str
    nodes: tuple[str, ...]
    order: str = "gguf"  # "hf": a rotary head is stored as two halves
    needs: str = ""  # a node without which the first of `nodes` is not meant
