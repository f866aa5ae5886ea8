"""Generators of the grammar for buffers: who writes them, who clears them, who else reads them.

rows that nobody writes      the split of a product over workers leaves its last rows out, or one worker's share
rows that keep old values    such rows hold what the layer before left in the same buffer
a sum that is not cleared    a product or the experts' sum is added to what the layer or the token before left there
a table that is written to   the residual stream is added up in the row of the embedding, not in a copy of it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import INPUTS, Node, join
from assay.verify.faults.description import OVERWRITTEN, UNCLEARED, UNWRITTEN, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, is_output, layer, role, standard

WORKERS = (*range(2, 17), 20, 24, 28, 32)  # threads, and lanes of a vector; 64 and more are `wgsl-tail`
LANES = (4, 8, 16, 32, 64, 128, 256)  # products that a vector or block adds at once
LAST = (*range(1, 17), 20, 24, 32, 48, 64, 96, 128)  # rows at the end, without a rule
SHARES = (2, 3, 4, 6, 8)  # workers of which one does nothing
RANKS = (2, 4, 8)  # devices among which the columns of a product are divided
MOST_TOKENS = 16  # of a prompt that is run once for each of them
MOST_RUN = 1 << 28  # weights of a model that is run as often

# -- rows that nobody writes ---------------------------------------------------------------------------------------


def unwritten(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Rows of the products that are zero: the rest of a division by the workers, or the share of one of them. In all
    products, or in those of one role."""
    all_products = [node for node in c.model.graph if node.op == "linear"]
    here = [node for node in all_products if role(node) in {role(n) for n in nodes}]
    every = {role(node): _rows(c, node) for node in all_products}
    for words, hole in distinct(every, _HOLES):
        if any(holed(hole, _rows(c, node)) for node in here):
            yield UNWRITTEN, placed(words.format("every product"), _zeroed(hole), ("linear",))
    terms = {role(node): int(c.model.graph.weights[node.weights[0]][-1]) for node in all_products}
    for words, hole in distinct(terms, _TERMS):
        if any(holed(hole, terms[role(node)]) for node in here):
            yield UNWRITTEN, placed(words.format("every product"), _unsummed(hole), ("linear",))
    for name in dict.fromkeys(role(node) for node in here):
        for words, hole in distinct({name: every[name]}, _HOLES):
            yield UNWRITTEN, placed(words.format(name), _zeroed(hole), ("linear",), name)
        heads = _heads_read(c, next(node for node in here if role(node) == name))
        for words, hole in distinct({name: terms[name]}, _TERMS):
            if heads and _covers_one(hole, terms[name], heads):
                continue  # the values of one head: `head-one-wrong` says it
            yield UNWRITTEN, placed(words.format(name), _unsummed(hole), ("linear",), name)


Hole = Callable[[int], tuple[int, int]]  # for a number of rows, the first that is missing and the one after the last


def rest(workers: int, n: int) -> tuple[int, int]:
    return n - n % workers, n


def _first_rest(workers: int, n: int) -> tuple[int, int]:
    return 0, n % workers


def _last(rows: int, n: int) -> tuple[int, int]:
    return max(n - rows, 0), n


