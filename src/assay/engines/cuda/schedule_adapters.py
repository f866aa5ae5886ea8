"""Schedule LoRA adapters: two steps for each adapter of a matrix, as launches."""

from __future__ import annotations

from assay.engines.cuda.device_values import Value
from assay.engines.cuda.step_list import StepList
from assay.engines.cuda.steps import AdapterInputs, AdapterOutputs
from assay.engines.plan.fuse import Adapted


def schedule_adapters(steps: StepList, group: Adapted) -> None:
    for chain in group.chains:
        for node in chain:
            c, (base, x, scales) = steps.context, node.inputs
            domain, (a, b) = c.domain(node.name), node.weights
            rows, rank = c.rows(domain), int(c.graph.weights[a][0])
            values = [steps.value_of(name, domain) for name in (base, x, scales)]
            h, out = Value(4 * rows * rank), steps.new(node.name)
            inputs = AdapterInputs(*values[1:], h, a, rows, c.width(x), rank, float(node.attr("factor")))
            steps.add(node.name, inputs, values[1:], [h])
            outputs = AdapterOutputs(values[0], values[2], h, out, b, rows, c.width(node.name), rank)
            steps.add(node.name, outputs, [values[0], values[2], h], [out])
