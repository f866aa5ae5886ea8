"""Edits of stages `attention` and `kv cache`.

Scores, mask, softmax, head grouping, and the rows that the cache returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import attn_mask
from assay.gguf import codecs
from assay.graph import Node
from assay.verify.faults.fault import (
    Array,
    Change,
    Context,
    Function,
    Search,
    by_heads,
    on_rows,
    plant,
    sibling,
    standard,
)
from assay.verify.faults.rotary import rotated_key, turned

Mask = NDArray[np.bool_]


def masked(x: Array, pos: Array, kpos: Array, scale: float, window: int = 0) -> Array:
    """Scaled scores with -inf where a key may not be seen."""
    return np.where(attn_mask(pos, kpos, window), -np.inf, x * scale)


def softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(x - np.max(x, axis=axis, keepdims=True))
        return np.asarray(np.nan_to_num(e / np.sum(e, axis=axis, keepdims=True)))


def _scores(
    fault: str,
    label: str,
    formula: Callable[[Context, Node, Array, Array, Array, float], Array],
    search: Search | None = None,
) -> None:
    """Another formula of (scores, positions, key positions, parameter) for the probabilities."""

    @plant(fault, label, search, op="attn_softmax", weighted=False)  # the formulas here have no sinks
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return Change(node, lambda x, pos, kpos: formula(c, node, x, pos, kpos, p))


def _scaled(fault: str, label: str, factor: Callable[[Context], float]) -> None:
    @plant(fault, label, op="attn_softmax")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if abs(factor(c) - 1) < 1e-12:
            return None
        return Change(node.with_attrs(scale=node.attr("scale") * factor(c)))


_scaled("scale-missing", "no scale", lambda c: 1 / c.hp.attn_scale)
_scaled("scale-twice", "scaled twice", lambda c: c.hp.attn_scale)
_scaled("scale-wrong-dim", "1 / sqrt(n_embd)", lambda c: 1 / (c.hp.attn_scale * np.sqrt(c.hp.n_embd)))
_scaled("scale-wrong-dim", "1 / sqrt(n_embd / n_head)", lambda c: np.sqrt(c.hp.n_head / c.hp.n_embd) / c.hp.attn_scale)
_scaled("scale-wrong-dim", "1 / sqrt(n_head)", lambda c: 1 / (c.hp.attn_scale * np.sqrt(c.hp.n_head)))


_SCALE = Search(0.02, 50.0, (0.5, 2.0), points=41, neutral=1.0)


@plant("scale-wrong-dim", "scores times {p}", _SCALE, op="attn_softmax")
def any_scale(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(scale=node.attr("scale") * p))


def _softcap(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    return softmax(masked(p * np.tanh(x * node.attr("scale") / p), pos, kpos, 1.0))


def _unmasked_prefill(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    """Every key that the step has written is seen."""
    ends = c.ends(len(pos))
    return softmax(np.where(np.arange(len(kpos))[None, :] < ends[:, None], x * node.attr("scale"), -np.inf))


def _one_more(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    seen = (kpos[None, :] <= pos[:, None] + 1) & (np.arange(len(kpos))[None, :] < c.ends(len(pos))[:, None])
    return softmax(np.where(seen, x * node.attr("scale"), -np.inf))


def _one_less(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    scores = np.where(kpos[None, :] < pos[:, None], x * node.attr("scale"), -np.inf)
    return softmax(np.where(pos[:, None] == pos[0], masked(x, pos, kpos, node.attr("scale")), scores))


def _no_offset(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    own = np.arange(len(pos)) - c.starts(len(pos))
    return softmax(np.where(np.arange(len(kpos))[None, :] <= own[:, None], x * node.attr("scale"), -np.inf))


def _no_offset_in_chunks(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    """Row i of a chunk of p tokens sees the keys 0 to i of the whole text."""
    own = (np.arange(len(pos)) - c.starts(len(pos))) % int(p)
    return softmax(np.where(np.arange(len(kpos))[None, :] <= own[:, None], x * node.attr("scale"), -np.inf))


def _first_and_own(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    """A decode step finds the first row of the cache and its own."""
    rows, keys = np.arange(len(pos)), np.arange(len(kpos))
    kept = (keys[None, :] == 0) | (keys[None, :] == rows[:, None]) | ~c.decoding(len(pos))[:, None]
    return softmax(np.where(kept, masked(x, pos, kpos, node.attr("scale")), -np.inf))


def _mask_late(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    seen = np.arange(len(kpos))[None, :] < c.ends(len(pos))[:, None]
    return softmax(np.where(seen, x * node.attr("scale"), -np.inf)) * (kpos[None, :] <= pos[:, None])


def _over_queries(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    scores = masked(x, pos, kpos, node.attr("scale"))
    out = np.zeros_like(scores)
    starts = c.starts(len(pos))
    for start in np.unique(starts):
        rows = starts == start
        out[:, rows] = softmax(scores[:, rows], axis=1)
    return out


def _over_heads(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    return softmax(masked(x, pos, kpos, node.attr("scale")), axis=0)


def _unfilled(by_step: bool) -> Callable[[Context, Node, Array, Array, Array, float], Array]:
    def formula(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
        scores = masked(x, pos, kpos, node.attr("scale"))
        filled = c.ends(len(pos)) if by_step else np.arange(1, len(pos) + 1)
        empty = np.maximum(p - filled, 0)[None, :, None]
        top = np.maximum(scores.max(-1, keepdims=True), 0)
        e = np.exp(scores - top)
        return np.asarray(e / (e.sum(-1, keepdims=True) + empty * np.exp(-top)))

    return formula


def _no_max(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    scores = masked(x, pos, kpos, node.attr("scale"))
    with np.errstate(all="ignore"):
        e = np.exp(scores.astype(np.float32)).astype(x.dtype)
        return np.asarray(e / e.sum(-1, keepdims=True))


def _sum_overflows(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    """A sum of exponentials beyond 65504 is infinite in half precision, and the row divided by it is 0."""
    with np.errstate(all="ignore"):
        e = np.exp(masked(x, pos, kpos, node.attr("scale")))
        total = e.sum(-1, keepdims=True)
        return np.asarray(np.where(total > 65504, 0.0, e / total))


def _online(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    """Tiles of p keys; the sum so far is not rescaled when the maximum moves."""
    scores, tile = masked(x, pos, kpos, node.attr("scale")), int(p)
    e = np.zeros_like(scores)
    top = np.full(scores.shape[:2], -np.inf)
    for start in range(0, scores.shape[-1], tile):
        part = scores[..., start : start + tile]
        top = np.maximum(top, part.max(-1))
        e[..., start : start + tile] = np.exp(part - top[..., None])
    return np.asarray(e / e.sum(-1, keepdims=True))


def _window(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    return softmax(masked(x, pos, kpos, node.attr("scale"), int(p)))


def _chunked_mask(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    """A chunk does not see the chunks before it."""
    scores = masked(x, pos, kpos, node.attr("scale"))
    seen = kpos[None, :] // int(p) == pos[:, None] // int(p)
    prompt = pos < pos[0] + (c.steps or (len(pos),))[0]
    return softmax(np.where(seen | ~prompt[:, None], scores, -np.inf))


def _fp8(c: Context, node: Node, x: Array, pos: Array, kpos: Array, p: float) -> Array:
    return e4m3(softmax(masked(x, pos, kpos, node.attr("scale"))))


def e4m3(x: Array) -> Array:
    """Rounded to the 8-bit float with 4 bits of exponent and 3 of mantissa."""
    with np.errstate(divide="ignore"):
        exponent = np.clip(np.floor(np.log2(np.abs(x))), -6, 8)
    step = 2.0 ** (np.nan_to_num(exponent, neginf=-6) - 3)
    return np.asarray(np.round(x / step) * step)


_scores("attn-softcap", "scores squeezed by {p} tanh(s / {p})", _softcap, Search(5, 100, (50.0, 30.0), points=9))
_scores("mask-missing-prefill", "no mask", _unmasked_prefill)
_scores("mask-plus1", "one key too many", _one_more)
_scores("mask-plus1", "one key too few", _one_less)
_scores("kv-recreated", "a decode step finds the first row of the cache and its own", _first_and_own)
_scores("mask-cache-offset", "the mask begins at key 0 in every step", _no_offset)
_scores(
    "mask-cache-offset",
    "the mask begins at key 0 in every chunk of {p}",
    _no_offset_in_chunks,
    Search(1, 512, (4, 32, 64, 128, 256, 512), True, True, 20, rows=True),
)
_scores("mask-after-softmax", "masked after the softmax", _mask_late)
_scores("softmax-axis", "normalised over queries", _over_queries)
_scores("softmax-axis", "normalised over heads", _over_heads)
_scores(
    "softmax-unfilled",
    "{p} slots take part",
    _unfilled(True),
    Search(9, 131072, (2048, 4096, 512, 1024, 8192, 256, 128, 64, 32, 16), True, True, 40),
)
_scores(
    "softmax-unfilled",
    "{p} slots take part, counted row by row",
    _unfilled(False),
    Search(9, 131072, (2048, 4096, 512, 1024, 8192, 256, 128, 64, 32, 16), True, True, 40),
)
_scores("softmax-no-max", "exp of the bare scores", _no_max)
_scores("softmax-no-max", "exp of the bare scores; a sum beyond 65504 makes the row 0", _sum_overflows)
_scores(
    "softmax-online-rescale", "tiles of {p} keys", _online, Search(2, 256, (4, 32, 64, 128), True, True, 20, rows=True)
)
_scores(
    "kv-capacity",
    "only the last {p} keys",
    _window,
    Search(1, 2048, (4, 8, 16, 32, 64, 512), True, True, 30, rows=True),
)
_scores(
    "prefill-chunk",
    "chunks of {p} do not see each other",
    _chunked_mask,
    Search(2, 512, (4, 32, 64, 128, 256, 512), True, True, 20, rows=True),
)
_scores("p-cast", "probabilities cast to fp8", _fp8)


@plant("swa-ignored", "no window", op="attn_softmax")
def no_window(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(window=0)) if node.attr("window") else None


def _other_window(label: str, more: int) -> None:
    @plant("swa-off-by-one", label, op="attn_softmax")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        window = node.attr("window") or 0
        return Change(node.with_attrs(window=window + more)) if window >= 2 else None


_other_window("window + 1 keys", 1)
_other_window("window - 1 keys", -1)


# -- pairing of query and key heads ---------------------------------------------------------------------------------


def reads_heads(c: Context, node: Node) -> bool:
    """Are the keys or values that the node reads cut into heads, as a cache keeps them? An encoder's are not."""
    return by_heads(c, node.inputs[1])


