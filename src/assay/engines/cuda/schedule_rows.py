"""Schedule single nodes that work row by row: embedding, norms, RoPE, the cache, elementwise maps, pooling.

Each function appends the step of one node. SINGLE, in schedule.py, says which function a node's operation has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from assay.engines.cuda.abi.enumerations import ACTS
from assay.engines.cuda.abi.shared_memory import normed_row_bytes
from assay.engines.cuda.context import FoldedNorm
from assay.engines.cuda.device_values import Layout, Value
from assay.engines.cuda.folding import rope_of
from assay.engines.cuda.layout import UNIT
from assay.engines.cuda.step_list import StepList, read_cache, write_cache
from assay.engines.cuda.steps import (
    BestLogits,
    Embed,
    FillRopeTable,
    Map,
    NormPart,
    NormRows,
    PoolRows,
    RotateRows,
    ScaleByPosition,
    SortRow,
    Tier,
    WalkNeeds,
    WalkNorms,
)
from assay.engines.plan.batching import External
from assay.engines.plan.values import NUMBERS, RopeTable, heads_in_row
from assay.errors import AssayError
from assay.graph import Node

DIGEST_WORDS = 4  # of a row's hash (best.cu)
_POSITIONS = {"tokens": "positions", "outputs": "output_positions", "keys": "key_positions"}  # the step's tables


WIDEST_PART = 256  # values of a part of a row that a warp of a walk norms
# Maps that are steps of a walk: they have no third operand that an earlier step computes.
_IN_WALKS = {
    "add", "glu", "bias", "scale", "softcap", "clamp_min", "slice", "clamp", "act", "glu_split", "sigmoid", "mul",
    "mul_weight", "concat", "glu_oai", "softplus", "exp", "add_scalar", "head_gain", "add_gain", "repeat_heads",
}  # fmt: skip
# Maps that need only the elements at the result's own place, so that a row may be anything: scores, too.
_ON_SCORES = {"add", "glu", "scale", "softcap", "clamp_min", "clamp", "act", "sigmoid", "mul", "glu_oai"}


def embed(steps: StepList, node: Node) -> None:
    index = {"inp_tokens": "tokens", "inp_pos": "positions"}.get(node.inputs[0])
    if index is None:
        raise AssayError(
            f"node {node.name}: the cuda engine embeds inp_tokens or inp_pos (found {node.inputs[0]}); use --engine cpu"
        )
    table, out = steps.context.tensors.matrix(node.weights[0]), steps.new(node.name)
    steps.add(node.name, Embed(table, index, out, steps.context.width(node.name)), [], [out])


def norm_rows(steps: StepList, node: Node) -> None:
    c = steps.context
    domain = c.domain(node.name)
    x, out, width = steps.value_of(node.inputs[0], domain), steps.new(node.name), c.width(node.name)
    parts = heads_in_row(c.graph, node.inputs[0], int(node.attr("n_head")))
    own = bool(node.weights) and math.prod(int(n) for n in c.graph.weights[node.weights[0]]) == width
    eps = float(node.attr("eps"))
    work = NormRows(node.op, x, out, node.weights, c.rows(domain), width, parts, own, eps)
    short = node.op == "rms_norm" and width // parts <= WIDEST_PART
    steps.add(node.name, work, [x], [out], small_step(steps, short))


def fill_rope_table(steps: StepList, rope: RopeTable, domain: str) -> Value:
    """Cosines and sines of the rows' positions, computed once for all nodes that rotate by them."""
    if (domain == "keys") != (rope.positions == "inp_kpos") or rope.positions not in ("inp_pos", "inp_kpos"):
        raise AssayError(f"the cuda engine cannot rotate by {rope.positions} here; use --engine cpu")

    def make() -> Value:
        rows = steps.context.rows(domain)
        out = Value(4 * rows * rope.n_rot)
        steps.add("", FillRopeTable(rope, _POSITIONS[domain], rows, out), [], [out])
        return out

    return steps.once(("rope table", rope.frequencies, rope.magnitude, domain), make)


def rotate(steps: StepList, node: Node) -> None:
    c = steps.context
    domain, rope = c.domain(node.name), rope_of(c, node)
    table = fill_rope_table(steps, rope, domain)
    x, out = steps.value_of(node.inputs[0], domain), steps.new(node.name)
    heads, neox, offset = int(node.attr("n_head")), node.attr("mode") == "neox", int(node.attr("offset"))
    work = RotateRows(x, table, out, c.rows(domain), c.width(node.name), heads, rope.n_rot, neox, offset)
    steps.add(node.name, work, [x, table], [out])


def rotate_by_table(steps: StepList, node: Node) -> None:
    """Rotation by cosines and sines that are given."""
    c = steps.context
    domain = c.domain(node.name)
    x, table = (steps.value_of(name, domain) for name in node.inputs)
    out, heads, n_rot = steps.new(node.name), int(node.attr("n_head")), c.width(node.inputs[1])
    neox, offset = node.attr("mode") == "neox", int(node.attr("offset"))
    work = RotateRows(x, table, out, c.rows(domain), c.width(node.name), heads, n_rot, neox, offset)
    steps.add(node.name, work, [x, table], [out])


