"""The types of a fault: a row of the catalogue, and the edits of a graph that plant it.

A fault is planted node by node. A `Selector` says as data which nodes an edit applies to. The *edit* gives what a
faulty engine computes under the name of such a node, or None where the fault would change nothing there. The result
must run; an exception in it is a bug of the catalogue. So one edit serves three uses: a single node recomputed from a
dump's own inputs, a segment between two observed nodes, and the whole model.

A sequence that was fed in several steps is one run here, as it is one dump: row t is token t, whichever step computed
it. A fault of the decode steps alone is an edit that changes only their rows.

Touch this module to change what an edit can say. The edits themselves are in the modules beside it, by stage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import FUNCTIONS
from assay.graph import INPUTS, Graph, Node, Trait, join, split
from assay.models import HParams, Model
from assay.models.hparams import Layer
from assay.verify.dumps.draft_tracing import PREFIX
from assay.verify.faults.kinds import FaultKind, Probe, Stage

log = logging.getLogger("assay.plugins")
Array = NDArray[Any]
Function = Callable[..., Array]


def _heads(row: Layer) -> tuple[int, ...]:
    return row.n_head, row.n_head_kv, row.n_embd_head, row.n_embd_head_v


@dataclass(frozen=True)
class Context:
    """The surroundings that an edit may read: the model, the tokens, and how they were fed."""

    model: Model
    steps: tuple[int, ...] = ()  # tokens of each step: (6, 1, 1) is a prompt of six and two decode steps
    layer: int = 0  # the layer whose heads `hp` describes
    tokens: tuple[int, ...] = ()  # the ids, where they are known
    chosen: Mapping[str, Array] = field(
        default_factory=dict, compare=False
    )  # choices in the order of the dump, by node

    @property
    def hp(self) -> HParams:
        """The hyper-parameters of the model, with the head counts and widths of this layer.

        They may differ by layer.
        """
        found = self.model.hparams
        return replace(found, layers=(found.layers[self.layer], *found.layers[1:])) if self.layer else found

    def at(self, node: Node) -> Context:
        """The same context, for the layer of a node."""
        if self._alike:
            return self
        own, rows = split(node.name)[1] or 0, self.model.hparams.layers
        own = min(own, len(rows) - 1)  # a draft head is the layer after the last
        return self if _heads(rows[own]) == _heads(rows[0]) else replace(self, layer=own)

    @cached_property
    def _alike(self) -> bool:
        """Do all layers have the same heads?"""
        return len({_heads(row) for row in self.model.hparams.layers}) <= 1

    def starts(self, n_tokens: int) -> NDArray[np.int64]:
        """For every row, the index of the first row of its step."""
        steps = self.steps or (n_tokens,)
        found = np.repeat(np.cumsum((0, *steps[:-1])), steps)
        return np.asarray(found[:n_tokens], np.int64)

    def ends(self, n_tokens: int) -> NDArray[np.int64]:
        """For every row, the number of keys that the cache holds after its step."""
        steps = self.steps or (n_tokens,)
        return np.asarray(np.repeat(np.cumsum(steps), steps)[:n_tokens], np.int64)

    def decoding(self, n_tokens: int) -> NDArray[np.bool_]:
        """Which rows came from a step after the first."""
        return self.starts(n_tokens) > 0


@dataclass(frozen=True)
class Change:
    """The computation of a faulty engine under the node's name: another node, or a function of its operands.

    For a node that keeps state of a fixed size the function takes the state last, and gives value and new state.
    `preview` computes the first features alone. It rules out wrong guesses without decoding a large tensor.
    """

    node: Node
    function: Callable[..., Any] | None = None
    preview: Function | None = None


Edit = Callable[[Context, Node, float], Change | None]
_FEW_PASS, _MOST_PASS = 0.005, 0.98  # smallest and largest limit worth trying, as a share of the largest value


@dataclass(frozen=True)
class Search:
    """The range of a family's one parameter: `common` values first, then a scan and a refinement."""

    lo: float
    hi: float
    common: tuple[float, ...] = ()
    log: bool = True
    whole: bool = False
    points: int = 25
    neutral: float | None = None  # the right value
    nominal: bool = False  # values are names without an order, so all are tried
    scan: Callable[[Context, Sequence[Node]], Sequence[float]] | None = (
        None  # gives the values, where they depend on the file and the nodes
    )
    rows: bool = False  # it counts rows: a value above the number of rows changes nothing
    limit: bool = False  # it limits values: a limit above the largest value changes nothing

    def grid(self, rows: int = 0, met: tuple[float, float] = (0.0, 0.0)) -> list[float]:
        """The values to try: those that can show in a run of `rows` rows, or, for a limit, within the sizes `met`."""
        if self.points == 0:
            return self.usual(rows, met)
        space = np.geomspace if self.log and self.lo > 0 else np.linspace
        lo, hi, points = self.lo, self.hi, self.points
        if self.rows and rows:
            hi = min(hi, rows - 1.0)
            if hi - lo < points:
                space, points = np.linspace, max(0, int(hi - lo) + 1)  # every number of rows
        if self.limit and met[1]:
            lo, hi = max(_FEW_PASS * met[1], met[0]), _MOST_PASS * met[1]
            points = points if lo < hi else 0
        scan = [float(v) for v in space(lo, hi, points)]
        if self.whole:
            scan = [float(round(v)) for v in scan]
        return [v for v in dict.fromkeys((*self.usual(rows, met), *scan)) if v != self.neutral]

    def usual(self, rows: int = 0, met: tuple[float, float] = (0.0, 0.0)) -> list[float]:
        """The common values that can show; a limit must let most values pass."""
        if self.limit and met[1]:
            return [v for v in self.common if met[0] <= v < met[1]]
        return [v for v in self.common if v < (rows if self.rows and rows else np.inf)]


