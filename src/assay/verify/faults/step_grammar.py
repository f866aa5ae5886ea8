"""Generators of the grammar for steps: one is left out or done twice, two are exchanged, a sum has another sign.

    left out     a(x)        becomes  x
    twice        a(x)        becomes  a(a(x)); x + f becomes x + 2 f or 2 x + f
    exchanged    b(a(x), y)  becomes  a(b(x, y)): x + norm(f) becomes norm(x + f), act(x + b) becomes act(x) + b
    sign         x + f       becomes  x - f or f - x

Of two exchanged steps the later one shows the result of both. The earlier one shows its operand, or the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from assay.graph import Node, Trait, split
from assay.verify.faults.description import COUNTED, EXCHANGED, PLACED_NORM, Description, features, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, role, sibling, standard

# Steps of one operand that engines place differently, and steps that may come after them.
_ONE = frozenset({"rms_norm", "layer_norm", "scale", "bias", "act", "mul_weight", "clamp", "softcap", "sigmoid"})
_AFTER = _ONE | {"add", "mul", "expert_scale", "expert_sum", "expert_bias", "linear", "rope"}


def exchanged(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Two steps of which the second is the only reader of the first."""
    graph = c.model.graph
    for later in nodes:
        if later.op not in _AFTER:
            continue
        for k, name in enumerate(later.inputs):
            earlier = graph.by_name.get(name)
            if earlier is None or earlier.op not in _ONE or _readers(c, name) != 1:
                continue
            shapes = {graph.shapes.get(value) for value in (*earlier.inputs, earlier.name)}
            if len(shapes) != 1 or not features(c, name) or features(c, later.name) != features(c, name):
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


# -- left out, or twice --------------------------------------------------------------------------------------------

_OMITTED = _ONE | {"rope", "pos_scale", "mul", "expert_scale", "expert_bias", "l2_norm", "softmax", "div"}
_TWICE = _ONE | {"expert_scale", "expert_bias", "pos_scale", "mul", "div"}

_OF_ALL = ("bias", "rms_norm", "layer_norm", "scale")  # kernels of which a layer calls several


def counted(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A step that is left out: its first operand is its result. Or one that is done twice. In one role, or in all."""
    for op in dict.fromkeys(node.op for node in nodes):
        if op in _OF_ALL and len({role(n) for n in c.model.graph if n.op == op}) > 1:
            for words, (_, edit) in _COUNTS.items():
                yield COUNTED, placed(words.format(f"every {op}"), edit, (op,), when=_keeps_shape)
    for node in nodes:
        for words, (ops, edit) in _COUNTS.items():
            if node.op in ops and _keeps_shape(c, node):
                yield COUNTED, placed(words.format(role(node)), edit, (node.op,), role(node))


def _keeps_shape(c: Context, node: Node) -> bool:
    return 0 < features(c, node.name) == features(c, node.inputs[0])


def _left_out(c: Context, node: Node, p: float) -> Change | None:
    shape = c.model.graph.shapes[node.name]
    alone = replace(node, inputs=node.inputs[:1], weights=())
    return Change(alone, lambda x: x.reshape(len(x), *shape[1:]))


def _twice(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)

    def run(x: Array, *rest: Array) -> Array:
        return own(own(x, *rest).reshape(x.shape), *rest)

    return Change(node, run)


# By words: the operations that may have it, and the edit.
_COUNTS: dict[str, tuple[frozenset[str], Edit]] = {
    "{} is left out: its operand is passed on": (_OMITTED, _left_out),
    "{} is computed twice, the second time from itself": (_TWICE, _twice),
}


# -- the terms of a sum ----------------------------------------------------------------------------------------------

# Wrong results of a + b.
_SUMS: dict[str, Callable[[Array, Array], Array]] = {
    "{out} is {b} - {a}": lambda a, b: b - a,
    "{out} is {a} - {b}": lambda a, b: a - b,
    "{out} has {a} twice": lambda a, b: 2 * a + b,
    "{out} has {b} twice": lambda a, b: a + 2 * b,
    "{out} is {a} alone": lambda a, b: a,
    "{out} is {b} alone": lambda a, b: b,
    "{out} is {a} * {b}": lambda a, b: a * b,
}


def terms(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A sum of two values in which one is missing, there twice, or subtracted; a bias that is subtracted."""
    for node in nodes:
        if node.op == "add":
            names = {"out": role(node), "a": split(node.inputs[0])[0], "b": split(node.inputs[1])[0]}
            for words, formula in _SUMS.items():
                yield COUNTED, placed(words.format(**names), _sum(formula), ("add",), role(node))
        if node.op == "bias":
            yield COUNTED, placed(f"{role(node)} subtracts its bias", _unbiased, ("bias",), role(node))


def _sum(formula: Callable[[Array, Array], Array]) -> Edit:
    return lambda c, node, p: Change(node, lambda a, b: formula(a, b.reshape(a.shape)))


def _unbiased(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, b: x - b)


GENERATORS = (exchanged, counted, terms)
