"""Generators of the grammar for the order of steps: two neighbouring steps are computed in the other order.

    b(a(x), y)  becomes  a(b(x, y))      x + norm(f) becomes norm(x + f), act(x + b) becomes act(x) + b

The later step shows the result of both. The earlier one shows its operand, or the same result, as an engine prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from assay.graph import Node, Trait
from assay.graph.op_row import flat_width
from assay.verify.faults.description import EXCHANGED, PLACED_NORM, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, sibling, standard

# Steps of one operand that engines place differently, and steps that may come after them.
_ONE = frozenset({"rms_norm", "layer_norm", "scale", "bias", "act", "mul_weight", "clamp", "softcap", "sigmoid"})
_AFTER = _ONE | {"add", "mul", "expert_scale", "expert_sum", "expert_bias", "linear", "rope"}


def exchanged(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Two steps of which the second reads the first, and nobody else does."""
    graph = c.model.graph
    for later in nodes:
        if later.op not in _AFTER:
            continue
        for k, name in enumerate(later.inputs):
            earlier = graph.by_name.get(name)
            if earlier is None or earlier.op not in _ONE or _readers(c, name) != 1:
                continue
            shapes = {graph.shapes.get(value) for value in (*earlier.inputs, earlier.name)}
            if len(shapes) != 1 or flat_width(graph.shapes[later.name]) != flat_width(graph.shapes[name]):
                continue
            whole = later.has(Trait.SUMS) and later.op == "add" and earlier.has(Trait.NORM)
            fault = PLACED_NORM if whole else EXCHANGED
            for shown, words in ((False, ""), (True, "; both show the result")):
                label = f"{role(earlier)} is computed after {role(later)}, not before it{words}"
                edit = _swapped(role(earlier), role(later), k, both=shown)
                yield fault, placed(label, edit, (), role(earlier), role(later))


def _readers(c: Context, name: str) -> int:
    return sum(name in node.inputs for node in c.model.graph)


def _swapped(first: str, second: str, k: int, *, both: bool) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        earlier, later = sibling(c, node, first), sibling(c, node, second)
        if earlier is None or later is None or k >= len(later.inputs) or later.inputs[k] != earlier.name:
            return None
        if node.name == earlier.name and not both:
            return Change(replace(node, inputs=earlier.inputs[:1], weights=()), lambda x: x)
        before, after, n, m = standard(earlier), standard(later), len(later.inputs), len(later.weights)
        inputs = (*later.inputs[:k], earlier.inputs[0], *later.inputs[k + 1 :])
        joint = replace(node, inputs=inputs, weights=(*later.weights, *earlier.weights))

        def run(*operands: Array) -> Array:
            given, weights = operands[:n], operands[n:]
            y = after(*given, *weights[:m])
            return before(y, *weights[m:]).reshape(y.shape)

        return Change(joint, run)

    return edit


GENERATORS = (exchanged,)
