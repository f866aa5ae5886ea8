"""Generators of the grammar for activations and soft caps: another function, a part of the formula.

An engine that serves several families has them all, and takes the wrong one; the catalogue's rows are those of SiLU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from assay.engines.reference.functions import ACTIVATIONS, sigmoid
from assay.graph import Node
from assay.verify.faults.description import CAPPED, CAPPED_SCORES, FUNCTION, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, layer, role

_OPS = ("glu", "act", "glu_split")
Function = Callable[[Array], Array]

_FUNCTIONS: dict[str, Function] = {
    **{name.replace("_", " "): function for name, function in ACTIVATIONS.items()},
    "x sigmoid(1.702 x)": lambda x: x * sigmoid(1.702 * x),
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0.0)),
    "leaky relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "sigmoid": sigmoid,
    "tanh-GELU with 0.44715": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.44715 * x**3))),
    "tanh-GELU without the root": lambda x: 0.5 * x * (1 + np.tanh(2 / np.pi * (x + 0.044715 * x**3))),
    "x / (1 + exp(x))": lambda x: x * sigmoid(-x),
    "nothing": lambda x: x,
}


def functions(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another function on the same operand."""
    for node in nodes:
        right = ACTIVATIONS.get(str(node.attr("act"))) if node.op in _OPS else None
        if right is None:
            continue
        for words, function in _FUNCTIONS.items():
            if function is not right:
                label = f"{role(node)} computes {words} in place of {str(node.attr('act')).replace('_', ' ')}"
                yield FUNCTION, placed(label, _computing(function), (node.op,), role(node))


def _computing(function: Function) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        half = node.op == "glu_split"

        def run(x: Array, *up: Array) -> Array:
            gate = x[..., : x.shape[-1] // 2] if half else x
            other = x[..., x.shape[-1] // 2 :] if half else up[0].reshape(gate.shape) if up else 1.0
            return np.asarray(function(gate) * other)

        return Change(node, run)

    return edit


# Of x and the cap: what a wrong cap computes in place of cap tanh(x / cap).
_CAPS: dict[str, Callable[[Array, float], Array]] = {
    "tanh(x / cap), not multiplied by the cap": lambda x, cap: np.tanh(x / cap),
    "cap tanh(x), not divided by the cap": lambda x, cap: cap * np.tanh(x),
    "tanh(x)": lambda x, cap: np.tanh(x),
    "x / cap without tanh": lambda x, cap: x / cap,
    "x cut off at the cap": lambda x, cap: np.clip(x, -cap, cap),
    "cap sigmoid(x / cap)": lambda x, cap: cap * sigmoid(x / cap),
    "cap tanh(x cap)": lambda x, cap: cap * np.tanh(x * cap),
}


def caps(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A soft cap whose formula lacks a part, or has another function."""
    for node in (n for n in nodes if n.op == "softcap"):
        fault = CAPPED if layer(node) is None else CAPPED_SCORES
        for words, formula in _CAPS.items():
            yield fault, placed(f"{role(node)} computes {words}", _capped(formula), (node.op,), role(node))


def _capped(formula: Callable[[Array, float], Array]) -> Edit:
    return lambda c, node, p: Change(node, lambda x: np.asarray(formula(x, float(node.attr("cap")))))


GENERATORS = (functions, caps)
