"""A grammar of edits: mistakes that no row of the catalogue lists, composed from a place in the graph and a change.

    which operand     a node reads another value of the same shape, or another tensor: `operand-other`, `norm-name-swap`
    which index       rows, heads, positions or cache rows are off by one or exchanged: `index-off`
    skip or repeat    a layer is left out, or runs twice: `layer-skipped`, `layer-repeated`
    which token       another id was fed at one position: `token-other`
    which tensor      another norm's, layer's or role's: `norm-name-swap`, `operand-other`
    whose weights     a layer runs on another layer's tensors: `layer-weights`
    which axes        a value of several axes is read without a transpose: `axes-untransposed`
    which steps       two are exchanged, one is left out or done twice: `steps-exchanged`, `norm-position`, `step-count`
    which keys        the mask hides some by another rule, or shows some: `keys-hidden`, `keys-visible`
    which number      rounded on the way, of another sequence, another statistic: `rounded-number`, `rope-frequencies`,
                      `norm-statistic`
    which block       a quantised block has another one's scale or minimum: `block-field`
    which function    another activation, or a limited one: `ffn-act-family`
    which terms       a sum leaves some out: `sum-short`
    which buffer      rows that nobody writes, sums that are not cleared, a table that is written to: `rows-unwritten`,
                      `buffer-not-cleared`, `embd-overwritten`, `conv-ring`

The constants and arithmetics of the grammar are the families of the catalogue (`Search`, kind `precision`). `in_layers`
restricts any edit to some layers, `scope_grammar` to one role or to some calls.

`descriptions` generates them for the nodes in which a fault must lie. Each is an ordinary `Variant` whose label is the
description: a diagnosis tries it as it tries the catalogue, and names the catalogue's row where both fit. The number of
descriptions is bounded; `UNTRIED` says what the bound leaves out. Touch this module to add another generator; those of
the others are in the modules `*_grammar` beside it, by the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import NoCache, interpret
from assay.engines.reference.weights import Weights
from assay.graph import INPUTS, Node, Trait, join, split
from assay.verify.faults import (
    activation_grammar,
    attention_grammar,
    axis_grammar,
    block_grammar,
    borrowed_grammar,
    buffer_grammar,
    cache_grammar,
    group_grammar,
    loader_grammar,
    mask_grammar,
    number_grammar,
    pairing_grammar,
    rotation_grammar,
    scope_grammar,
    state_grammar,
    statistic_grammar,
    step_grammar,
    sum_grammar,
    tensor_grammar,
    token_grammar,
    upstream_grammar,
    visible_grammar,
    window_grammar,
)
from assay.verify.faults.description import (
    INDEX,
    OPERAND,
    REPEATED,
    SKIPPED,
    Description,
    placed,
)
from assay.verify.faults.fault import Array, Change, Context, Edit, Variant, is_output, layer, role, standard
from assay.verify.faults.tensor_grammar import MOST_WEIGHTS, named

MOST_ROWS = 256  # of a matrix whose neighbouring rows are exchanged one by one
MOST_POSITIONS = 64  # that are tried one by one
UNTRIED = (
    f"not tried: exchanged rows of matrices with more than {MOST_ROWS} rows, another layer's matrix of more than "
    f"{MOST_WEIGHTS:,} weights, indices off by more than one, "
    "another token than those of the prompt, their neighbours and the special ones"
)
OF_ONE_LAYER = frozenset({SKIPPED, REPEATED})


def other_tokens(c: Context) -> list[Description]:
    """The descriptions of another token at one position, and of other ids at all."""
    return list(token_grammar.tokens(c, [node for node in c.model.graph if node.op == "embed"]))


def descriptions(c: Context, names: Sequence[str]) -> Iterator[Description]:
    """Every description of a mistake in these nodes, the shorter ones first. Planted in all layers of a segment."""
    nodes = [c.model.graph[name] for name in names]
    yield from _layers(c, nodes)
    firsts = list({role(node): node for node in reversed(nodes)}.values())[::-1]  # one of each role, the earliest
    for generate in (
        *tensor_grammar.FIRST,
        _positions,
        _operands,
        *tensor_grammar.GENERATORS,
        _shifted,
        _token_rows,
        *cache_grammar.GENERATORS,
        *pairing_grammar.GENERATORS,
        *attention_grammar.GENERATORS,
        *rotation_grammar.GENERATORS,
        *borrowed_grammar.GENERATORS,
        *upstream_grammar.GENERATORS,
        *axis_grammar.GENERATORS,
        *step_grammar.GENERATORS,
        *mask_grammar.GENERATORS,
        *visible_grammar.GENERATORS,
        *number_grammar.GENERATORS,
        *statistic_grammar.GENERATORS,
        *group_grammar.GENERATORS,
        *activation_grammar.GENERATORS,
        *window_grammar.GENERATORS,
        *state_grammar.GENERATORS,
        *scope_grammar.GENERATORS,
    ):
        yield from generate(c, firsts)
    yield from loader_grammar.other_layers(c, nodes)
    for generate in (
        *sum_grammar.GENERATORS,
        *buffer_grammar.GENERATORS,
        *block_grammar.GENERATORS,
        *token_grammar.GENERATORS,
        _rows,
    ):
        yield from generate(c, firsts)


# -- a layer is left out, or runs twice ----------------------------------------------------------------------------


def _layers(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    graph = c.model.graph
    for at in sorted({i for node in nodes if (i := layer(node)) is not None}):
        out, given = graph.by_name.get(join("l_out", at)), layer_input(c, at)
        if out is None or given is None or graph.shapes[given] != graph.shapes[out.name]:
            continue
        label = f"layer {at} is left out: {out.name} = {given}"
        yield SKIPPED, placed(label, _passed(given), (out.op,), when=named(out.name))
    for at in sorted({i for node in nodes for i in (layer(node), _layer_before(node, graph)) if i is not None}):
        out, given = graph.by_name.get(join("l_out", at)), layer_input(c, at)
        if out is None or given is None or graph.state.per_sequence:
            continue
        total = sum(c.steps)
        fed = dict.fromkeys(((total,), c.steps, *([(1,) * total] if 1 < total <= MOST_POSITIONS else [])))
        for calls in fed:  # all tokens at once, as the dump was made, token by token
            run = _Repeated(c, at, given, out.name, calls)
            for shown, when in ((0, "before"), (1, "after")):
                label = f"layer {at} runs twice: its output is fed to it again; its values are dumped {when} that"
                yield REPEATED, Variant(label, run.edit(shown))


class _Repeated:
    """A layer that is run on its input and then on its own output. In each call, the rows that the second pass writes
    to the cache replace those of the first."""

    def __init__(self, c: Context, at: int, given: str, out: str, calls: Sequence[int]) -> None:
        self.c, self.given, self.out, self.calls = c, given, out, tuple(calls)
        graph = c.model.graph
        self.names = [n.name for n in graph if layer(n) == at and graph.shapes[n.name][0] == "T"]
        self._weights = Weights(c.model.file)
        self._last: tuple[bytes, tuple[dict[str, Array], dict[str, Array]]] | None = None

    def passes(self, x: Array, *fed: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """The layer's values in the first and in the second pass, from its input."""
        key = x.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, self._run(x, dict(zip(INPUTS, fed, strict=True)))
        return self._last[1]

    def _run(self, x: Array, fed: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        graph, cache = self.c.model.graph, _Rows()
        found: list[list[dict[str, Array]]] = [[], []]
        calls = self.calls if sum(self.calls) == len(x) else (len(x),)
        for t, step in zip(np.cumsum((0, *calls)), calls, strict=False):
            env = {name: v[: t + step] if "S" in INPUTS[name] else v[t : t + step] for name, v in fed.items()}
            rows = x[t : t + step]
            for made in found:
                cache.keep(t)
                values = interpret(graph, self._weights, {**env, self.given: rows}, self.names, cache=cache)
                made.append(values)
                rows = values[self.out]
        first, second = ({name: np.concatenate([v[name] for v in made]) for name in self.names} for made in found)
        return first, second

    def edit(self, shown: int) -> Edit:
        """The layer's nodes in one pass; the nodes after it read what the second pass gives."""

        def edit(c: Context, node: Node, p: float) -> Change | None:
            if node.name in self.names:
                given = replace(node, inputs=(self.given, *INPUTS), weights=())
                return Change(given, lambda *operands: self.passes(*operands)[shown][node.name])
            if shown or self.out not in node.inputs or node.has(Trait.STATE):
                return None
            n, own, at = len(node.inputs), standard(node), node.inputs.index(self.out)

            def run(*operands: Array) -> Array:
                extra = 1 + len(INPUTS)
                inputs = list(operands[:n])
                inputs[at] = self.passes(*operands[n : n + extra])[1][self.out]
                return own(*inputs, *operands[n + extra :])

            return Change(replace(node, inputs=(*node.inputs, self.given, *INPUTS)), run)

        return edit


class _Rows(NoCache):
    """The rows of one layer's cache; those from a position on can be dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, Array] = {}

    def append(self, name: str, rows: Array) -> Array:
        self._rows[name] = np.concatenate([self._rows[name], rows]) if name in self._rows else rows
        return self._rows[name]

    def keep(self, count: int) -> None:
        self._rows = {name: rows[:count] for name, rows in self._rows.items()}


def _layer_before(node: Node, graph: Any) -> int | None:
    return next((split(i)[1] for i in node.inputs if i in graph and split(i)[0] == "l_out"), None)


def layer_input(c: Context, at: int) -> str | None:
    """The value that a layer reads: the first input of its first node."""
    first = next((node for node in c.model.graph if layer(node) == at), None)
    return first.inputs[0] if first is not None and first.inputs and first.inputs[0] not in INPUTS else None


def _passed(given: str) -> Edit:
    return lambda c, node, p: Change(replace(node, inputs=(given,), weights=()), lambda x: x)


# -- another operand -----------------------------------------------------------------------------------------------


# Operations whose operands are never exchanged: indices, scores, and what is kept between calls.
_FIXED = Trait.INDICES | Trait.SCORES | Trait.STATE | Trait.SHOWS_STATE | Trait.SELECTS


def _operands(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another value of the same shape that was computed before: in this layer, or the layer's own input."""
    graph = c.model.graph
    order = {node.name: i for i, node in enumerate(graph)}
    for node in nodes:
        at = layer(node)
        if node.has(_FIXED):
            continue
        values = [n.name for n in graph if layer(n) == at and order[n.name] < order[node.name] and not n.has(_FIXED)]
        if at is not None and (given := layer_input(c, at)) is not None:
            values.append(given)
        for k, own in enumerate(node.inputs):
            stale = join(split(own)[0], (at or 0) - 1)  # the buffer still holds the layer before's
            for other in (
                (*values, *((stale,) if stale in graph and stale not in values else ()))
                if own in graph and not graph[own].has(_FIXED)
                else ()
            ):
                if other in node.inputs or graph.shapes[other] != graph.shapes[own]:
                    continue
                seen = [split(name)[0] if split(name)[1] == at else name for name in (other, own)]
                seen[0] = f"{seen[1]} of the layer before" if other == stale else seen[0]
                label = f"{role(node)} reads {seen[0]} in place of {seen[1]}"
                relation = (split(other)[0], (at or 0) - (split(other)[1] or 0)) if split(other)[1] is not None else ""
                yield OPERAND, placed(label, _operand(k, other, relation), (node.op,), role(node))


def _operand(k: int, other: str, relation: tuple[str, int] | str) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        name = other if isinstance(relation, str) else join(relation[0], (layer(node) or 0) - relation[1])
        if k >= len(node.inputs) or name in node.inputs or name not in c.model.graph:
            return None
        return Change(replace(node, inputs=(*node.inputs[:k], name, *node.inputs[k + 1 :])))

    return edit


# -- another index -------------------------------------------------------------------------------------------------


def _positions(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    for node in nodes:
        for step in (1, -1) if node.op == "rope" else ():
            sign = "+" if step > 0 else "-"
            yield INDEX, placed(f"{role(node)} is rotated with position {sign} 1", _turned(step), ("rope",), role(node))


def _turned(step: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda x, positions, *rest: own(x, positions + step, *rest))

    return edit


def _shifted(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The rows of a matrix, or its heads, one further on; keys and values of the next group."""
    heads = [role(node) for node in nodes if role(node) in ("Kcur_proj", "Vcur")]
    for step, which in ((1, "next"), (-1, "previous")):
        for roles in dict.fromkeys((("Kcur_proj", "Vcur"), *((name,) for name in heads))):
            if set(roles) & set(heads):  # the first effect of both lies in these nodes
                what = "keys and values" if len(roles) > 1 else "keys" if roles[0] == "Kcur_proj" else "values"
                label = f"query heads use the {what} of the {which} group"
                yield INDEX, placed(label, _by_heads(step), ("linear",), *roles)
        for node in nodes:
            if node.op == "linear":
                label = f"the matrix of {role(node)} is read one row too {'far on' if step > 0 else 'early'}"
                yield INDEX, placed(label, _rolled(step), ("linear",), role(node))
                if step > 0 and is_output(c, node):
                    short = f"{label}, and its last row is not read"
                    yield INDEX, placed(short, _ordered(lambda n: np.arange(1, n)), ("linear",), role(node))


def _token_rows(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The rows of the head, or of the embedding, one token off: in each call, or over all calls."""
    for node in nodes:
        for step in (1, -1) if is_output(c, node) or node.op == "embed" else ():
            for each_call in (True, False)[: 1 + (len(c.steps) > 1)]:
                where = ", in each call" if each_call and len(c.steps) > 1 else ""
                label = f"row t of {role(node)} holds token t {'-' if step > 0 else '+'} 1{where}"
                yield INDEX, placed(label, _rows_moved(step, each_call), (node.op,), role(node))


def _rows_moved(step: int, each_call: bool) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(*operands: Array) -> Array:
            y = own(*operands)
            calls = c.steps if each_call and sum(c.steps) == len(y) else (len(y),)
            ends = np.cumsum(calls)[:-1].tolist()
            return np.concatenate([np.roll(part, step, axis=0) for part in np.split(y, ends)])

        return Change(node, run)

    return edit


def _by_heads(step: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        width = c.hp.n_embd_head if role(node) == "Kcur_proj" else c.hp.n_embd_head_v
        return _rolled(step * width)(c, node, p) if c.hp.n_head_kv > 1 else None

    return edit


def _rolled(step: int) -> Edit:
    return _ordered(lambda n: np.roll(np.arange(n), -step))


def _rows(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Two neighbouring rows of one matrix exchanged."""
    for node in nodes:
        rows = c.model.graph.weights[node.weights[0]][0] if node.op == "linear" and node.weights else 0
        for i in range(int(rows) - 1) if rows <= MOST_ROWS else ():
            label = f"rows {i} and {i + 1} of {node.weights[0]} are exchanged"
            yield INDEX, placed(label, _ordered(_exchanged(i)), ("linear",), when=named(node.name))


def _exchanged(i: int) -> Callable[[int], NDArray[np.int64]]:
    def order(n: int) -> NDArray[np.int64]:
        found = np.arange(n)
        found[[i, i + 1]] = i + 1, i
        return found

    return order


def _ordered(order: Callable[[int], NDArray[np.int64]]) -> Edit:
    """The features of a product in another order, which is the order of the matrix's rows."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(*operands: Array) -> Array:
            y = own(*operands)
            return np.asarray(y[..., order(y.shape[-1])])

        return Change(node, run)

    return edit
