"""Nodes and graphs: what is computed, with no numbers in it.

A graph is a flat tuple of nodes in execution order. Every node has one name and every name one value.
Building, checking and rewriting are pure functions of these frozen objects; an engine only reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from assay.errors import AssayError
from assay.graph.names import split
from assay.graph.ops import OPS, REQUIRED, Shape, ShapeError, Trait

# The values a step is given. They are named like nodes and never computed.
INPUTS: dict[str, Shape] = {"inp_tokens": ("T",), "inp_pos": ("T",), "inp_kpos": ("S",)}


class GraphError(AssayError):
    """A graph that cannot be run; the message names the node."""


@dataclass(frozen=True)
class Node:
    """One value: `name = op(inputs; weights; attrs)`. Weights are GGUF tensor names."""

    name: str
    op: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def has(self, trait: Trait) -> bool:
        """Whether its operation has the trait, or one of several joined by `|`."""
        return OPS[self.op].traits._value_ & trait._value_ != 0  # `Flag.__and__` is a hundred times slower

    def attr(self, key: str) -> Any:
        """The attribute, or the operation's default."""
        return self.attrs[key] if key in self.attrs else OPS[self.op].attrs[key]

    def all_attrs(self) -> dict[str, Any]:
        return {**OPS[self.op].attrs, **self.attrs}

    def with_attrs(self, **changes: Any) -> Node:
        return replace(self, attrs={**self.attrs, **changes})

    def __str__(self) -> str:
        operands = ", ".join((*self.inputs, *self.weights))
        attrs = ", ".join(f"{k}={v!r}" for k, v in sorted(self.attrs.items()))
        return f"{self.name} = {self.op}({operands}{'; ' + attrs if attrs else ''})"


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order. `weights` maps each GGUF tensor name to its row-major shape.

    `given` are the values that the caller brings beside `INPUTS`, with their shapes: a part of a larger graph reads
    what the parts before it have computed. `embedding` is the node that stands for the text: pooled as the file says,
    or a row a token.
    """

    nodes: tuple[Node, ...]
    weights: Mapping[str, tuple[int, ...]]
    output: str = "result_output"
    given: Mapping[str, Shape] = field(default_factory=dict)
    embedding: str = ""

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def order(self) -> dict[str, int]:
        """The place of every node; an input has none."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def __getitem__(self, name: str) -> Node:
        return self.by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every node. Raises GraphError at the first node that does not fit."""
        return _check(self)

    def check(self) -> Graph:
        """Itself, if valid."""
        _ = self.shapes
        return self

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """For every value, the nodes that read it, in order."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node.name)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def causal(self) -> bool:
        """No token sees a later one: a sequence may be run in pieces over a cache, not only as a whole."""
        return all(node.attr("causal") for node in self.nodes if node.op == "attn_softmax")

    @cached_property
    def whole(self) -> bool:
        """A sequence must be run at once: a token sees a later one, keys are not cached, or the output is pooled."""
        return self.output in self.pooled or any(
            node.op == "attn_softmax" and (not node.attr("causal") or self.shapes[node.name][-1] == "T")
            for node in self.nodes
        )

    @cached_property
    def pooled(self) -> frozenset[str]:
        """The nodes that are computed from all tokens at once."""
        found: set[str] = set()
        for node in self.nodes:
            if node.op == "pool" or not found.isdisjoint(node.inputs):
                found.add(node.name)
        return frozenset(found)

    @property
    def generates(self) -> bool:
        """It ends in logits: what follows a text can be drawn. An encoder ends in rows of its text."""
        return self.output == "result_output"

    @cached_property
    def max_positions(self) -> int | None:
        """How many positions a table of learned ones has; None where any will do."""
        tables = [n.weights[0] for n in self.nodes if n.op == "embed" and n.inputs == ("inp_pos",)]
        return min((self.weights[name][0] for name in tables), default=None)

    def ancestors(self, targets: Collection[str], known: Collection[str] = ()) -> set[str]:
        """The targets and every value they are computed from, back to the inputs or to what is `known`."""
        found = set(targets)
        for node in reversed(self.nodes):
            if node.name in found and node.name not in known:
                found.update(node.inputs)
        return found

    @cached_property
    def layers(self) -> range:
        """The layers that its nodes belong to."""
        found = [layer for node in self.nodes if (layer := split(node.name)[1]) is not None]
        return range(min(found), max(found) + 1) if found else range(0)

    def part(self, first: int, last: int) -> Graph:
        """Layers [first, last) as a graph of its own: what it reads from outside is `given`, its last node the output.

        What comes before the first layer goes with it, what comes after the last layer with that. The parts of a graph
        run one after the other compute what the graph computes; a cut that keys or values would have to cross is
        refused, because the cache of a part is its own.
        """
        layers = self.layers
        if not layers.start <= first < last <= layers.stop:
            raise GraphError(
                f"graph: no layers {first} to {last - 1} (found {last - first} from {first}, "
                f"expected some of {layers.start} to {layers.stop - 1})"
            )
        chosen: list[Node] = []
        layer = layers.start
        for node in self.nodes:
            own = split(node.name)[1]
            layer = layer if own is None else own
            if first <= layer < last:
                chosen.append(node)
        inside = {node.name for node in chosen}
        outside = [n for node in chosen for n in node.inputs if n not in inside and n not in INPUTS]
        given = {name: self.shapes[name] for name in outside}
        for name, shape in given.items():
            if "S" in shape:
                raise GraphError(f"node {name}: read by layers {first} to {last - 1} from outside; cut elsewhere")
        output = self.output if self.output in inside else chosen[-1].name
        embedding = self.embedding if self.embedding in inside else ""
        return replace(self, nodes=tuple(chosen), output=output, given=given, embedding=embedding)

    def rewrite(self, change: Callable[[Node], Node | Iterable[Node] | None]) -> Graph:
        """The graph with every node replaced by what `change` gives: a node, several, or None to leave it."""
        out: list[Node] = []
        for node in self.nodes:
            new = change(node)
            if new is None:
                out.append(node)
            elif isinstance(new, Node):
                out.append(new)
            else:
                out.extend(new)
        return replace(self, nodes=tuple(out))

    def rename_input(self, old: str, new: str, where: Callable[[Node], bool] = lambda _: True) -> Graph:
        """Every chosen reader of `old` reads `new` instead."""
        return self.rewrite(
            lambda n: replace(n, inputs=tuple(new if i == old else i for i in n.inputs)) if where(n) else None
        )

    def text(self) -> str:
        """One line a node, with its shape: what `inspect --graph` prints."""
        shapes = self.shapes
        left = [str(node) for node in self.nodes]
        width = min(max(map(len, left), default=0), 90)
        return "\n".join(
            f"{line:<{width}}  [{', '.join(map(str, shapes[n.name]))}]"
            for line, n in zip(left, self.nodes, strict=True)
        )


