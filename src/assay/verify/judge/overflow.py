"""Which operation made the first NaN or infinity of a run, and how.

The definition is run on the engine's own values from the last finite node on. What it finds there tells the kinds
apart: numbers beyond what half precision holds, squares and exponentials of them, zeros that are divided by, rows in
which every key is masked. Where nothing is large, memory was never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Node
from assay.models import Model
from assay.verify.dumps.observation import Dump, NotFinite, inputs_of

Array = NDArray[Any]
HALF = 65504.0  # the largest half
_EXP32, _EXP16 = 88.72, 11.09  # exp of more is infinite in float32, in half
_SOFTMAX = ("attn_softmax", "softmax")


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The first value that is not finite, with the operation that made it and what to do."""

    found: NotFinite
    node: str  # the node whose operation made it
    between: tuple[str, ...]  # nodes that nobody dumped, of which it is one; empty where its inputs were dumped
    why: str
    fix: str
    fault: str = ""  # of the catalogue, where it is one
    sure: bool = True  # told by numbers, not by elimination

    @property
    def words(self) -> str:
        """One sentence: what, where, how."""
        f = self.found
        where = f" in token row {f.row}" if f.row is not None else ""
        made = "" if self.node == f.node else f", made by {self.node}"
        place = f"{f.count} of {f.size} values, the first at {list(f.at)}{where}"
        return f"{f.node} holds {f.what} ({place}){made}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        f = self.found
        return {
            "node": f.node, "what": f.what, "count": f.count, "size": f.size, "at": list(f.at), "row": f.row,
            "made_by": self.node, "between": list(self.between), "why": self.why, "fix": self.fix,
            "fault": self.fault or None, "sure": self.sure, "nodes_not_judged": f.left,
        }  # fmt: skip


def explain(model: Model, dump: Dump, found: NotFinite) -> NonFiniteOrigin:
    """Name the operation; `dump` holds what was computed before it."""
    graph = model.graph
    known: dict[str, Array] = inputs_of(dump.tokens, dump.positions)
    for name in dump.by_name:
        if (value := dump.values(name)) is not None:
            known[name] = value.astype(np.float64) if value.dtype.kind == "f" else value
    seen = known.keys() | dump.by_name.keys()  # of a few printed values it is known, too, that they were finite
    inside = graph.ancestors([found.node], seen) - seen | {found.node}
    segment = [node for node in graph if node.name in inside]
    names = {i for node in segment for i in node.inputs} | inside
    weights = Weights(model.file, np.float32, budget=0)
    with np.errstate(all="ignore"):
        values = known | interpret(graph, weights, known, names - known.keys())
    between = tuple(node.name for node in segment) if len(segment) > 1 else ()
    for rule in (_told, _likely):
        for node in segment:
            told = rule(model, node, [values[i] for i in node.inputs], values[node.name], found)
            if told is not None:
                return NonFiniteOrigin(found, node.name, between, *told, sure=rule is _told)
    return NonFiniteOrigin(found, found.node, between, *_guess(graph[found.node], values[found.node]), sure=False)