def cache(steps: StepList, node: Node) -> None:
    write_cache(steps, node.inputs[0], node.name)
    if node.name in steps.context.keep:
        read_cache(steps, node.name, steps.new(node.name))


def scale_by_position(steps: StepList, node: Node) -> None:
    c = steps.context
    domain = c.domain(node.name)
    if node.inputs[1] != "inp_pos" or domain not in ("tokens", "outputs"):
        raise AssayError(f"node {node.name}: the cuda engine scales rows by inp_pos only; use --engine cpu")
    x, out = steps.value_of(node.inputs[0], domain), steps.new(node.name)
    beta, unit, offset = float(node.attr("beta")), int(node.attr("unit")), int(node.attr("offset"))
    sizes = c.rows(domain), c.width(node.name)
    steps.add(node.name, ScaleByPosition(x, out, _POSITIONS[domain], *sizes, beta, unit, offset), [x], [out])


def pool_rows(steps: StepList, node: Node) -> None:
    x, out = steps.value_of(node.inputs[0], "tokens"), steps.new(node.name)
    steps.add(node.name, PoolRows(x, out, steps.context.width(node.name), str(node.attr("kind"))), [x], [out])


def reshape(steps: StepList, node: Node) -> None:
    """Heads lie side by side in a token's row, whatever axes the graph has: the node is its input's memory."""
    c = steps.context
    domain, source = c.domain(node.name), node.inputs[0]
    if (node.name, domain) in steps.values:
        return
    value = steps.values[node.name, domain] = steps.value_of(source, domain)
    if node.name in c.keep and source in c.keep:
        steps.aliases[node.name] = source
    elif node.name in c.keep:
        steps.results.append((External(node.name, c.plan.domains[node.name], c.width(node.name)), value))


def row_of_threads(steps: StepList, node: Node) -> None:
    """softmax, argsort and group_mask."""
    c = steps.context
    domain = c.domain(node.name)
    if domain in ("keys", "scores") or len(c.graph.shapes[node.inputs[0]]) != 2:
        raise AssayError(f"node {node.name}: the cuda engine has {node.op} for rows only; use --engine cpu")
    x, out = steps.value_of(node.inputs[0], domain), steps.new(node.name)
    groups, used = (int(node.all_attrs().get(key, 1)) for key in ("groups", "used"))
    steps.add(node.name, SortRow(node.op, x, out, c.rows(domain), c.width(node.name), groups, used), [x], [out])


# -- elementwise -----------------------------------------------------------------------------------------------------


def activation(node: Node) -> int:
    """The kernels' number of a node's activation."""
    act = str(node.attr("act"))
    if act not in ACTS:
        raise AssayError(f"node {node.name}: the cuda engine has no activation {act}; use --engine cpu")
    return int(ACTS[act])


def map_rows(
    steps: StepList,
    node: Node,
    inputs: Sequence[str],
    *,
    op: str = "",
    integer: int = 0,
    number: float = 0.0,
    second: float = 0.0,
    vector: str = "",
    row: int = 0,
    table: str = "",
    parts: int = 1,
    constant: tuple[float, ...] = (),
    weight: str = "",
) -> None:
    """A map of up to three inputs, of a vector of weights (row `row` of it), or of the row of `table` that y chooses.

    `constant` are numbers in the place of y, and `weight` is a vector of weights in the place of the third input.
    """
    c = steps.context
    domain, op = c.domain(node.name), op or node.op
    if domain == "scores" and op not in _ON_SCORES:
        raise AssayError(f"node {node.name}: the cuda engine has {node.op} for rows only; use --engine cpu")
    sources = [steps.value_of(name, domain) for name in inputs]
    widths = [c.width(name) for name in inputs]
    if vector:
        widths.append(
            math.prod(int(n) for n in c.graph.weights[vector])
            if op == "head_gain"
            else int(c.graph.weights[vector][-1])
        )
    z_width = widths[2] if len(widths) > 2 else 0
    if weight:
        z_width = widths[0] if op == "lerp_row" else math.prod(int(n) for n in c.graph.weights[weight])
    walk = small_step(steps, op in _IN_WALKS and len(sources) < 3, several=True)
    out = _codes_for_readers(steps, node.name) if walk else steps.new(node.name)
    work = Map(
        op=op,
        x=sources[0],
        y=sources[min(1, len(sources) - 1)],
        out=out,
        rows=c.rows(domain),
        width=c.width(node.name),
        constant=constant,
        z=sources[2] if len(sources) > 2 else None,
        z_width=z_width,
        weight=weight,
        weight_row=row if weight else 0,
        x_width=widths[0],
        y_width=(widths * 2)[1],
        vector=vector,
        vector_row=row if vector else 0,
        table=table,
        table_rows=int(c.graph.weights[table][0]) if table else 0,
        integer=integer,
        parts=parts,
        number=number,
        second=second,
    )
    steps.add(node.name, work, sources, [out], walk)


