"""Schedule single nodes of layers that remember: convolutions, recurrences, their states, and their row operations.

Each function appends the step of one node. SINGLE, in schedule.py, says which function a node's operation has.
"""

from __future__ import annotations

import math
from typing import Any

from assay.engines.cuda.abi.enumerations import ScanKind
from assay.engines.cuda.abi.shared_memory import walk_delta_bytes
from assay.engines.cuda.context import FoldedDelta
from assay.engines.cuda.device_values import Layout, Value
from assay.engines.cuda.layout import UNIT
from assay.engines.cuda.schedule_rows import WIDEST_PART, activation, map_rows, reshape, small_step
from assay.engines.cuda.step_list import StepList
from assay.engines.cuda.steps import AdvanceStates, GatedNorms, RowSums, Scan, ShowState, Tier, WalkDelta, WalkNeeds
from assay.engines.plan.state_layout import slot_offsets
from assay.engines.plan.values import heads_in_row
from assay.engines.reference.recurrent_functions import xielu_factors
from assay.errors import AssayError
from assay.graph import Node

WIDEST = 256  # channels of a state's row that a warp holds in registers


def _state_at(steps: StepList, name: str) -> int:
    """Where a node's state begins in a state slot, in floats."""
    offsets: dict[str, int] = steps.once(("state offsets",), lambda: slot_offsets(steps.context.graph)[0])
    return offsets[name]


def _scan(steps: StepList, node: Node, kernel: str, **sizes: Any) -> None:
    x = tuple(steps.value_of(name, "tokens") for name in node.inputs)
    act = steps.context.folds.windows.get(node.name)
    if act:
        sizes["kind"] = 1 + activation(act)
    out, at = steps.new(act.name if act else node.name), _state_at(steps, node.name)
    work = Scan(kernel, x, node.weights[0] if node.weights else "", out, at, **sizes)
    steps.add(node.name, work, x, [out], small_step(steps, _in_walks(work)))


def _in_walks(work: Scan) -> bool:
    """Whether a walk has this convolution or recurrence (walk_all.cu)."""
    if work.kernel == "causal_conv":
        return work.rows <= 8
    return work.kernel in ("scan_64", "scan_128") and work.kind in (ScanKind.DELTA_RULE, ScanKind.SSM_SCAN)


def causal_conv(steps: StepList, node: Node) -> None:
    channels, before = node.attr("state")
    _scan(steps, node, "causal_conv", channels=channels, rows=before + 1)


def shift(steps: StepList, node: Node) -> None:
    _scan(steps, node, "shift_rows", channels=node.attr("state")[1])


def scan(steps: StepList, node: Node) -> None:
    """delta_rule, ssm_scan, wkv6 and wkv7."""
    attrs, c = node.all_attrs(), steps.context
    channels, heads = int(attrs["state"][-1]), int(attrs["n_head"])
    if channels > WIDEST:
        raise AssayError(
            f"node {node.name}: the cuda engine has {node.op} for up to {WIDEST} channels (found {channels}); "
            "use --engine cpu"
        )
    decays = c.width(node.inputs[3]) if node.op == "delta_rule" else heads
    if node.op == "ssm_scan":
        decays = math.prod(int(n) for n in c.graph.weights[node.weights[0]])
    _scan(
        steps,
        node,
        f"scan_{-(-channels // 64) * 64}",
        kind=ScanKind[node.op.upper()],
        heads=heads,
        groups=int(attrs.get("n_head_k") or attrs.get("n_group") or 1),
        channels=channels,
        rows=c.width(node.name) // heads,
        per_channel=int(decays != heads),
        scale=float(attrs.get("scale", 1.0)),
    )


