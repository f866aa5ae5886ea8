"""A cause in words about this engine: the values of this file and dump, the line of code to look for, the fix.

The sentences are data (`faults/code.toml`). Their blanks are filled here from the model and from the diagnosis.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from assay.graph import INPUTS, split
from assay.models import Model
from assay.verify.diagnosis.candidates import SECOND_NAMES
from assay.verify.diagnosis.result import Cause
from assay.verify.faults import CODE, FAULTS
from assay.verify.judge.compare_nodes import Diff

LIKELY = 0.5  # confidence from which a fault is called the cause
LANGUAGES = {"c": "C, C++", "rust": "Rust", "python": "Python", "wgsl": "WGSL"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_PAIRS = {"norm": "neighbouring pairs (2i, 2i + 1)", "neox": "pairs of halves (i, i + {half})"}


@dataclass(frozen=True)
class Words:
    """The sentences about one cause."""

    title: str  # cause, or best guess
    wrong: str  # about this engine, where the sentence could be filled in; else about the fault in general
    right: str
    fix: str  # one line, with the file's values; empty where `right` says it all
    look_for: dict[str, str]  # language to line
    otherwise: str  # what to dump if the cause is another

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tied(cause: Cause) -> tuple[str, ...]:
    """Other faults that give the same values; the confidence was divided by their number."""
    return tuple(f for f in dict.fromkeys(cause.equivalent) if f != cause.fault and f not in SECOND_NAMES)


def joint(cause: Cause) -> float:
    """How sure it is that this fault, or one that gives the same values, happened."""
    return min(1.0, cause.confidence * (1 + len(tied(cause))))


def words(cause: Cause, model: Model | None = None, diff: Diff | None = None) -> Words:
    """The cause in words; without a model, those of the catalogue."""
    fault, known = FAULTS[cause.fault], facts(cause, model)
    code = {**CODE.get(fault.stage, {}), **CODE.get(cause.fault, {})}
    return Words(
        title="cause" if joint(cause) >= LIKELY else "best guess",
        wrong=_filled(code.get("yours", ""), known) or fault.wrong,
        right=fault.right,
        fix=_filled(code.get("fix", ""), known),
        look_for={name: code[key] for key, name in LANGUAGES.items() if key in code},
        otherwise=_otherwise(cause, model, diff),
    )


def facts(cause: Cause, model: Model | None) -> dict[str, Any]:
    """The values that sentences may use: numbers of the file and of the layer at fault, and the fitted parameter."""
    found: dict[str, Any] = {"how": cause.how, **cause.facts}
    if number := _parameter(cause):
        found["p"] = number
    if model is None:
        return found
    hp = model.hparams
    at = split(cause.node)[1] if cause.node in model.graph else None
    layer = hp.layers[at if at is not None and at < len(hp.layers) else 0]
    rope = layer.rope or hp.rope
    window = layer.window or next((row.window for row in hp.layers if row.window), 0)
    found |= {
        "arch": hp.arch, "n_embd": hp.n_embd, "n_vocab": hp.n_vocab, "n_layer": hp.n_layer, "eps": f"{hp.eps:.7g}",
        "n_head": layer.n_head, "n_head_kv": layer.n_head_kv, "group": layer.n_head // max(layer.n_head_kv, 1),
        "n_embd_head": layer.n_embd_head, "n_rot": rope.n_rot, "rope_base": f"{rope.base:.9g}",
        "rope_factor": f"{rope.factor:.7g}", "rope_kind": rope.kind, "scale": f"{layer.scale:.7g}",
        "sqrt_head": f"{math.sqrt(layer.n_embd_head):.7g}", "layer": at or 0,
        "pairs": _PAIRS.get(rope.mode, "its own pairs").format(half=rope.n_rot // 2),
    }  # fmt: skip
    if layer.n_ff:
        found["n_ff"] = layer.n_ff
    if window:
        found["window"] = window
    weights = model.graph[cause.node].weights if cause.node in model.graph else ()
    if weights and weights[0] in model.file.tensors:
        tensor = model.file.tensors[weights[0]]
        found |= {"weight": weights[0], "type": tensor.type.name, "shape": list(tensor.shape)}
    return found | dict(cause.facts)


def _parameter(cause: Cause) -> str:
    """The parameter of a family as the cause was put into words; empty for a fault without one."""
    for label in (v.label for v in FAULTS[cause.fault].variants if v.search is not None):
        head, _, tail = label.partition("{p}")
        number = _NUMBER.match(cause.how, len(head)) if cause.how.startswith(head) else None
        if number is not None and cause.how.startswith(tail, number.end()):
            return number[0]
    return ""


def _filled(sentence: str, known: dict[str, Any]) -> str:
    try:
        return sentence.format_map(known)
    except KeyError:
        return ""


def _otherwise(cause: Cause, model: Model | None, diff: Diff | None) -> str:
    """The dump that would tell more, in case it is another fault."""
    if model is None or diff is None or cause.node not in model.graph:
        return ""
    whole = {n.name for n in diff.nodes if n.evidence.whole}
    inputs = [i for i in model.graph[cause.node].inputs if i not in INPUTS]
    missing = [name for name in (*inputs, cause.node) if name not in whole]
    if missing:
        return f"dump {' and '.join(missing)} whole, for all tokens, and diagnose again"
    operands = " and ".join(inputs) or "the ids"
    return (
        f"{cause.node} and its inputs are in the dump, so the fault is inside this operation; print {operands} as its "
        "code reads them, just before it computes"
    )
