"""Generators of the grammar for layers that leave a step out: it is done there as well, on one operand.

Some layers rotate queries and keys, norm or scale them, and others do not. An engine that asks for the kind of the
layer at one operand and forgets it at the other does the step there. Both at once is `rope-nope-layer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.graph import INPUTS, Node, split
from assay.verify.faults.description import COUNTED, Description, features, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, layer, role, sibling, standard

_OPS = frozenset({"rope", "rms_norm", "l2_norm", "scale", "pos_scale", "softcap", "clamp"})
_ROTATED = "rope-nope-layer"


def elsewhere(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The steps that some layers have before an operand of one of these nodes, and others have not."""
    graph = c.model.graph
    for what in dict.fromkeys(role(node) for node in nodes if layer(node) is not None):
        alike = [node for node in graph if role(node) == what and layer(node) is not None]
        sources = {(k, split(name)[0]) for node in alike for k, name in enumerate(node.inputs)}
        seen = set()
        for there in alike:
            for k, name in enumerate(there.inputs):
                step = graph.by_name.get(name)
                if step is None or step.op not in _OPS or layer(step) != layer(there) or (k, role(step)) in seen:
                    continue
                seen.add((k, role(step)))
                source = split(step.inputs[0])[0]
                if (k, source) in sources and features(c, step.inputs[0]):
                    done = "is rotated" if step.op == "rope" else f"gets the {step.op} of {role(step)}"
                    label = f"{source} {done} in the layers that leave it out, where {what} reads it"
                    fault = _ROTATED if step.op == "rope" else COUNTED
                    yield fault, placed(label, _done(k, role(step), source), (there.op,), what)


def _done(k: int, what: str, source: str) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        at = layer(node)
        if at is None or k >= len(node.inputs) or split(node.inputs[k])[0] != source or sibling(c, node, what):
            return None
        steps = [n for n in c.model.graph if role(n) == what and layer(n) is not None]
        step = min(steps, key=lambda n: abs((layer(n) or 0) - at), default=None)
        if step is None or any(name not in INPUTS for name in step.inputs[1:]):
            return None
        own, done, n, m = standard(node), standard(step), len(node.inputs), len(step.inputs) - 1

        def run(*operands: Array) -> Array:
            inputs, more = list(operands[:n]), operands[n : n + m]
            weights, others = operands[n + m : n + m + len(node.weights)], operands[n + m + len(node.weights) :]
            inputs[k] = np.asarray(done(inputs[k], *more, *others))
            return own(*inputs, *weights)

        joint = replace(node, inputs=(*node.inputs, *step.inputs[1:]), weights=(*node.weights, *step.weights))
        return Change(joint, run)

    return edit


GENERATORS = (elsewhere,)