def _told(model: Model, node: Node, inputs: list[Array], value: Array, found: NotFinite) -> tuple[str, str, str] | None:
    """Why, the fix, and the fault of the catalogue; None where the numbers show nothing."""
    x = inputs[0] if inputs and inputs[0].dtype.kind == "f" else np.zeros(1)
    largest = _largest(value)
    if node.op in _SOFTMAX:
        return _softmax(node, x, found)
    if node.op in ("rms_norm", "layer_norm"):
        dead = np.flatnonzero(~x.reshape(len(x), -1).any(axis=1))
        if len(dead):
            return (
                f"0/0 in a norm: row {int(dead[0])} of {node.inputs[0]} is all zeros, and no eps is added",
                f"divide by sqrt(mean(x^2) + eps); this file's eps is {node.attr('eps'):g}", "eps-place",
            )  # fmt: skip
        if _largest(x) ** 2 > HALF:
            return (
                f"overflow in half precision: {node.inputs[0]} reaches {_largest(x):.5g}, its square "
                f"{_largest(x) ** 2:.5g}, and a half ends at 65504",
                "square and sum in float32", "f16-act-overflow",
            )  # fmt: skip
    if node.op in ("glu", "act", "glu_split", "sigmoid") and _largest(x) > _EXP32 and found.what == "NaN":
        return (
            f"exp overflow: the gate reaches {_largest(x):.4g}, exp of it is infinite in float32, and Inf/Inf is NaN",
            "write silu as x / (1 + exp(-x))", "",
        )  # fmt: skip
    if node.op == "div" and not np.all(inputs[1]):
        return "0/0: a sum that is divided by is zero", "clamp the sum to a small positive number first", ""
    if largest > HALF:
        where = "scores" if node.op == "kq" else "values"
        return (
            f"overflow in half precision: the definition's {where} reach {largest:.5g} here, and a half ends at 65504",
            "keep this result in float32 or bfloat16" + ("; scale q before the product" if node.op == "kq" else ""),
            "f16-kq-overflow" if node.op == "kq" else "f16-act-overflow",
        )  # fmt: skip
    return None


def _likely(
    model: Model, node: Node, inputs: list[Array], value: Array, found: NotFinite
) -> tuple[str, str, str] | None:
    """The same, where the numbers allow it and do not prove it."""
    if node.op in _SOFTMAX and found.what == "NaN":
        return (
            "a row of -Inf in a softmax, most likely: its scores are too small for exp to overflow, but a row in which "
            "every key is masked gives -Inf - (-Inf)",
            "let each row see at least its own key: look at the mask of padding, window and cache offset", "",
        )  # fmt: skip
    if node.op == "linear":
        weight = model.file.decode(node.weights[0])
        sums = float((np.abs(weight, out=weight) @ np.abs(inputs[0]).max(axis=0).astype(weight.dtype)).max())
        if sums > HALF:
            return (
                f"perhaps an overflow in half precision: the result reaches only {_largest(value):.4g}, but its "
                f"products can add up to {sums:.5g} on the way, and a half ends at 65504",
                "accumulate in float32", "f16-act-overflow",
            )  # fmt: skip
    return None


def _softmax(node: Node, x: Array, found: NotFinite) -> tuple[str, str, str] | None:
    top = float(np.max(x)) * float(node.all_attrs().get("scale", 1.0))
    if found.masked is not None:
        return (
            f"a row of -Inf in a softmax: every key of row {found.masked} is masked, and -Inf - (-Inf) is NaN",
            "let each row see at least its own key, or write zeros for a row that sees none", "",
        )  # fmt: skip
    for limit, kind in ((_EXP32, "float32"), (_EXP16, "half precision")):
        if top > limit:
            return (
                f"exp overflow: scores reach {top:.4g}, exp of more than {limit:g} is infinite in {kind}, "
                "and Inf/Inf is NaN",
                "subtract the row's maximum before exp", "softmax-no-max",
            )  # fmt: skip
    return None


def _guess(node: Node, value: Array) -> tuple[str, str, str]:
    if node.op == "embed":
        return (
            f"the decoded weights are not finite, although the definition decodes {node.weights[0]} to at most "
            f"{_largest(value):.4g}",
            "look at how the blocks' scales are read (half, not bfloat16; little-endian) and where the data begin",
            "f16-as-bf16",
        )  # fmt: skip
    return (
        f"nothing is large here: from the engine's own inputs the definition gives at most {_largest(value):.4g}; so "
        "memory that was never written was read, or an accumulator did not start at zero",
        "zero the buffer, and check the bounds of the loop that fills it", "uninit",
    )  # fmt: skip


def _largest(x: Array) -> float:
    finite = np.abs(x[np.isfinite(x)]) if x.dtype.kind == "f" else np.zeros(1)
    return float(finite.max()) if finite.size else 0.0