def _codes_for_readers(steps: StepList, name: str) -> Value:
    """A new value: quantised, if it is one row that only products with quantised weights read."""
    c = steps.context
    width, alone = c.width(name), name != c.graph.output and c.rows(c.domain(name)) == 1
    if not alone or width % 32 or not c.graph.users.get(name) or not c.read_as("q8", name):
        return steps.new(name)
    return steps.new(name, Layout.CODES, -(-width // UNIT) * UNIT // 32 * 48)


def small_step(steps: StepList, possible: bool, several: bool = False) -> WalkNeeds | None:
    """The needs of a single operation as a step of a walk; None if it is a launch. `several`: walks of several tokens
    have it too."""
    c = steps.context
    return WalkNeeds(tier=Tier.ALL) if possible and c.small_steps and (several or c.shape.tokens == 1) else None


def map_node(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs)


def map_number(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, number=float(node.attr(NUMBERS[node.op])))


def map_vector(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs[:1], vector=node.weights[0])


def map_expert_table(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, table=node.weights[0])


def map_activation(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, integer=activation(node))


def add_row(steps: StepList, node: Node) -> None:
    if len(node.inputs) == 2:  # a row for each token
        map_rows(steps, node, node.inputs, op="expert_bias", table=node.weights[0])
    else:
        map_rows(steps, node, node.inputs, op="bias", vector=node.weights[0], row=int(node.attr("row")))


def glu_split(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, integer=activation(node), parts=_heads(steps, node, node.inputs[0]))


def glu_oai(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, number=float(node.attr("alpha")), second=float(node.attr("limit")))


def clamp(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, number=float(node.attr("lo")), second=float(node.attr("hi")))


def slice_columns(steps: StepList, node: Node) -> None:
    c, start = steps.context, int(node.attr("start"))
    domain = c.domain(node.name)
    if c.small_steps and c.rows(domain) == 1 and not node.all_attrs().get("n_head") and start % 4 == 0:
        x = steps.value_of(node.inputs[0], domain)  # the slice is a part of its memory
        part = Value(4 * c.width(node.name), base=x.memory, offset=x.offset + 4 * start)
        steps.values[node.name, domain] = part
        return
    map_rows(steps, node, node.inputs, integer=int(node.attr("start")), parts=_heads(steps, node, node.inputs[0]))


def topk(steps: StepList, node: Node) -> None:
    map_rows(steps, node, node.inputs, op="slice")


def concat(steps: StepList, node: Node) -> None:
    alone = [_heads(steps, node, name) == 1 for name in node.inputs]
    map_rows(steps, node, node.inputs, integer=alone[0] + 2 * alone[1], parts=int(node.attr("n_head")))


def _heads(steps: StepList, node: Node, name: str) -> int:
    return heads_in_row(steps.context.graph, name, int(node.all_attrs().get("n_head") or 1))


# -- norms of a walk, and the best of the output ---------------------------------------------------------------------


def walk_norms(steps: StepList, norms: Sequence[FoldedNorm]) -> None:
    """One norm, or two of rows that exist at the same time, as one step of a walk."""
    c, parts, tasks = steps.context, [], 0
    for n in norms:
        names, width = n.before.inputs if n.before else n.norm.inputs, c.width(n.norm.name)
        x, addend = steps.value_of(names[0], "tokens"), steps.value_of(names[1], "tokens") if n.before else None
        other = [name for name in n.behind.inputs if name != n.norm.name] if n.behind else []
        residual = steps.value_of(other[0], "tokens") if other else None
        out, total = steps.new((n.behind or n.norm).name), steps.new(n.before.name) if n.before else None
        parts.append(NormPart(n.norm, x, addend, residual, total, out, width, tasks))
        tasks += c.shape.tokens * -(-width // UNIT)
    reads = [v for p in parts for v in (p.x, p.addend, p.residual)]
    needs = WalkNeeds(shared=normed_row_bytes(max(p.width for p in parts)), tier=Tier.MORE)
    writes = [v for p in parts for v in (p.total, p.out)]
    steps.add(norms[0].norm.name, WalkNorms(tuple(parts), tasks), reads, writes, needs)


def best_logits(steps: StepList, k: int, digest: bool) -> None:
    """Replace the output by its k largest values and their indices, and the hash of the row if it is asked for."""
    c, output = steps.context, steps.context.graph.output
    rows, width = c.rows("tokens"), c.width(output)
    x, n = steps.values[output, "tokens"], -(-width // 512)
    words = 2 * k + (DIGEST_WORDS if digest else 0)
    lists, out = Value(8 * rows * n * k, Layout.SCRATCH), Value(4 * rows * words)
    sums = Value(16 * rows * n, Layout.SCRATCH) if digest else None
    parts = [lists, sums] if sums else [lists]
    steps.results[:] = [(External(output, "outputs", words), out)]
    steps.add(output, BestLogits(x, lists, sums, out, rows, width, n, k, False), [x], parts)
    steps.add(output, BestLogits(x, lists, sums, out, rows, width, n, k, True), parts, [out])