def share(workers: int, k: int, n: int) -> tuple[int, int]:
    size = -(-n // workers)
    return min(k * size, n), min((k + 1) * size, n)


def _others(workers: int, n: int) -> tuple[int, int]:
    return share(workers, 0, n)[1], n


_HOLES: dict[str, Hole] = {
    **{f"the last rows % {n} rows of {{}} are not computed: zeros": partial(rest, n) for n in WORKERS},
    **{f"the first rows % {n} rows of {{}} are not computed: zeros": partial(_first_rest, n) for n in WORKERS},
    **{f"part {k + 1} of {n} of the rows of {{}} is not computed: zeros": partial(share, n, k)
       for n in SHARES for k in range(n)},
    **{f"the last {n} rows of {{}} are not computed: zeros": partial(_last, n) for n in LAST},
}  # fmt: skip
_TERMS: dict[str, Hole] = {
    **{f"the last columns % {n} columns of {{}} are not added": partial(rest, n) for n in LANES},
    "the last column of {} is not added": lambda n: (n - 1, n),
    "the first column of {} is not added": lambda n: (0, 1),
    **{f"only part 1 of {n} of the columns of {{}} is added": partial(_others, n) for n in RANKS},
    **{
        f"part {k + 1} of {n} of the columns of {{}} is not added": partial(share, n, k)
        for n in RANKS
        for k in range(n)
    },
}


def distinct(sizes: Mapping[str, int], holes: Mapping[str, Hole]) -> Iterator[tuple[str, Hole]]:
    """Of the holes that leave out the same rows, the first one."""
    seen: set[tuple[tuple[int, int], ...]] = set()
    for words, hole in holes.items():
        missing = tuple(hole(n) if holed(hole, n) else (0, 0) for n in sizes.values())
        if any(a < b for a, b in missing) and missing not in seen:
            seen.add(missing)
            yield words, hole


def holed(hole: Hole, n: int) -> bool:
    """Are some rows missing, and not all?"""
    first, end = hole(n)
    return 0 < end - first < n


def _heads_read(c: Context, node: Node) -> int:
    """The number of heads whose results the product reads; 0 if it reads others."""
    given = c.model.graph.by_name.get(node.inputs[0])
    return int(c.at(node).hp.n_head) if given is not None and given.op == "merge_heads" else 0


def _covers_one(hole: Hole, n: int, heads: int) -> bool:
    """Are the missing terms those of one head?"""
    first, end = hole(n)
    return (end - first) * heads == n and first * heads % n == 0


def _rows(c: Context, node: Node) -> int:
    return int(c.model.graph.weights[node.weights[0]][0])


def _zeroed(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n = standard(node), _rows(c, node)
        first, end = hole(n)

        def run(*operands: Array) -> Array:
            y = own(*operands).copy()
            y[..., first:end] = 0
            return y

        return Change(node, run) if holed(hole, n) else None

    return edit


def _unsummed(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n = standard(node), int(c.model.graph.weights[node.weights[0]][-1])
        first, end = hole(n)

        def run(x: Array, *rest: Array) -> Array:
            shape, x = x.shape, x.reshape(len(x), -1).copy()
            x[:, first:end] = 0
            return own(x.reshape(shape), *rest)

        return Change(node, run) if holed(hole, n) else None

    return edit


# -- rows that keep old values ---------------------------------------------------------------------------------------

_KEPT: dict[str, Hole] = {
    **{f"the last rows % {n} rows": partial(rest, n) for n in WORKERS},
    **{f"the last {n} rows": partial(_last, n) for n in LAST},
    **{f"part {k + 1} of {n} of the rows": partial(share, n, k) for n in SHARES[:3] for k in range(n)},
}


def kept(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Rows of a product that are not computed and hold what the layer before left in the buffer."""
    for node in nodes:
        if node.op != "linear" or layer(node) is None or c.model.graph.shapes[node.name][0] != "T":
            continue
        for words, hole in distinct({role(node): _rows(c, node)}, _KEPT):
            label = f"{words} of {role(node)} are not computed: they hold what the layer before left"
            yield UNCLEARED, placed(label, _stale(hole), ("linear",), role(node))


def _stale(hole: Hole) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        before = _layer_before(c, node)
        if before is None or not holed(hole, _rows(c, node)):
            return None
        own, n, (first, end) = standard(node), len(node.inputs), hole(_rows(c, node))

        def run(*operands: Array) -> Array:
            y = own(*operands[:n], *operands[n + 1 :]).copy()
            flat, old = y.reshape(len(y), -1), operands[n].reshape(len(y), -1)
            flat[:, first:end] = old[:, first:end]
            return np.asarray(flat.reshape(y.shape))

        return Change(replace(node, inputs=(*node.inputs, before.name)), run)

    return edit


def _layer_before(c: Context, node: Node) -> Node | None:
    """The node of the same role in the layer before, if it has the same shape."""
    at = layer(node)
    before = c.model.graph.by_name.get(join(role(node), at - 1)) if at else None
    same = before is not None and c.model.graph.shapes[before.name] == c.model.graph.shapes[node.name]
    return before if same else None


# -- a sum that is not cleared ---------------------------------------------------------------------------------------

_SUMMING = ("expert_sum", "linear", "merge_heads")


def uncleared(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A buffer of sums that still holds those of the layer before, or of the token before."""
    graph = c.model.graph
    for node in nodes:
        if node.op not in _SUMMING or graph.shapes[node.name][0] != "T":
            continue
        what, roles = f"the buffer of {role(node)} is not cleared between", (node.op,)
        if layer(node) is not None:
            label = f"{what} layers: it adds to what the layer before left"
            yield UNCLEARED, placed(label, _on_the_layer_before, roles, role(node))
        for calls in ("tokens", "tokens of a call", "calls")[: 3 if len(c.steps) > 1 else 1]:
            label = f"{what} {calls}: it adds to what the token before left"
            yield UNCLEARED, placed(label, _on_rows_before(calls), roles, role(node))


_PARTS: dict[str, tuple[int, str]] = {  # by operation: the axis of its parts, and their name
    "kqv": (0, "heads"),
    "head_linear": (0, "heads"),
    "expert_linear": (1, "experts"),
}


def uncleared_parts(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A buffer of sums that still holds those of the head before, or of the expert before."""
    for node in nodes:
        axis, parts = _PARTS.get(node.op, (0, ""))
        if parts and len(c.model.graph.shapes[node.name]) == 3:
            label = f"the buffer of {role(node)} is not cleared between {parts}: each adds to what the one before left"
            yield UNCLEARED, placed(label, _on_parts_before(axis), (node.op,), role(node))


def _on_parts_before(axis: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda *operands: np.cumsum(own(*operands), axis=axis))

    return edit


def _on_the_layer_before(c: Context, node: Node, p: float) -> Change | None:
    before = _layer_before(c, node)
    if before is None:
        return None
    own, n = standard(node), len(node.inputs)
    joint = replace(node, inputs=(*node.inputs, before.name))
    return Change(joint, lambda *operands: own(*operands[:n], *operands[n + 1 :]) + operands[n])


def _on_rows_before(calls: str) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(*operands: Array) -> Array:
            y = own(*operands)
            if calls == "tokens":
                return np.asarray(np.cumsum(y, axis=0))
            total = y.copy()
            starts = c.starts(len(y))
            for t in range(1, len(y)):
                inside = starts[t] < t
                if inside == (calls == "tokens of a call"):
                    total[t] += total[t - 1]
            return total

        return Change(node, run)

    return edit


# -- a table that is written to ------------------------------------------------------------------------------------


def overwritten(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The row of a token holds a later value of its first use, when the token is fed again."""
    graph = c.model.graph
    whole = graph.output in graph and is_output(c, graph[graph.output])
    if not whole or graph.state.per_sequence or not any(node.op == "embed" for node in nodes):
        return
    if sum(c.steps) > MOST_TOKENS or sum(np.prod(s) for s in graph.weights.values()) > MOST_RUN:
        return
    embd, weights = next(node for node in graph if node.op == "embed"), Weights(c.model.file)
    for name in (names := _in_place(c, embd)):
        label = f"the embedding's row of a token is overwritten by its {name}, which the next use of the token reads"
        yield OVERWRITTEN, placed(label, _written(_Sequential(embd, name, weights)), ("embed", "linear"))
    for name in names[-1:]:
        label = f"the embedding is added to {name} of the token before, which is not cleared"
        yield UNCLEARED, placed(label, _left_over(_Sequential(embd, name, weights)), ("embed",))


def _in_place(c: Context, embd: Node) -> list[str]:
    """Values that an engine may compute in the row of the embedding, the likely ones last."""
    graph = c.model.graph
    shape = graph.shapes[embd.name]
    stream = [node for node in graph if node.op in ("add", "scale") and graph.shapes[node.name] == shape]
    if not stream:
        return []
    outs = [node.name for node in stream if role(node) == "l_out"]
    return list(dict.fromkeys((stream[0].name, *outs[:1], *outs[-1:])))


class _Sequential:
    """Runs of the first rows of a prompt, token by token; a later row may depend on values of an earlier one."""

    def __init__(self, embd: Node, name: str, weights: Weights) -> None:
        self.embd, self.name, self._weights = embd, name, weights

    def value(self, c: Context, x: Array, fed: Mapping[str, Array], t: int) -> Array:
        """The node's value of token t, from the embeddings up to it."""
        env = {name: rows[: t + 1] for name, rows in fed.items()}
        found = interpret(c.model.graph, self._weights, {**env, self.embd.name: x[: t + 1]}, [self.name])
        return np.asarray(found[self.name][t])


def _written(run: _Sequential) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        if node.name != run.embd.name:
            return _tied_head(c, node, run.embd, run.name)

        def embedded(*operands: Array) -> Array:
            fed = dict(zip(INPUTS, operands, strict=False))
            x, ids = own(fed["inp_tokens"], *operands[len(INPUTS) :]).copy(), fed["inp_tokens"].tolist()
            used: dict[int, int] = {}
            for t, token in enumerate(ids):
                if token in used:
                    x[t] = run.value(c, x, fed, used[token])
                used[token] = t
            return x

        return Change(replace(node, inputs=tuple(INPUTS)), embedded)

    return edit


def _tied_head(c: Context, node: Node, embd: Node, name: str) -> Change | None:
    """The logits of a head that reads the same table: the tokens that were fed have other rows."""
    if not is_output(c, node) or node.weights[:1] != embd.weights[:1]:
        return None
    own, n = standard(node), len(node.inputs)

    def run(*operands: Array) -> Array:
        y, x = own(*operands[:n], *operands[n + 2 :]).copy(), operands[0]
        stored, ids = operands[n], operands[n + 1]
        for s, token in enumerate(ids.tolist()):
            y[s:, token] = x[s:] @ stored[s]
        return y

    return Change(replace(node, inputs=(*node.inputs, name, "inp_tokens")), run)


def _left_over(run: _Sequential) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def embedded(*operands: Array) -> Array:
            fed = dict(zip(INPUTS, operands, strict=False))
            x = own(fed["inp_tokens"], *operands[len(INPUTS) :]).copy()
            for t in range(1, len(x)):
                x[t] += run.value(c, x, fed, t - 1)
            return x

        return Change(replace(node, inputs=tuple(INPUTS)), embedded)

    return edit


GENERATORS = (unwritten, kept, uncleared, uncleared_parts, overwritten)