@dataclass(frozen=True)
class Selector:
    """Which nodes an edit applies to. Every condition that is given must hold."""

    ops: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()  # names without the layer: `Qcur` of `Qcur-3`
    weighted: bool | None = None  # the node reads weights, or reads none
    when: Callable[[Context, Node], bool] | None = None

    def matches(self, node: Node) -> bool:
        """Do the node's operation, role and weights fit? Needs no context, and is asked of every node."""
        if self.ops and node.op not in self.ops:
            return False
        if self.weighted is not None and bool(node.weights) != self.weighted:
            return False
        return not self.roles or role(node) in self.roles

    def selects(self, c: Context, node: Node) -> bool:
        return self.matches(node) and (self.when is None or self.when(c, node))


def selector(
    op: str | Iterable[str] = (),
    roles: str | Iterable[str] = (),
    weighted: bool | None = None,
    when: Callable[[Context, Node], bool] | None = None,
) -> Selector:
    """The nodes of these operations and roles, of which `when` holds."""
    ops, names = ((given,) if isinstance(given, str) else tuple(given) for given in (op, roles))
    return Selector(frozenset(ops), frozenset(names), weighted, when)


ANYWHERE = Selector()


@dataclass(frozen=True)
class Variant:
    """One way to commit a fault. `label` says it in a few words, with {p} for the parameter of a family."""

    label: str
    edit: Edit
    search: Search | None = None
    decode_only: bool = False
    where: Selector = ANYWHERE
    added_by: str = ""  # set by `register_fault`: if the edit fails, the failure is logged and the variant left out

    def text(self, p: float = 0.0) -> str:
        label = self.label.format(p=f"{p:.6g}") if self.search else self.label
        return f"{label}, in the decode steps only" if self.decode_only else label

    def at(self, context: Context, node: Node, p: float = 0.0) -> Change | None:
        """The node with the fault planted; None where the fault does not apply."""
        if not self.where.matches(node):
            return None
        try:
            change = self.edited(context.at(node), node, p)
            return change if change is not None and _possible(context, node, change) else None
        except Exception as error:
            if not self.added_by:
                raise
            self.warn(error)
            return None

    def edited(self, here: Context, node: Node, p: float) -> Change | None:
        """The edit of a selected node, which another fault may have changed already."""
        return self.edit(here, node, p) if self.where.selects(here, node) else None

    def warn(self, error: Exception) -> None:
        """Log that the variant of another package failed."""
        _warn_once(self.added_by, self.label, f"{type(error).__name__}: {error}")


@cache
def _warn_once(fault: str, label: str, reason: str) -> None:
    log.warning("fault %s (%s): it failed and is left out (%s)", fault, label, reason)


def _possible(c: Context, node: Node, change: Change) -> bool:
    """Do the operands exist in this model, and does a weight that replaces another have its shape?"""
    graph, tensors, new = c.model.graph, c.model.file.tensors, change.node
    if not all(i in graph or i in INPUTS for i in new.inputs) or not all(w in tensors for w in new.weights):
        return False
    if change.function is not None or (new.op, len(new.weights)) != (node.op, len(node.weights)):
        return True
    return all(tensors[a].shape == tensors[b].shape for a, b in zip(new.weights, node.weights, strict=True))


