"""The compiler of the wgpu engine: every group of a graph's plan becomes dispatches, in order.

`_SINGLES` has a row for each operation. The modules beside it compile one kind of operation each, into a
`ProgramBuilder`. Touch this module when the engine gets a further operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from assay.engines.plan.batching import External
from assay.engines.plan.fuse import Attention, Gated, Products, Single, fuse
from assay.engines.plan.state_layout import cache_pools
from assay.engines.plan.values import row_width
from assay.engines.wgpu import attention_dispatches as attention
from assay.engines.wgpu import expert_dispatches as experts
from assay.engines.wgpu import product_dispatches as products
from assay.engines.wgpu import recurrent_dispatches as recurrent
from assay.engines.wgpu import row_dispatches as rows
from assay.engines.wgpu.dispatches import DispatchPlan, KeptScores, View, share_memory
from assay.engines.wgpu.program_builder import PlacedWeights, ProgramBuilder, ProgramShape
from assay.errors import AssayError
from assay.graph import Graph, Node, Trait

GATES = ("glu", "glu_split")


def compile_dispatches(
    graph: Graph, weights: PlacedWeights, shape: ProgramShape, keep: Collection[str] = ()
) -> DispatchPlan:
    """The program that fills the cache, gives the logits, and keeps the nodes in `keep`."""
    plan = fuse(graph, frozenset(keep), weights.format, GATES)
    build = ProgramBuilder(graph, weights, shape, frozenset(keep), domains=plan.domains, pools=cache_pools(graph))
    build.wanted = _read_as_blocks(build, plan.groups)
    for name in graph.given:
        view = build.memory(name, "tokens", row_width(graph, name))
        build.values[name, "tokens"] = view
        build.results.append((External(name, "tokens", view.width, given=True), view))
    if any(isinstance(group, Attention) for group in plan.groups):
        build.emit("key_positions", ("T", 1, 1), {}, step="step", positions="positions")
    for group in plan.groups:
        match group:
            case Single(node):
                _single(build, node)
            case Products(together):
                products.products(build, together)
            case Gated():
                products.gated(build, group)
            case Attention():
                attention.attention(build, group)
    attention.write_pools(build)
    return _finished(build)


def _finished(build: ProgramBuilder) -> DispatchPlan:
    """The plan, with memory shared between values that do not live at the same time."""
    logits = build.values[build.graph.output, build.domains[build.graph.output]]
    if build.shape.best:
        numbers = {"width": logits.width, **logits.numbers("x")}
        build.emit("best", ("R", 1, 1), numbers, x=logits.buffer, chosen="chosen")
    held = {found.buffer for _, found in build.results if not isinstance(found, str)} | {logits.buffer}
    dispatches, sizes, place = share_memory(build.dispatches, build.sizes, held)

    def placed(found: View | KeptScores | str) -> View | KeptScores | str:
        return found if isinstance(found, str) else replace(found, buffer=place.get(found.buffer, found.buffer))

    for name in held - place.keys():  # values that are given and never read
        sizes[name] = build.sizes[name]
    results = tuple((external, placed(found)) for external, found in build.results)
    logits = replace(logits, buffer=place.get(logits.buffer, logits.buffer))
    return DispatchPlan(dispatches, sizes, results, tuple(build.tables), logits)


def _read_as_blocks(build: ProgramBuilder, groups: Collection[object]) -> set[tuple[str, str]]:
    """The values that products read as int8 blocks, each with the domain of its rows."""
    found: set[tuple[str, str]] = set()
    for group in groups:
        linear = group.products[0].linear if isinstance(group, Products) else None
        linear = group.gate if isinstance(group, Gated) else linear
        if linear and build.weights.format(linear.weights[0]) == "q8":
            last = group.glu if isinstance(group, Gated) else linear
            found.add((linear.inputs[0], build.domains[last.name]))
    for name, domain in list(found):  # joined heads are the value before
        node = build.graph.by_name.get(name)
        while node and node.has(Trait.RESHAPES):
            found.add((node.inputs[0], domain))
            node = build.graph.by_name.get(node.inputs[0])
    return found


def _single(build: ProgramBuilder, node: Node) -> None:
    if node.op not in _SINGLES:
        raise AssayError(f"node {node.name}: the wgpu engine does not know the operation {node.op}; use --engine cpu")
    _SINGLES[node.op](build, node)


# A row for each operation. Linears and attention are compiled in groups, so they have no row.
_SINGLES: dict[str, Callable[[ProgramBuilder, Node], None]] = {
    "embed": rows.embed,
    **dict.fromkeys(("rms_norm", "layer_norm", "l2_norm"), rows.norm),
    **dict.fromkeys(("bias", "add_row", "mul_weight"), rows.with_vector),
    **dict.fromkeys(("scale", "softcap", "sigmoid", "clamp", "clamp_min", "add_scalar", "act", "softplus", "exp"),
                    rows.map_value),
    **dict.fromkeys(("add", "mul", "div", "glu", "glu_oai", "expert_scale", "expert_input"), rows.pair),
    "glu_split": rows.glu_split,
    "slice": rows.slice_of,
    "repeat_heads": rows.repeat_heads,
    "join": rows.join,
    **dict.fromkeys(("head_gain", "add_gain"), rows.per_head),
    "causal_conv": recurrent.convolution,
    **dict.fromkeys(recurrent.OPERANDS, recurrent.scan),
    "shift": recurrent.shift,
    "head_bonus": recurrent.head_bonus,
    **dict.fromkeys(("lerp", "lerp_row"), rows.lerp),
    "topk": rows.topk,
    **dict.fromkeys(("merge_heads", "split_heads"), rows.relabel),
    "rope": rows.rope,
    "rope_given": rows.rope_given,
    "cache": attention.cache,
    **dict.fromkeys(("softmax", "argsort", "row_sum"), rows.row),
    "gather": experts.gather,
    "expert_linear": products.expert_linear,
    "head_linear": products.head_linear,
    **dict.fromkeys(("expert_bias", "expert_gain"), experts.expert_rows),
    "expert_sum": experts.expert_sum,
}  # fmt: skip