def _grouping(
    fault: str, label: str, heads: Callable[[Context], NDArray[np.int64]], ops: tuple[str, ...], decode: bool = False
) -> None:
    """Query head h reads key and value head heads[h]."""

    @plant(fault, label, op=ops, when=reads_heads)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        order = heads(c)
        right = np.arange(c.hp.n_head) // (c.hp.n_head // c.hp.n_head_kv)
        if np.array_equal(order, right):
            return None
        own = standard(node)
        change = Change(node, lambda a, kv: own(a, kv[:, order]))
        return on_rows(c, node, change) if decode else change


def _modulo(c: Context) -> NDArray[np.int64]:
    return np.arange(c.hp.n_head) % c.hp.n_head_kv


def _by_groups(c: Context) -> NDArray[np.int64]:
    return np.minimum(np.arange(c.hp.n_head) // c.hp.n_head_kv, c.hp.n_head_kv - 1)


def _tiles_of(tile: int) -> Callable[[Context], NDArray[np.int64]]:
    return lambda c: (np.arange(c.hp.n_head) // tile * tile) // (c.hp.n_head // c.hp.n_head_kv)


_grouping("gqa-modulo", "h % n_kv", _modulo, ("kq", "kqv"))
_grouping("gqa-modulo", "h % n_kv for keys only", _modulo, ("kq",))
_grouping("gqa-modulo", "h % n_kv for values only", _modulo, ("kqv",))
_grouping("gqa-modulo", "h // n_kv", _by_groups, ("kq", "kqv"))
for _tile in (16, 8, 4, 2):
    _grouping("gqa-tile-cross", f"tiles of {_tile} heads", _tiles_of(_tile), ("kq", "kqv"), decode=True)


@plant("kq-swapped", "the scores transposed", op="kq")
def swapped(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)

    def run(q: Array, k: Array) -> Array:
        right, prompt = own(q, k), (c.steps or (len(q),))[0]
        out = right.copy()
        out[:, :prompt, :prompt] = right[:, :prompt, :prompt].swapaxes(1, 2)
        return out

    return Change(node, run)


# -- what a decode step reads from the cache --------------------------------------------------------------------------


# The rows of some queries in the first operand: `[T, H, D]` of a query, `[H, T, S]` of probabilities.
_QUERIES: dict[str, Callable[[Array, Mask], Array]] = {"kq": lambda q, rows: q[rows], "kqv": lambda p, rows: p[:, rows]}


def _step_view(
    fault: str, label: str, view: Callable[[Context, Array, int, int], Array], op: str | tuple[str, ...] = ("kq", "kqv")
) -> None:
    """Every decode step sees `view(rows, start, end)` in the place of the first `end` rows of K and V, or of one."""

    @plant(fault, label, op=op, when=reads_heads)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, queries = standard(node), _QUERIES[node.op]

        def run(a: Array, kv: Array) -> Array:
            out = own(a, kv).copy()
            n = out.shape[1]
            starts, ends = c.starts(n), c.ends(n)
            for start in np.unique(starts[starts > 0]):
                rows, end = starts == start, int(ends[starts == start][0])
                seen = kv.copy()
                seen[:end] = view(c, kv[:end], int(start), end)
                out[:, rows] = own(queries(a, rows), seen)
            return out

        return Change(node, run)


def _wrapped(label: str, *, at_once: bool) -> None:
    """The cache has too few slots: row i is written to slot i modulo {p}, and keys are read from there.

    Row t attends after it was written itself, or, with `at_once`, after all rows of its call were.
    """

    @plant("kv-capacity", label, _SLOTS, op=("kq", "kqv"), when=reads_heads)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, slots = standard(node), int(p)

        def run(a: Array, kv: Array) -> Array:
            n, keys = a.shape[_TOKENS[node.op]], np.arange(len(kv))[None, :]
            last = (c.ends(n) - 1 if at_once else np.arange(n))[:, None]
            held = np.where(keys <= last, keys + slots * ((last - keys) // slots), keys)  # the row in a key's slot
            if node.op == "kq":
                y = own(a, kv)
                return np.take_along_axis(y, np.broadcast_to(held, y.shape), axis=-1)
            moved = np.zeros_like(a)
            for j in range(len(kv)):
                moved[:, np.arange(n), held[:, j]] += a[:, :, j]
            return own(moved, kv)

        return Change(node, run)


_TOKENS = {"kq": 0, "kqv": 1}  # the axis of tokens in the first operand
_SLOTS = Search(2, 2048, (), True, True, 30, rows=True)
_wrapped("a cache of {p} slots that wraps", at_once=False)
_wrapped("a cache of {p} slots that wraps, written before the step reads it", at_once=True)


def _aliased(label: str, row: Callable[[Context, int], NDArray[np.int64]], op: str) -> None:
    """All cached rows are one row: for each of n queries that with the index `row(n)`."""

    @plant("kv-aliased", label, op=op, when=reads_heads)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def scores(q: Array, k: Array) -> Array:
            y = own(q, k)
            at = np.broadcast_to(row(c, len(q))[None, :, None], (*y.shape[:2], 1))
            return np.broadcast_to(np.take_along_axis(y, at, axis=2), y.shape)

        def mixed(probs: Array, v: Array) -> Array:
            """A query puts all of its weight on the one row."""
            moved, n = np.zeros_like(probs), probs.shape[1]
            moved[:, np.arange(n), row(c, n)] = probs.sum(axis=-1)
            return own(moved, v)

        return Change(node, scores if node.op == "kq" else mixed)


_ONE_ROW: dict[str, Callable[[Context, int], NDArray[np.int64]]] = {
    "the current token": lambda c, n: np.arange(n),
    "the first token": lambda c, n: np.zeros(n, np.int64),
    "the last token of the call": lambda c, n: c.ends(n) - 1,
}
for _whose, _row in _ONE_ROW.items():
    _aliased(f"every cached row of values is that of {_whose}", _row, "kqv")
    _aliased(f"every cached row of keys is that of {_whose}", _row, "kq")


def _writes(unit: Callable[[Array], int], *, fresh: bool = False) -> Callable[[Context, Array, int, int], Array]:
    """Decode row t was written `t * unit` elements into the buffer.

    With `fresh`, a step reads its own rows directly.
    """

    def view(c: Context, rows: Array, start: int, end: int) -> Array:
        width, prompt = rows[0].size, (c.steps or (start,))[0]
        flat = np.zeros(4 * rows.size + width, rows.dtype)
        flat[: prompt * width] = rows[:prompt].reshape(-1)
        for t in range(prompt, end):
            at = t * unit(rows)
            flat[at : at + width] = rows[t].reshape(-1)
        seen = flat[: rows.size].reshape(rows.shape)
        if fresh:
            seen[start:] = rows[start:]
        return seen

    return view


def _head_by_head(c: Context, rows: Array, start: int, end: int) -> Array:
    """As `_writes` of single elements, in a buffer that keeps one head after the other."""
    prompt, width = (c.steps or (start,))[0], rows.shape[2]
    seen = np.zeros_like(rows)
    for g in range(rows.shape[1]):
        flat = np.zeros(rows.shape[0] * width, rows.dtype)
        flat[: prompt * width] = rows[:prompt, g].reshape(-1)
        for t in range(prompt, end):
            flat[t : t + width] = rows[t, g]
        seen[:, g] = flat.reshape(-1, width)
    return seen


def _by_steps(fresh: bool) -> Callable[[Context, Array, int, int], Array]:
    """Decode row t was written to the row that counts steps: 1, 2, …"""

    def view(c: Context, rows: Array, start: int, end: int) -> Array:
        starts = c.starts(end)
        seen = rows.copy()
        seen[starts > 0] = 0
        for i, at in enumerate(np.unique(starts[starts > 0])):
            seen[i + 1] = rows[at]
        if fresh:
            seen[start:] = rows[start:]
        return seen

    return view


def _early(fresh: bool) -> Callable[[Context, Array, int, int], Array]:
    """Decode row t was written to row t - 1, over the one before; row t itself is still empty."""

    def view(c: Context, rows: Array, start: int, end: int) -> Array:
        prompt, seen = (c.steps or (start,))[0], rows.copy()
        seen[prompt - 1 : end - 1] = rows[prompt:end]
        seen[end - 1] = 0
        if fresh:
            seen[start:] = rows[start:]
        return seen

    return view


def _unwritten(c: Context, rows: Array, start: int, end: int) -> Array:
    seen = rows.copy()
    seen[(c.steps or (start,))[0] : start] = 0
    return seen


_UNITS: dict[str, Callable[[Array], int]] = {
    "decode rows written at element n_past": lambda rows: 1,
    "decode rows written at n_past times a head's width": lambda rows: int(rows.shape[2]),
    "decode rows written at twice their place": lambda rows: 2 * rows[0].size,
    "decode rows written at half their place": lambda rows: rows[0].size // 2,
}
_step_view("kv-seqpos-units", "decode rows written elsewhere: later steps find zeros", _unwritten)
for _label, _unit in _UNITS.items():
    _step_view("kv-seqpos-units", _label, _writes(_unit))
    _step_view("kv-seqpos-units", f"{_label}, the own row read from elsewhere", _writes(_unit, fresh=True))
_step_view("kv-seqpos-units", "decode rows written at element n_past of each head's buffer", _head_by_head)
_step_view("kv-seqpos-units", "decode rows written one row early, over the row before", _early(False))
_step_view("kv-seqpos-units", "decode rows written one row early, the own row read from elsewhere", _early(True))
for _what, _op in (("keys", "kq"), ("values", "kqv")):
    _step_view("kv-seqpos-units", f"decode rows of {_what} alone written one row early", _early(False), _op)
_step_view("kv-seqpos-units", "decode rows written to the row of their step's number", _by_steps(False))
_step_view(
    "kv-seqpos-units", "decode rows written to the row of their step's number, the own row read from elsewhere",
    _by_steps(True),
)  # fmt: skip


def _unrotated(label: str, keys: Callable[[Node, Context, int, Array, Array, Array, tuple[Array, ...]], Array]) -> None:
    """In a decode step that begins at row `start` the keys are `keys(rotated, unrotated, query positions)`."""

    @plant("kv-pre-rope", label, op="kq", when=reads_heads)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        key = rotated_key(c, node)
        if key is None:
            return None
        own = standard(node)

        def run(q: Array, k: Array, before: Array, pos: Array, *factors: Array) -> Array:
            out = own(q, k).copy()
            starts = c.starts(len(q))
            for start in np.unique(starts[starts > 0]):
                rows = starts == start
                seen = keys(key, c, int(start), k.copy(), before.reshape(k.shape), pos[rows], factors)
                out[:, rows] = own(q[rows], seen)
            return out

        inputs = (*node.inputs, key.inputs[0], "inp_pos")
        return Change(replace(node, inputs=inputs, weights=key.weights), run)


def _older(key: Node, c: Context, start: int, k: Array, plain: Array, pos: Array, factors: tuple[Array, ...]) -> Array:
    k[:start] = plain[:start]
    return k


def _written_in_decode(fresh: bool) -> Callable[..., Array]:
    def keys(
        key: Node, c: Context, start: int, k: Array, plain: Array, pos: Array, factors: tuple[Array, ...]
    ) -> Array:
        prompt = c.steps[0] if c.steps else start
        end = start if fresh else len(k)
        k[prompt:end] = plain[prompt:end]
        return k

    return keys


def _of_the_prompt(
    key: Node, c: Context, start: int, k: Array, plain: Array, pos: Array, factors: tuple[Array, ...]
) -> Array:
    """The prompt rotates what it reads, and stores what it has not rotated."""
    k[: c.steps[0]] = plain[: c.steps[0]]
    return k


def _at_the_query(
    key: Node, c: Context, start: int, k: Array, plain: Array, pos: Array, factors: tuple[Array, ...]
) -> Array:
    """The whole cache is unrotated; when it is read, it is rotated to the position of the step's first token."""
    return turned(key, plain, np.full(len(k), int(pos[0])), factors).reshape(k.shape)


_unrotated("older keys unrotated in decode", _older)
_unrotated("the prompt's keys unrotated in decode", _of_the_prompt)
_unrotated("keys that decode stores unrotated", _written_in_decode(False))
_unrotated("keys that decode stored in earlier steps unrotated", _written_in_decode(True))
_unrotated("in decode all keys turned to the query's position", _at_the_query)


def _own_keys(c: Context, n: int) -> tuple[NDArray[np.int64], Mask]:
    """For each row the keys of its own step, moved to the left, and which of them it may see."""
    index = c.starts(n)[:, None] + np.arange(n)[None, :]
    return np.minimum(index, n - 1), index <= np.arange(n)[:, None]


def _own_scores(c: Context, node: Node) -> Function:
    own = standard(node)

    def scores(q: Array, k: Array) -> Array:
        index, seen = _own_keys(c, len(q))
        return np.where(seen, np.take_along_axis(own(q, k), index[None], axis=2), 0.0)

    return scores


def _own_probabilities(c: Context, node: Node) -> Function:
    def probabilities(x: Array, pos: Array, kpos: Array) -> Array:
        return softmax(np.where(_own_keys(c, len(pos))[1], x * node.attr("scale"), -np.inf))

    return probabilities


def _own_values(c: Context, node: Node) -> Function:
    own = standard(node)

    def values(prob: Array, v: Array) -> Array:
        index, _seen = _own_keys(c, prob.shape[1])
        spread = np.zeros_like(prob)
        heads, rows = np.arange(prob.shape[0])[:, None, None], np.arange(prob.shape[1])[None, :, None]
        np.add.at(spread, (heads, rows, index[None]), prob)
        return own(spread, v)

    return values


_OWN_STEP: dict[str, Callable[[Context, Node], Function]] = {
    "kq": _own_scores,
    "attn_softmax": _own_probabilities,
    "kqv": _own_values,
}


@plant("kv-recreated", "decode sees its own step alone", op=_OWN_STEP)
def own_step(c: Context, node: Node, p: float) -> Change | None:
    """Each step creates a new cache, so a query sees only the keys of its own step, at the left of the row."""
    soft = sibling(c, node, "kq_soft_max")
    return None if soft is None or soft.weights else Change(node, _OWN_STEP[node.op](c, node))


def _coarse(kind: str) -> Callable[[Array], Array]:
    def rounded(rows: Array) -> Array:
        flat = rows.reshape(len(rows), -1).astype(np.float32)
        return codecs.decode(kind, codecs.encode(kind, flat)).reshape(rows.shape).astype(rows.dtype)

    return rounded


def _quantised_cache(kind: str, ops: tuple[str, ...], what: str) -> None:
    @plant("kv-quantised", f"{what} kept as {kind}", op=ops)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if (c.hp.n_head_kv * c.hp.n_embd_head) % 32:
            return None
        own, rounded = standard(node), _coarse(kind)
        return Change(node, lambda a, kv: own(a, rounded(kv)))


for _kind in ("Q8_0", "Q4_0"):
    _quantised_cache(_kind, ("kq",), "keys")
    _quantised_cache(_kind, ("kq", "kqv"), "keys and values")


@plant(
    "kv-shift-unrotated",
    "keys older than {p} rows kept the phase of another place",
    Search(2, 64, (4,), False, True, 32, rows=True),
    op="kq",
)
def unrotated_shift(c: Context, node: Node, p: float) -> Change | None:
    key, shift = rotated_key(c, node), int(p)
    if key is None:
        return None
    own = standard(node)

    def run(q: Array, k: Array, *factors: Array) -> Array:
        right, moved = own(q, k), own(q, turned(key, k, np.full(len(k), shift), factors))
        old = np.arange(len(q))[:, None] - np.arange(len(k))[None, :] >= shift
        return np.where(old[None], moved, right)

    return Change(replace(node, weights=key.weights), run)