@dataclass(frozen=True)
class Fault:
    """One row of the catalogue."""

    id: str
    stage: Stage
    wrong: str  # The formula of a faulty engine.
    right: str  # The right formula.
    kinds: tuple[FaultKind, ...]
    run: Probe = Probe.ANY  # The kind of the cheapest run that exposes it.
    symptom: str = ""  # The sign that a user of the engine notices.
    tell: str = ""  # The fingerprint in the numbers.
    shows: str = ""  # The first tensor that differs.
    at_zero: str = ""  # The sign in a run of one token at position 0.
    probe: str = ""  # The cheapest run that exposes it, in words.
    evidence: str = ""  # Where the mistake was found: letters that `docs/reference/faults.md` explains.
    sources: str = ""  # Links, separated by spaces.
    waits: str = ""  # Why it is listed and not planted.
    aliases: tuple[str, ...] = ()  # Names that other lists give to the same mistake, or to one form of it.
    variants: tuple[Variant, ...] = field(default=(), compare=False)

    @property
    def links(self) -> list[tuple[str, str]]:
        return [link(word) for word in self.sources.split()]


def link(word: str) -> tuple[str, str]:
    """`owner/repo/issues/7` gives its label and address; anything else is `label=address`."""
    if "=" in word and word.split("=", 1)[1].startswith("http"):
        label, address = word.split("=", 1)
        return label.replace("_", " "), address
    owner, repo, kind, number = word.split("/")
    return f"{repo}#{number}", f"https://github.com/{owner}/{repo}/{kind}/{number}"


PLANTS: dict[str, list[Variant]] = {}


def plant(
    fault: str,
    label: str,
    search: Search | None = None,
    *,
    op: str | Iterable[str] = (),
    roles: str | Iterable[str] = (),
    weighted: bool | None = None,
    when: Callable[[Context, Node], bool] | None = None,
) -> Callable[[Edit], Edit]:
    """Register an edit as one way to commit `fault`, at the nodes that the other arguments select (`Selector`).

    The edit sees selected nodes only. It may still give None, where the fault would change nothing.
    """

    def register(edit: Edit) -> Edit:
        variant = Variant(label, edit, search, where=selector(op, roles, weighted, when))
        PLANTS.setdefault(fault, []).append(variant)
        return edit

    return register


# -- the small vocabulary of edits ---------------------------------------------------------------------------


def role(node: Node) -> str:
    """The name without the layer, and without the prefix of a draft head's nodes."""
    return split(node.name)[0].removeprefix(PREFIX)


def layer(node: Node) -> int | None:
    return split(node.name)[1]


def sibling(c: Context, node: Node, name: str) -> Node | None:
    """The node of that role in the same layer, if the architecture has one."""
    prefix = PREFIX if node.name.startswith(PREFIX) else ""
    return c.model.graph.by_name.get(join(prefix + name, layer(node)))


def is_output(c: Context, node: Node) -> bool:
    """Does the node give the logits?"""
    return node.name == c.model.graph.output and layer(node) is None  # a cut graph ends with a layer's node


def width(c: Context, node: Node) -> int:
    """The length of the last axis of the node's value: the width of a head, where it has heads."""
    return int(c.model.graph.shapes[node.name][-1])


def by_heads(c: Context, name: str) -> bool:
    """Is the value cut into heads, [T, H, D]? The keys and values of an encoder, which has no cache, are not."""
    shape = c.model.graph.shapes.get(name, ())
    return len(shape) == 3


def standard(node: Node) -> Function:
    """The node's own definition as a function of inputs and weights."""
    attrs = _without_state(node)
    function = FUNCTIONS[node.op]
    return lambda *operands: function(*operands, **attrs)


def _without_state(node: Node) -> dict[str, Any]:
    """The attributes that the node's function takes. State of a fixed size is passed after the weights instead."""
    attrs = node.all_attrs()
    if node.has(Trait.STATE):
        attrs.pop("state", None)
    return attrs


def with_weight(node: Node, value: Callable[[], Array]) -> Change:
    """The node with other numbers in place of its weight, the first one where it has several."""
    attrs, function = _without_state(node), FUNCTIONS[node.op]
    n = len(node.inputs)  # what follows are further weights, and state, which functions take after the weights

    def run(*inputs: Array) -> Array:
        dtype = inputs[0].dtype if inputs[0].dtype.kind == "f" else np.float64
        with np.errstate(all="ignore"):
            return function(*inputs[:n], value().astype(dtype, copy=False), *inputs[n:], **attrs)

    return Change(replace(node, weights=node.weights[1:]), run)


