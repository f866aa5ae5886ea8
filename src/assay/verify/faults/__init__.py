"""The catalogue of faults: what goes wrong in inference engines, with evidence, and how to commit each.

    FAULTS["rope-type"].variants     the edits that plant it
    planted(context, variant)        the model's graph with it

The prose is data (`catalogue/*.toml`, one file a stage, in the order of the computation); the edits are code.
"""

from __future__ import annotations

import tomllib
from importlib import resources

from assay.verify.faults import attention_edits, block_edits, decoders, families, layout_edits, parsing, rotary, small
from assay.verify.faults.fault import (
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
from assay.verify.faults.kinds import FaultKind, Probe, Stage

__all__ = [
    "CODE",
    "FAULTS",
    "Change",
    "Context",
    "Fault",
    "FaultKind",
    "Planted",
    "Probe",
    "Search",
    "Stage",
    "Variant",
    "decode_only",
    "link",
    "planted",
    "planted_all",
    "sites",
]

_PLANTING = (
    parsing,
    decoders,
    layout_edits,
    block_edits,
    rotary,
    attention_edits,
    families,
    small,
)  # imported for what they register


def _read(stage: Stage) -> dict[str, Fault]:
    name = stage.lower().replace(" ", "_") + ".toml"
    text = resources.files("assay.verify.faults").joinpath("catalogue", name).read_text("utf-8")
    return {
        id: Fault(
            id=id,
            stage=stage,
            **{
                "tell": "",
                **row,
                "run": Probe(row["run"]),
                "kinds": tuple(FaultKind(k) for k in row["kinds"]),
                "sources": " ".join(row.get("sources", ())),
            },
            variants=tuple(PLANTS.get(id, ())),
        )
        for id, row in tomllib.loads(text).items()
    }


# By stage and by fault: the line to look for in three languages, and sentences with the file's values to fill in.
CODE: dict[str, dict[str, str]] = tomllib.loads(
    resources.files("assay.verify.faults").joinpath("code.toml").read_text("utf-8")
)
FAULTS: dict[str, Fault] = {id: fault for stage in Stage for id, fault in _read(stage).items()}
