"""Which operation made the first NaN or infinity of a run, and how.

The definition is run on the engine's own values from the last finite node on. Its values there tell the causes apart:
numbers beyond the range of half precision, their squares and exponentials, a division by zero, a row in which every key
is masked. Where no value is large, the engine read memory that it never wrote.

`_PROOFS` holds the causes that the numbers prove and `_GUESSES` those that they allow, one row an operation. Add a row
for an operation that can overflow in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Node, Trait
from assay.models import Model
from assay.verify.dumps.observation import Dump, NotFinite

Array = NDArray[Any]
HALF = 65504.0  # the largest half
_EXP32, _EXP16 = 88.72, 11.09  # exp of more is infinite in float32, in half


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The first value that is not finite, with the operation that made it and what to do."""

    found: NotFinite
    node: str  # the node whose operation made it
    between: tuple[str, ...]  # nodes without a dump, one of which made it; empty where its inputs were dumped
    why: str
    fix: str
    fault: str = ""  # id in the catalogue, where it is a known fault
    sure: bool = True  # the numbers prove it
    hidden_rows: bool = False  # other tokens' rows were not dumped, and the operations between read them

    @property
    def words(self) -> str:
        """One sentence: what, where, how."""
        f = self.found
        where = f" in token row {f.row}" if f.row is not None else ""
        made = "" if self.node == f.node else f", made by {self.node}"
        place = f"{f.count} of {f.size} values, the first at {list(f.at)}{where}"
        if f.place:  # numbers that were printed
            place = f.place if f.size == 1 else f"{f.count} of {f.size} values, the first: {f.place}"
        return f"{f.node} holds {f.what} ({place}){made}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        f = self.found
        return {
            "node": f.node, "what": f.what, "count": f.count, "size": f.size, "at": list(f.at), "row": f.row,
            "made_by": self.node, "between": list(self.between), "why": self.why, "fix": self.fix,
            "fault": self.fault or None, "sure": self.sure, "nodes_not_judged": f.left,
        }  # fmt: skip


class Why(NamedTuple):
    """How a value stopped being finite."""

    why: str
    fix: str
    fault: str = ""  # id in the catalogue, where it is a known fault


@dataclass(frozen=True)
class _Suspect:
    """A node that may have made the first NaN or infinity, with the definition's values around it."""

    model: Model
    node: Node
    inputs: list[Array]
    value: Array
    found: NotFinite

    @property
    def x(self) -> Array:
        """The first input, where it is a float."""
        return self.inputs[0] if self.inputs and self.inputs[0].dtype.kind == "f" else np.zeros(1)


Rule = Callable[[_Suspect], Why | None]


def explain(model: Model, dump: Dump, found: NotFinite) -> NonFiniteOrigin:
    """Name the operation that made the first value which is not finite; `dump` holds the values before it."""
    graph = model.graph
    known: dict[str, Array] = dump.inputs
    for name in dump.by_name:
        if (value := dump.values(name)) is not None:
            known[name] = value.astype(np.float64) if value.dtype.kind == "f" else value
    seen = known.keys() | dump.by_name.keys()  # nodes with a few printed values were finite as well
    inside = graph.ancestors([found.node], seen) - seen | {found.node}
    segment = [node for node in graph if node.name in inside]
    names = {i for node in segment for i in node.inputs} | inside
    weights = Weights(model.file, np.float32, budget=0)
    with np.errstate(all="ignore"):
        values = known | interpret(graph, weights, known, names - known.keys())
    between = tuple(node.name for node in segment) if len(segment) > 1 else ()
    mixes = any(node.has(Trait.MIXES_TOKENS | Trait.SCORES) for node in segment)
    part = mixes and len(dump.tokens) > 1 and not any(dump.values(name) is not None for name in dump.by_name)
    suspects = [_Suspect(model, n, [values[i] for i in n.inputs], values[n.name], found) for n in segment]
    for sure, rule in ((True, _proven), (False, _possible)):
        for suspect in suspects:
            why = rule(suspect)
            if why is not None:
                return NonFiniteOrigin(found, suspect.node.name, between, *why, sure=sure, hidden_rows=part)
    why = _remaining(graph[found.node], values[found.node])
    return NonFiniteOrigin(found, found.node, between, *why, sure=False, hidden_rows=part)


def _proven(suspect: _Suspect) -> Why | None:
    """The cause that the numbers prove; None where they show nothing."""
    rule = _PROOFS.get(suspect.node.op)
    why = rule(suspect) if rule is not None else None
    if why is not None or suspect.node.has(Trait.SOFTMAX):  # probabilities are never large
        return why
    return _beyond_half(suspect)


def _possible(suspect: _Suspect) -> Why | None:
    """The cause that the numbers allow and do not prove."""
    rule = _GUESSES.get(suspect.node.op)
    return rule(suspect) if rule is not None else None


