"""The catalogue of faults: the mistakes that inference engines make, and the edits that plant each in a graph.

    FAULTS["rope-type"].variants     the edits that plant it
    planted(context, variant)        the model's graph with it
    register_fault(Fault(...))       a fault of another package

A fault is a row and one or more edits. The rows of this package are prose (`catalogue/*.toml`, one file a stage, in the
order of the computation). A row has the wrong and the right formula and the symptoms. Most rows have sources:
public threads about real engines that made the mistake. The edits are code in the modules beside it. An edit says as
data which nodes it applies to (`plant(..., op=..., roles=..., when=...)`) and gives what a faulty engine computes
there.

Touch this package to add a mistake that people make. How a mistake is recognised in a dump is `diagnosis`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from assay.errors import AssayError
from assay.system import plugins
from assay.system.toml_tables import read_table
from assay.verify.faults import (
    adapter_edits,
    angle_precision,
    attention_edits,
    block_edits,
    decoders,
    families,
    layout_edits,
    parsing,
    recurrent,
    rotary,
    small,
    statistic_grammar,
    vision,
    wgsl_edits,
)
from assay.verify.faults.fault import (
    PLANTS,
    Change,
    Context,
    Fault,
    Planted,
    Search,
    Selector,
    Variant,
    decode_only,
    link,
    planted,
    planted_all,
    prompt_only,
    selector,
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
    "Selector",
    "Stage",
    "Variant",
    "add_plugin_faults",
    "decode_only",
    "known_as",
    "link",
    "planted",
    "planted_all",
    "prompt_only",
    "register_fault",
    "selector",
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
    angle_precision,
    statistic_grammar,
    recurrent,
    wgsl_edits,
    vision,
    adapter_edits,
)  # importing them registers their edits


def _read(stage: Stage) -> dict[str, Fault]:
    name = stage.lower().replace(" ", "_") + ".toml"
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
                "aliases": tuple(row.get("aliases", ())),
            },
            variants=tuple(PLANTS.get(id, ())),
        )
        for id, row in read_table(__name__, "catalogue", name).items()
    }


# By stage and by fault: the line of code to look for in each language, and sentences with blanks for a file's values.
CODE: dict[str, dict[str, str]] = {
    id: row
    for name in ("code.toml", "code_recurrent.toml", "code_vision.toml")
    for id, row in read_table(__name__, name).items()
}
FAULTS: dict[str, Fault] = {id: fault for stage in Stage for id, fault in _read(stage).items()}


def known_as(name: str) -> tuple[str, ...]:
    """The rows that a fault's name denotes: its own row, or those that list it as an alias."""
    return (name,) if name in FAULTS else tuple(fault.id for fault in FAULTS.values() if name in fault.aliases)


def register_fault(fault: Fault) -> None:
    """Add a fault to the catalogue. The row carries its own variants, so it needs no file of this package.

    It is tried by every diagnosis that starts afterwards. On a cluster every node must register it.
    """
    if fault.id in FAULTS:
        raise AssayError(f"fault {fault.id}: is in the catalogue already; choose another id")
    if not fault.variants and not fault.waits:
        raise AssayError(f"fault {fault.id}: has no variants (expected one edit at least); say in `waits` why")
    FAULTS[fault.id] = replace(fault, variants=tuple(replace(v, added_by=fault.id) for v in fault.variants))


@cache
def add_plugin_faults() -> None:
    """Register the faults of installed packages, once a process. A diagnosis calls this before it reads `FAULTS`."""
    plugins.register_all("assay.faults")