def on_rows(context: Context, node: Node, change: Change, chosen: NDArray[np.bool_] | None = None) -> Change:
    """The change in the chosen rows (those of the decode steps), the definition in the others."""
    right, wrong = standard(node), change.function or standard(change.node)
    n_in, n_wrong = len(node.inputs), len(change.node.inputs)
    joint = replace(
        change.node, inputs=(*node.inputs, *change.node.inputs), weights=(*node.weights, *change.node.weights)
    )

    def run(*operands: Array) -> Array:
        inputs, weights = operands[: n_in + n_wrong], operands[n_in + n_wrong :]
        good = right(*inputs[:n_in], *weights[: len(node.weights)])
        bad = wrong(*inputs[n_in:], *weights[len(node.weights) :])
        axis = 1 if good.ndim == 3 and node.has(Trait.SCORES) else 0
        rows = context.decoding(good.shape[axis]) if chosen is None else chosen
        shape = [1] * good.ndim
        shape[axis] = len(rows)
        return np.where(rows.reshape(shape), bad, good)

    return Change(joint, run)


def after_prompt(context: Context, node: Node, change: Change) -> Change:
    """The change of a recurrence in the decode steps; they begin with the state that the right prompt leaves."""
    right: Callable[..., Any] = standard(node)
    wrong: Callable[..., Any] = change.function or standard(change.node)
    n_in, n_wrong = len(node.inputs), len(change.node.inputs)
    joint = replace(
        change.node, inputs=(*node.inputs, *change.node.inputs), weights=(*node.weights, *change.node.weights)
    )

    def run(*operands: Array) -> tuple[Array, Array]:
        inputs, weights, state = operands[: n_in + n_wrong], operands[n_in + n_wrong : -1], operands[-1]
        n = int(np.count_nonzero(~context.decoding(len(inputs[0]))))
        good, state = right(*(x[:n] for x in inputs[:n_in]), *weights[: len(node.weights)], state)
        if n == len(inputs[0]):
            return good, state
        bad, state = wrong(*(x[n:] for x in inputs[n_in:]), *weights[len(node.weights) :], state)
        return np.concatenate([good, bad]), state

    return Change(joint, run)


def decode_only(variant: Variant) -> Variant:
    """The same fault in the kernels of the decode step alone."""

    def edit(context: Context, node: Node, p: float) -> Change | None:
        change = variant.edit(context, node, p)
        if change is None or node.has(Trait.CACHES):
            return None
        return after_prompt(context, node, change) if node.has(Trait.STATE) else on_rows(context, node, change)

    return replace(variant, edit=edit, decode_only=True)


def prompt_only(variant: Variant) -> Variant:
    """The same fault in the kernels of the prompt alone."""

    def edit(context: Context, node: Node, p: float) -> Change | None:
        change = variant.edit(context, node, p)
        if change is None or node.has(Trait.CACHES | Trait.STATE):
            return None
        return on_rows(context, node, change, ~context.decoding(sum(context.steps)))

    return replace(variant, edit=edit, label=f"{variant.label}, in the prompt only")


@dataclass(frozen=True)
class Planted:
    """A graph with faults in it: run it with `interpret(graph, …, functions=functions)`."""

    graph: Graph
    functions: Mapping[str, Function]
    touched: frozenset[str]


def sites(context: Context, variant: Variant, p: float = 0.0) -> list[str]:
    """The nodes that the variant changes, in order."""
    return [node.name for node in context.model.graph if variant.at(context, node, p) is not None]


def planted(context: Context, variant: Variant, p: float = 0.0, where: Iterable[str] | None = None) -> Planted:
    """The model's graph with the fault at the nodes `where`, or wherever it applies."""
    return planted_all(context, [(variant, p, where)])


def planted_all(context: Context, faults: Iterable[tuple[Variant, float, Iterable[str] | None]]) -> Planted:
    """Several faults in one graph; where two select the same node, the first is planted."""
    changes: dict[str, Change] = {}
    for variant, p, where in faults:
        names = None if where is None else set(where)
        for node in context.model.graph:
            if node.name in changes or (names is not None and node.name not in names):
                continue
            change = variant.at(context, node, p)
            if change is not None:
                changes[node.name] = change
    graph = context.model.graph.rewrite(lambda n: changes[n.name].node if n.name in changes else None)
    functions = {name: change.function for name, change in changes.items() if change.function is not None}
    return Planted(graph, functions, frozenset(changes))