def _masked_or_steep(s: _Suspect) -> Why | None:
    top = float(np.max(s.x)) * float(s.node.all_attrs().get("scale", 1.0))
    if s.found.masked is not None:
        return Why(
            f"a row of -Inf in a softmax: every key of row {s.found.masked} is masked, and -Inf - (-Inf) is NaN",
            "let each row see at least its own key, or write zeros for a row that sees none",
        )
    for limit, kind in ((_EXP32, "float32"), (_EXP16, "half precision")):
        if top > limit:
            return Why(
                f"exp overflow: scores reach {top:.4g}, exp of more than {limit:g} is infinite in {kind}, "
                "and Inf/Inf is NaN",
                "subtract the row's maximum before exp",
                "softmax-no-max",
            )
    return None


def _norm(s: _Suspect) -> Why | None:
    dead = np.flatnonzero(~s.x.reshape(len(s.x), -1).any(axis=1))
    largest = _largest(s.x)
    if len(dead):
        return Why(
            f"0/0 in a norm: row {int(dead[0])} of {s.node.inputs[0]} is all zeros, and no eps is added",
            f"divide by sqrt(mean(x^2) + eps); this file's eps is {s.node.attr('eps'):g}",
            "eps-place",
        )
    if largest**2 > HALF:
        return Why(
            f"overflow in half precision: {s.node.inputs[0]} reaches {largest:.5g}, its square {largest**2:.5g}, "
            "and a half ends at 65504",
            "square and sum in float32",
            "f16-act-overflow",
        )
    return None


def _gate(s: _Suspect) -> Why | None:
    largest = _largest(s.x)
    if largest <= _EXP32 or s.found.what != "NaN":
        return None
    return Why(
        f"exp overflow: the gate reaches {largest:.4g}, exp of it is infinite in float32, and Inf/Inf is NaN",
        "write silu as x / (1 + exp(-x))",
    )


def _division(s: _Suspect) -> Why | None:
    if np.all(s.inputs[1]):
        return None
    return Why("0/0: a sum that is divided by is zero", "clamp the sum to a small positive number first")


def _beyond_half(s: _Suspect) -> Why | None:
    largest, scores = _largest(s.value), s.node.has(Trait.KEYS)
    if largest <= HALF:
        return None
    return Why(
        f"overflow in half precision: the definition's {'scores' if scores else 'values'} reach {largest:.5g} here, "
        "and a half ends at 65504",
        "keep this result in float32 or bfloat16" + ("; scale q before the product" if scores else ""),
        "f16-kq-overflow" if scores else "f16-act-overflow",
    )


def _masked_row(s: _Suspect) -> Why | None:
    if s.found.what != "NaN":
        return None
    return Why(
        "a row of -Inf in a softmax, most likely: its scores are too small for exp to overflow, but a row in which "
        "every key is masked gives -Inf - (-Inf)",
        "let each row see at least its own key: look at the mask of padding, window and cache offset",
    )


def _partial_sums(s: _Suspect) -> Why | None:
    weight = np.abs(s.model.file.decode(s.node.weights[0]))  # not in place: a float32 tensor is a view of the file
    rows = np.abs(s.inputs[0].reshape(len(s.inputs[0]), -1))
    sums = float((weight @ rows.max(axis=0).astype(weight.dtype)).max())
    if sums <= HALF:
        return None
    return Why(
        f"perhaps an overflow in half precision: the result reaches only {_largest(s.value):.4g}, but its products can "
        f"add up to {sums:.5g} before they cancel, and a half ends at 65504",
        "accumulate in float32",
        "f16-act-overflow",
    )


_PROOFS: Mapping[str, Rule] = {
    "attn_softmax": _masked_or_steep,
    "softmax": _masked_or_steep,
    "rms_norm": _norm,
    "layer_norm": _norm,
    "act": _gate,
    "glu": _gate,
    "glu_split": _gate,
    "sigmoid": _gate,
    "div": _division,
}
_GUESSES: Mapping[str, Rule] = {"attn_softmax": _masked_row, "softmax": _masked_row, "linear": _partial_sums}


def _remaining(node: Node, value: Array) -> Why:
    """The causes that remain where no operation explains the value: misread weights, or unwritten memory."""
    if node.has(Trait.TABLE) and not node.has(Trait.PRODUCT | Trait.ELEMENTWISE):
        return Why(
            f"the decoded weights are not finite, although the definition decodes {node.weights[0]} to at most "
            f"{_largest(value):.4g}",
            "look at how the blocks' scales are read (half, not bfloat16; little-endian) and where the data begin",
            "f16-as-bf16",
        )
    return Why(
        f"nothing is large here: from the engine's own inputs the definition gives at most {_largest(value):.4g}; so "
        "memory that was never written was read, or an accumulator did not start at zero",
        "zero the buffer, and check the bounds of the loop that fills it",
        "uninit",
    )


def _largest(x: Array) -> float:
    finite = np.abs(x[np.isfinite(x)]) if x.dtype.kind == "f" else np.zeros(1)
    return float(finite.max()) if finite.size else 0.0
