"""Graphs: nodes in execution order, with no numbers in them.

A graph is a flat tuple of nodes. Every node has one name and every name one value. Checking and rewriting are pure
functions of frozen objects; an engine only reads them. Touch this when a question about whole graphs is asked in
several places, or when the validity rules change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from assay.errors import AssayError
from assay.graph.names import split
from assay.graph.node import Node
from assay.graph.ops import OPS, REQUIRED, Shape, ShapeError, Trait
from assay.graph.state import GraphState, declare

# The values that every step is given. They are named like nodes and never computed.
INPUTS: dict[str, Shape] = {"inp_tokens": ("T",), "inp_pos": ("T",), "inp_kpos": ("S",)}


class GraphError(AssayError):
    """A graph that cannot be run; the message names the node."""


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order. `weights` maps each GGUF tensor name to its row-major shape.

    `given` has the shapes of values that the caller supplies beside `INPUTS`: a part of a larger graph reads values
    that earlier parts have computed. `embedding` is the node whose value embeds the text: one pooled row if the file
    names a pooling, else a row for each token.
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
        """The index of every node in execution order. Inputs have no index."""
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
        """The graph itself, if it is valid; else raise GraphError."""
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
        """Whether no token sees a later one, so that a sequence may be run in several steps over a cache."""
        return all(node.attr("causal") for node in self.nodes if node.has(Trait.MASKS))

    @cached_property
    def whole(self) -> bool:
        """Whether a sequence must run in one step: tokens see later ones, keys are not cached, or rows are pooled."""
        return self.output in self.pooled or any(
            node.has(Trait.MASKS) and (not node.attr("causal") or self.shapes[node.name][-1] == "T")
            for node in self.nodes
        )

    @cached_property
    def pooled(self) -> frozenset[str]:
        """The pooled nodes and all nodes computed from them."""
        found: set[str] = set()
        for node in self.nodes:
            if node.has(Trait.POOLS) or not found.isdisjoint(node.inputs):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def state(self) -> GraphState:
        """The state that its layers keep between steps."""
        return declare(self)

    @property
    def generates(self) -> bool:
        """Whether it ends in logits, so that text can be generated. An encoder ends in embeddings."""
        return self.output == "result_output"

    @cached_property
    def max_positions(self) -> int | None:
        """The number of rows in a table of learned positions; None where there is no such table."""
        tables = [n.weights[0] for n in self.nodes if n.has(Trait.TABLE) and n.inputs == ("inp_pos",)]
        return min((self.weights[name][0] for name in tables), default=None)

    def ancestors(self, targets: Collection[str], known: Collection[str] = ()) -> set[str]:
        """The targets and every value that they are computed from, back to the inputs or to `known` values."""
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
        """Layers [first, last) as a separate graph: values read from outside are `given`, its last node is the output.

        Nodes before the first layer belong to the first part, nodes after the last layer to the last part. The parts,
        run one after the other, compute the same as the whole graph. A cut that keys or values would have to cross is
        refused, because every part has a cache of its own.
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
        """The graph with every node replaced by the result of `change`: a node, several, or None to leave it."""
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
        """The graph in which every reader of `old` that `where` selects reads `new`."""
        return self.rewrite(
            lambda n: replace(n, inputs=tuple(new if i == old else i for i in n.inputs)) if where(n) else None
        )

    def text(self) -> str:
        """One line for each node, with its shape, as `inspect --graph` prints it."""
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
