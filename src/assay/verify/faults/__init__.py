"""The catalogue of faults: what goes wrong in inference engines, with evidence, and how to commit each.

    FAULTS["rope-type"].variants     the edits that plant it
    planted(context, variant)        the model's graph with it

The prose is data (`catalogue/*.toml`, one file a stage, in the order of the computation); the edits are code.
"""

from __future__ import annotations

import tomllib
from importlib import resources

from assay.verify.faults import attention, blocks, decoders, layout, parsing, rotary
from assay.verify.faults.base import (
    PLANTS,
    Change,
    Context,
    Fault,
    Planted,
    Search,
    Variant,
    decode_only,
    link,
    planted,
    planted_all,
    sites,
)

__all__ = [
    "FAULTS",
    "STAGES",
    "Change",
    "Context",
    "Fault",
    "Planted",
    "Search",
    "Variant",
    "decode_only",
    "link",
    "planted",
    "planted_all",
    "sites",
]

_PLANTING = (parsing, decoders, layout, blocks, rotary, attention)  # imported for what they register

STAGES = (
    "gguf parsing",
    "dequantisation",
    "weight layout",
    "tokenizer",
    "prompt template",
    "embedding",
    "norm",
    "QKV",
    "rope",
    "attention",
    "kv cache",
    "ffn",
    "residual",
    "output head",
    "sampling",
    "generation loop",
    "precision and runtime",
)


def _read(stage: str) -> dict[str, Fault]:
    name = stage.lower().replace(" ", "_") + ".toml"
    text = resources.files("assay.verify.faults").joinpath("catalogue", name).read_text("utf-8")
    return {
        id: Fault(
            id=id,
            stage=stage,
            **{"tell": "", **row, "sources": " ".join(row.get("sources", ()))},
            variants=tuple(PLANTS.get(id, ())),
        )
        for id, row in tomllib.loads(text).items()
    }


FAULTS: dict[str, Fault] = {id: fault for stage in STAGES for id, fault in _read(stage).items()}
