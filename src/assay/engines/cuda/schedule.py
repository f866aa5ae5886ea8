"""The schedule pass: from the plan of a graph to a list of kernel steps, for one shape of a forward pass.

The groups of engines/plan/fuse.py are taken in order. A group of products, a gate or an attention has its own module;
a single node has a row in SINGLE, by its operation. Touch SINGLE when the engine learns an operation.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.engines.cuda import schedule_attention as attention
from assay.engines.cuda import schedule_rows as rows
from assay.engines.cuda.abi.enumerations import MAP_OPS
from assay.engines.cuda.context import CompileContext
from assay.engines.cuda.folding import rope_of
from assay.engines.cuda.schedule_adapters import add_adapter
from assay.engines.cuda.schedule_experts import expert_product, host_experts, walk_experts
from assay.engines.cuda.schedule_products import schedule_gated, schedule_products
from assay.engines.cuda.schedule_recurrent import RECURRENT, advance_states, walk_delta
from assay.engines.cuda.step_list import Schedule, StepList
from assay.engines.plan.fuse import Attention, Gated, Products, Single
from assay.engines.plan.values import NUMBERS
from assay.errors import AssayError
from assay.graph import Node

# The function that schedules a single node, by its operation. Others of MAP_OPS are maps without arguments.
SINGLE: dict[str, Callable[[StepList, Node], None]] = {
    "embed": rows.embed,
    "rms_norm": rows.norm_rows,
    "layer_norm": rows.norm_rows,
    "rope": rows.rotate,
    "rope_given": rows.rotate_by_table,
    "cache": rows.cache,
    "merge_heads": rows.reshape,
    "split_heads": rows.reshape,
    "pos_scale": rows.scale_by_position,
    "pool": rows.pool_rows,
    "softmax": rows.row_of_threads,
    "argsort": rows.row_of_threads,
    "group_mask": rows.row_of_threads,
    "expert_linear": expert_product,
    "head_linear": expert_product,
    "kq": attention.kq,
    "attn_softmax": attention.attn_softmax,
    "kqv": attention.kqv,
    "bias": rows.map_vector,
    "mul_weight": rows.map_vector,
    "add_row": rows.add_row,
    "slice": rows.slice_columns,
    "topk": rows.topk,
    "concat": rows.concat,
    "glu": rows.map_activation,
    "act": rows.map_activation,
    "glu_split": rows.glu_split,
    "glu_oai": rows.glu_oai,
    "clamp": rows.clamp,
    **dict.fromkeys(NUMBERS, rows.map_number),
    "expert_bias": rows.map_expert_table,
    "expert_gain": rows.map_expert_table,
    "add_adapter": add_adapter,
    **RECURRENT,
}


def schedule(c: CompileContext) -> Schedule:
    """The steps of a program; raises NoWalk if they should be a walk and cannot."""
    steps, skipped = StepList(c), c.folds.skipped
    for name in c.graph.given:
        steps.given(name)
    if c.walk:  # tables first, because a step that no megakernel has would end the walk
        for folded in c.folds.attention.values():
            if folded.rope:
                rows.fill_rope_table(steps, rope_of(c, folded.rope), "tokens")
    for group in c.plan.groups:
        match group:
            case Single(node):
                if node.name in c.folds.walk_norms:
                    rows.walk_norms(steps, c.folds.walk_norms[node.name])
                elif node.name in c.folds.experts:
                    walk_experts(steps, c.folds.experts[node.name])
                elif node.name in c.folds.deltas:
                    walk_delta(steps, c.folds.deltas[node.name])
                elif node.name in c.host and c.wanted(node):
                    host_experts(steps, c.host[node.name])
                elif node.name not in skipped and node.name not in c.on_host and c.wanted(node):
                    _schedule_single(steps, node)
            case Products(products):
                if c.wanted(products[0].linear):
                    schedule_products(steps, group)
            case Gated():
                if c.wanted(group.glu):
                    schedule_gated(steps, group)
            case Attention():
                if c.wanted(group.kqv):
                    attention.schedule_attention(steps, group)
    if c.shape.best:
        rows.best_logits(steps, c.shape.best, c.shape.digest)
        if c.shape.states:
            advance_states(steps, steps.results[0][1])
    return steps.finish()


def _schedule_single(steps: StepList, node: Node) -> None:
    found = SINGLE.get(node.op) or (rows.map_node if node.op in MAP_OPS else None)
    if found is None:
        raise AssayError(f"node {node.name}: the cuda engine has no operation {node.op}; use --engine cpu")
    found(steps, node)
