"""A fault of another package: the feed-forward block computes hard swish where the model has SiLU.

`register` is the entry point. assay calls it once, before the first diagnosis of a process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.verify.faults import Change, Context, Fault, FaultKind, Probe, Stage, Variant, register_fault, selector

Array = NDArray[Any]


def hard_swish(x: Array) -> Array:
    """x * min(max(x + 3, 0), 6) / 6: a cheap approximation of SiLU from mobile networks."""
    return np.asarray(x * np.clip(x + 3, 0, 6) / 6)


def edit(context: Context, node: Node, p: float) -> Change | None:
    """The computation of a faulty engine under the node's name. `p` is the value of a family's parameter."""
    if node.attr("act") != "silu":
        return None  # the fault changes nothing here
    return Change(node, lambda gate, up: hard_swish(gate) * up)


FAULT = Fault(
    id="example-hard-swish",
    stage=Stage.FFN,
    wrong="hard_swish(gate) * up",
    right="silu(gate) * up, with silu(x) = x / (1 + exp(-x))",
    kinds=(FaultKind.COMPUTATION,),
    run=Probe.ONE_TOKEN,
    symptom="fluent text that drifts",
    tell="gates below -3 give exactly 0",
    shows="ffn_swiglu-0",
    at_zero="yes",
    probe="1 token",
    variants=(Variant("hard swish for SiLU", edit, where=selector(op="glu")),),
)


def register() -> None:
    register_fault(FAULT)