def _check(graph: Graph) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {**INPUTS, **graph.given}
    for node in graph.nodes:
        where = f"node {node.name}"
        op = OPS.get(node.op)
        if op is None:
            raise GraphError(f"{where}: unknown operation {node.op!r}; known are {', '.join(OPS)}")
        if node.name in shapes:
            raise GraphError(f"{where}: the name is used twice; one name denotes one value")
        for kind, given, wanted in (("input", node.inputs, op.inputs), ("weight", node.weights, op.weights)):
            least = sum(not w.endswith("?") for w in wanted)
            if not least <= len(given) <= len(wanted):
                raise GraphError(
                    f"{where}: {node.op} takes {kind}s ({', '.join(wanted)}) (found {', '.join(given) or 'none'})"
                )
        for name in node.inputs:
            if name not in shapes:
                later = name in graph.by_name
                raise GraphError(f"{where}: input {name} is {'computed only later' if later else 'never computed'}")
        for name in node.weights:
            if name not in graph.weights:
                raise GraphError(f"{where}: tensor {name} is not in the file")
        for key in node.attrs:
            if key not in op.attrs:
                raise GraphError(f"{where}: {node.op} has no attribute {key!r}; it has {', '.join(op.attrs) or 'none'}")
        for key, default in op.attrs.items():
            if default is REQUIRED and key not in node.attrs:
                raise GraphError(f"{where}: {node.op} needs the attribute {key!r}")
        try:
            shapes[node.name] = op.shape(
                node.all_attrs(), [shapes[i] for i in node.inputs], [graph.weights[w] for w in node.weights]
            )
        except (ShapeError, IndexError, TypeError, ValueError, AssertionError) as error:
            raise GraphError(f"{where}: {node.op}: {error or 'operands have the wrong number of axes'}") from error
    if graph.output not in shapes:
        raise GraphError(f"graph: the output {graph.output} is never computed")
    return shapes
