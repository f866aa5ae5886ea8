"""The compilation context: the graph, its plan, the weights, the shape of a step, the device. All passes read it; no
pass changes it.

Touch this module when a pass needs another fact about the whole compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from assay.engines.cuda.layout import DeviceWeights
from assay.engines.cuda.shapes import CacheLayout, Shape
from assay.engines.cuda.steps import ExpertChoice
from assay.engines.plan.fuse import Plan
from assay.engines.plan.state_layout import slot_offsets
from assay.engines.plan.values import row_width
from assay.graph import Graph, Node, Trait

FEW_FLOAT_ROWS = 512  # rows of float weights up to which a walk of quantised weights multiplies them


@dataclass(frozen=True)
class DeviceLimits:
    """The device that a program is compiled for."""

    processors: int  # multiprocessors
    shared: int  # most bytes of shared memory of a block of threads


@dataclass(frozen=True)
class FoldedAttention:
    """Nodes that attention computes itself where every sequence has one token: cache writes and RoPE of q and k. In a
    walk, also the norms of their heads before RoPE, and a factor of q after it."""

    names: frozenset[str]  # the nodes that need no step of their own
    q: str  # the nodes that attention reads
    k: str
    v: str
    rope: Node | None = None
    norms: tuple[Node, Node] | None = None  # of q and of k
    factor: float = 1.0
    q_step: int = 0  # values from a head of q to the next, where q is a slice of a wider row; 0: its heads are adjacent


@dataclass(frozen=True)
class FoldedNorm:
    """A norm that is a step of a walk, with the add of its input and the add of its result."""

    norm: Node
    before: Node | None = None
    behind: Node | None = None

    @property
    def names(self) -> set[str]:
        return {n.name for n in (self.norm, self.before, self.behind) if n}


@dataclass(frozen=True)
class FoldedExperts:
    """The nodes of a layer's experts that two steps of a walk compute (folding_experts.py)."""

    names: frozenset[str]  # the nodes that need no step of their own
    last: str  # the node whose value the steps give: the weighted sum, or the residual add behind it
    x: str  # the experts' input
    logits: str  # the router's
    choice: ExpertChoice
    parts: tuple[tuple[Node, str], ...]  # gate and up, or up alone: the product, and the weights of its bias
    gating: Node
    down: tuple[Node, str]
    residual: str = ""
    addend: str = ""  # a row that is added before the residual, such as the shared expert's
    addend_gate: str = ""  # a value whose sigmoid multiplies that row


@dataclass(frozen=True)
class FoldedDelta:
    """The nodes around a gated delta rule that two steps of a walk compute (folding_delta.py)."""

    names: frozenset[str]  # the nodes that need no step of their own
    last: str  # the rule's result after norm and gate, which products read quantised
    conv: Node
    act: Node  # behind the convolution
    alpha: str  # input of the decay's softplus
    beta: str  # input of beta's sigmoid
    decay: Node  # softplus times weights
    length: Node  # the norm of q; that of k is alike
    rule: Node
    norm: Node
    gating: Node  # the gate's activation


@dataclass(frozen=True)
class Folds:
    """Nodes that the step of another node computes (folding.py)."""

    norms: Mapping[str, str] = field(default_factory=dict)  # The norm before a group of linears, by the first linear.
    attention: Mapping[str, FoldedAttention] = field(default_factory=dict)  # By kqv.
    walk_norms: Mapping[str, tuple[FoldedNorm, ...]] = field(default_factory=dict)  # By the first norm of a step.
    slices: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)  # In a walk, by the product's last node.
    gatings: Mapping[str, Node] = field(default_factory=dict)  # Activations that the quantising step computes.
    experts: Mapping[str, FoldedExperts] = field(default_factory=dict)  # In a walk, by the last node.
    windows: Mapping[str, Node] = field(default_factory=dict)  # In a walk: the activation behind a convolution.
    deltas: Mapping[str, FoldedDelta] = field(default_factory=dict)  # In a walk of one token, by the last node.

    @property
    def skipped(self) -> set[str]:
        """The nodes that need no step of their own."""
        found = {*self.norms.values(), *self.gatings}
        found |= {n.name for nodes in self.slices.values() for n in nodes}
        found |= {n.name for n in self.windows.values()}
        found |= {name for norms in self.walk_norms.values() for n in norms for name in n.names}
        found = found.union(*(f.names for f in self.attention.values()))
        found = found.union(*(f.names for f in self.deltas.values()))
        return found.union(*(f.names for f in self.experts.values()))


@dataclass(frozen=True)
class CompileContext:
    """One compilation: a graph, for one shape of a step."""

    graph: Graph
    tensors: DeviceWeights
    cache: CacheLayout
    shape: Shape
    keep: frozenset[str]
    limits: DeviceLimits
    cuts: tuple[tuple[int, int], ...]  # ways to cut query rows into tiles (shapes.py, tile_cuts)
    plan: Plan
    walk: bool = False  # whether products and attention become steps of a walk
    small_steps: bool = False  # and experts and single operations; of one token also recurrences
    folds: Folds = field(default_factory=Folds)
    host: Mapping[str, Graph] = field(default_factory=dict)  # parts that the host computes, by their last node

    def domain(self, name: str) -> str:
        """The rows of a value. Where every token is an output, output rows are token rows."""
        domain = self.plan.domains[name]
        return "tokens" if domain == "outputs" and self.shape.one else domain

    def rows(self, domain: str) -> int:
        return self.shape.rows(domain)

    def width(self, name: str) -> int:
        return row_width(self.graph, name)

    def wanted(self, node: Node) -> bool:
        """False if only outputs need the node and the step has none."""
        return self.domain(node.name) != "outputs" or self.shape.outputs > 0

    @cached_property
    def on_host(self) -> frozenset[str]:
        return frozenset(node.name for part in self.host.values() for node in part)

    @cached_property
    def state_floats(self) -> int:
        """Values of a state slot."""
        return slot_offsets(self.graph)[1]

    @cached_property
    def product_formats(self) -> frozenset[str]:
        """The weight formats of the products that a walk of several tokens would have."""
        ops = ("linear", "expert_linear")[: 1 + self.small_steps]
        weights = [n.weights[0] for n in self.graph if n.op in ops]
        return frozenset(self.tensors.layout(w).name for w in weights if not (self.small_steps and self.few_floats(w)))

    def few_floats(self, weights: str) -> bool:
        """Whether these are few rows of floats, which a walk of quantised weights multiplies."""
        return self.tensors.layout(weights).floats and int(self.graph.weights[weights][0]) <= FEW_FLOAT_ROWS

    def read_as(self, form: str, name: str, domain: str = "") -> bool:
        """Whether every reader multiplies the value in this form, in this domain, and nothing else reads it."""
        readers = [self.graph[reader] for reader in self.graph.users.get(name, ())]
        if len(readers) == 1 and readers[0].has(Trait.RESHAPES):
            return readers[0].name not in self.keep and self.read_as(form, readers[0].name, domain)
        return all(
            n.op == "linear"
            and self.tensors.format(n.weights[0]) == form
            and self.domain(n.name) == (domain or self.domain(n.name))
            for n in readers
        )
