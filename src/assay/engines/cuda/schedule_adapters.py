"""Schedule LoRA adapters: two launches for each adapter of a matrix."""

from __future__ import annotations

from assay.engines.cuda.device_values import Value
from assay.engines.cuda.step_list import StepList
from assay.engines.cuda.steps import AdapterInputs, AdapterOutputs
from assay.engines.plan.fuse import is_adapter
from assay.errors import AssayError
from assay.graph import Node


def add_adapter(steps: StepList, node: Node) -> None:
    if not is_adapter(node):
        raise AssayError(f"node {node.name}: the cuda engine needs a scale for each token; use --engine reference")
    c, (base, x, scales) = steps.context, node.inputs
    domain, (a, b) = c.domain(node.name), node.weights
    rows, rank = c.rows(domain), int(c.graph.weights[a][0])
    before, rows_in, each = (steps.value_of(name, domain) for name in (base, x, scales))
    h, out = Value(4 * rows * rank), steps.new(node.name)
    inputs = AdapterInputs(rows_in, each, h, a, rows, c.width(x), rank, float(node.attr("factor")))
    steps.add(node.name, inputs, [rows_in, each], [h])
    outputs = AdapterOutputs(before, each, h, out, b, rows, c.width(node.name), rank)
    steps.add(node.name, outputs, [before, each, h], [out])