def walk_delta(steps: StepList, folded: FoldedDelta) -> None:
    """A gated delta rule and the nodes around it, as two steps of a walk."""
    c, rule, length = steps.context, folded.rule, folded.length.all_attrs()
    mixed, alpha, beta, gate = (
        steps.value_of(name, "tokens")
        for name in (folded.conv.inputs[0], folded.alpha, folded.beta, folded.gating.inputs[0])
    )
    work = WalkDelta(
        (mixed, alpha, beta), steps.new(rule.name), folded.conv.weights[0], folded.decay.weights[0],
        _state_at(steps, folded.conv.name), _state_at(steps, rule.name), int(rule.attr("n_head")),
        int(length["n_head"]), activation(folded.act), float(length["eps"]), bool(length.get("floor")),
        float(rule.all_attrs().get("scale", 1.0)),
    )  # fmt: skip
    needs = WalkNeeds(shared=walk_delta_bytes(), tier=Tier.ALL)
    steps.add(rule.name, work, work.x, [work.out], needs)
    codes = steps.new(folded.last, Layout.CODES, -(-c.width(folded.last) // UNIT) * UNIT // 32 * 48)
    norms = GatedNorms(
        work, gate, codes, folded.norm.weights[0], float(folded.norm.attr("eps")), activation(folded.gating)
    )
    steps.add(folded.last, norms, [work.out, gate, mixed], [codes], WalkNeeds(tier=Tier.ALL))


def show_state(steps: StepList, node: Node) -> None:
    c, out, column = steps.context, steps.new(node.name), 0
    for name in node.inputs:
        size = math.prod(c.graph.state.by_node[name].shape)
        after = int(node.op == "state_after")
        work = ShowState(out, _state_at(steps, name), size, column, c.width(node.name), after)
        steps.add(node.name, work, [], [out])
        column += size


def advance_states(steps: StepList, after: Value) -> None:
    """The last step of a decode step whose token is fed to the next one."""
    steps.add("", AdvanceStates(), [after], [])


# -- rows ------------------------------------------------------------------------------------------------------------


def row_sums(steps: StepList, node: Node) -> None:
    """l2_norm, length and sparse_gate: a warp a row, or a part of one."""
    c, attrs = steps.context, node.all_attrs()
    domain, name = c.domain(node.name), node.inputs[0]
    x, out = steps.value_of(name, domain), steps.new(node.name)
    parts = heads_in_row(c.graph, name, int(attrs["n_head"])) if node.op == "l2_norm" else 1
    number = float(attrs.get("eps") or attrs.get("factor") or 0.0)
    kernel = "row_length" if node.op == "length" else node.op
    floor = bool(attrs.get("floor"))
    work = RowSums(kernel, x, out, c.rows(domain), c.width(name), parts, number, floor)
    short = kernel == "l2_norm" and c.width(name) // parts <= WIDEST_PART
    steps.add(node.name, work, [x], [out], small_step(steps, short))


def head_bonus(steps: StepList, node: Node) -> None:
    c = steps.context
    domain, heads = c.domain(node.name), int(node.attr("n_head"))
    x = tuple(steps.value_of(name, domain) for name in node.inputs)
    out, channels = steps.new(node.name), c.width(node.name) // heads
    work = Scan("head_bonus", x, node.weights[0], out, 0, heads=heads, channels=channels, rows=c.rows(domain))
    steps.add(node.name, work, x, [out])


def xielu(steps: StepList, node: Node) -> None:
    attrs = node.all_attrs()
    a, b = xielu_factors(attrs["alpha_p"], attrs["alpha_n"], attrs["beta"])
    map_rows(steps, node, node.inputs, constant=(a, b, float(attrs["beta"]), float(attrs["eps"])))


def add_scalar(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, number=float(node.attr("value")))


def head_gain(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, vector=node.weights[0])


def add_gain(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, weight=node.weights[0])


def lerp_row(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, weight=node.weights[0], row=int(node.attr("row")))


def repeat_heads(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, parts=heads_in_row(steps.context.graph, node.inputs[0], 1))


def join(steps: StepList, node: Node) -> None:
    if len(node.inputs) == 1:
        reshape(steps, node)
    else:
        map_rows(steps, node, node.inputs)


def streams(steps: StepList, node: Node) -> None:
    """mix_streams and add_to_streams."""
    first = int(node.all_attrs().get("first", 0))
    map_rows(steps, node, node.inputs, parts=int(node.attr("n_stream")), integer=first)


RECURRENT = {
    "causal_conv": causal_conv,
    "shift": shift,
    **dict.fromkeys(("delta_rule", "ssm_scan", "wkv6", "wkv7"), scan),
    **dict.fromkeys(("state_before", "state_after"), show_state),
    **dict.fromkeys(("l2_norm", "length", "sparse_gate"), row_sums),
    "head_bonus": head_bonus,
    "xielu": xielu,
    "add_scalar": add_scalar,
    "head_gain": head_gain,
    "add_gain": add_gain,
    "lerp_row": lerp_row,
    "repeat_heads": repeat_heads,
    "join": join,
    **dict.fromkeys(("mix_streams", "add_to_streams"), streams),
}
