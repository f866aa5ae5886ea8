"""Generators of the grammar for the mask: which keys it leaves visible, and what a hidden key gets in its place.

tiles            a loop over tiles masks whole tiles, so that later keys of the query's own tile stay visible; the
                 window's first tile is visible from its beginning
other rules      the first keys are visible to all, a query sees the keys after it, some heads are not masked
another value    hidden keys get a finite score, or the mask comes before a soft cap that makes it finite
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from assay.engines.reference.functions import attn_mask, attn_softmax
from assay.graph import Node, Trait
from assay.verify.faults.description import VISIBLE, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit
from assay.verify.faults.mask_grammar import TILES, Mask

MOST_LEFT = 16  # keys of a prefix that all tokens see
FINITE = (0.0, -1.0, -10.0)  # scores of hidden keys, or what is added to them
MOST_HEADS = 64

# Which keys each query sees [T, S] (or by heads [H, T, S]), from the right ones, the window and the keys of its call.
Rule = Callable[[Mask, int, Mask], Mask]


def _tile(size: int, shown: Mask, window: int, written: Mask) -> Mask:
    rows, keys = _places(shown)
    return np.asarray(shown | (written & (keys // size == rows // size)))


def _window_tile(size: int, shown: Mask, window: int, written: Mask) -> Mask:
    rows, keys = _places(shown)
    first = np.maximum(rows - window + 1, 0) // size * size
    return shown | ((keys >= first) & (keys <= rows)) if window else shown


def _tile_of_first(size: int, shown: Mask, window: int, written: Mask) -> Mask:
    rows, keys = _places(shown)
    return shown & (keys <= rows // size * size)


def _prefix(n: int, shown: Mask, window: int, written: Mask) -> Mask:
    return shown | (written & (_places(shown)[1] < n))


def _turned(shown: Mask, window: int, written: Mask) -> Mask:
    rows, keys = _places(shown)
    return written & (keys >= rows)


def _places(shown: Mask) -> tuple[Array, Array]:
    return np.arange(shown.shape[0])[:, None], np.arange(shown.shape[1])[None, :]


_RULES: dict[str, Rule] = {
    **{f"later keys of the query's own tile of {n} stay visible": partial(_tile, n) for n in TILES},
    **{f"the window begins with a whole tile of {n} keys": partial(_window_tile, n) for n in TILES},
    **{f"all queries of a tile of {n} see what its first one sees": partial(_tile_of_first, n) for n in TILES},
    "a query sees the keys from its own on: the mask is transposed": _turned,
    **{
        f"the first {n} keys are visible to all queries of their call": partial(_prefix, n) for n in range(2, MOST_LEFT)
    },
}


def seen_keys(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Other rules of what a query sees. Of those that agree on these tokens the first, and none that hides nothing."""
    masks = [node for node in nodes if node.op == "attn_softmax"]
    n = sum(c.steps)
    if not masks or n < 2:
        return
    right, ends = ~attn_mask(np.arange(n), np.arange(n)), c.ends(n)
    written = _places(right)[1] < ends[:, None]
    windows = {node.attr("window") for node in masks}
    seen = {_key(right, w, right, written) for w in windows} | {_key(written, w, right, written) for w in windows}
    for words, rule in _RULES.items():
        keys = {_key(rule(right & _inside(n, w), w, written), w, right, written) for w in windows}
        if keys <= seen:
            continue
        seen |= keys
        yield VISIBLE, placed(words, _seeing(rule), ("attn_softmax",))
    most = min(int(c.at(node).hp.n_head) for node in masks)
    for head in range(min(most, MOST_HEADS)) if most > 1 else ():
        yield VISIBLE, placed(f"head {head} is not masked", _seeing(partial(_one_head, head, most)), ("attn_softmax",))
    if most > 1:
        yield VISIBLE, placed("only head 0 is masked", _seeing(partial(_other_heads, most)), ("attn_softmax",))


def _inside(n: int, window: int) -> Mask:
    at = np.arange(n)
    return at[:, None] - at[None, :] < window if window else np.ones((n, n), bool)


def _key(mask: Mask, window: int, right: Mask, written: Mask) -> tuple[int, bytes]:
    return window, (mask & written & (_inside(len(right), window) | mask)).tobytes()


def _one_head(head: int, heads: int, shown: Mask, window: int, written: Mask) -> Mask:
    return np.where(np.arange(heads)[:, None, None] == head, written, shown)


def _other_heads(heads: int, shown: Mask, window: int, written: Mask) -> Mask:
    return np.where(np.arange(heads)[:, None, None] == 0, shown, written)


def _usual(node: Node) -> bool:
    """Does the node mask by positions alone, and scale its scores up?"""
    return node.has(Trait.SCORES) and bool(node.attr("causal")) and node.attr("scale") > 0


def _masked(c: Context, node: Node, scores: Callable[[Array, Mask, Mask], Array]) -> Change | None:
    """The softmax of `scores(x, what is right to see, what the call has written)`, without another mask."""
    if not _usual(node) or any(name not in ("inp_pos", "inp_kpos") for name in node.inputs[1:]):
        return None
    attrs = node.all_attrs()
    window, chunk = attrs.get("window") or 0, attrs.get("chunk") or 0
    bare = {**attrs, "causal": False, "window": 0, "chunk": 0}

    def run(x: Array, pos: Array, kpos: Array, *sinks: Array) -> Array:
        shown = ~attn_mask(pos, kpos, window, chunk=chunk)
        written = np.arange(len(kpos))[None, :] < c.ends(len(pos))[:, None]
        if shown.shape != x.shape[1:] or shown.shape[0] != written.shape[0]:
            return attn_softmax(x, pos, kpos, *sinks, **attrs)
        return np.nan_to_num(attn_softmax(scores(x, shown, written), pos, kpos, *sinks, **bare))

    return Change(node, run)


def _seeing(rule: Rule) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        window = node.attr("window") or 0
        return _masked(c, node, lambda x, shown, written: np.where(rule(shown, window, written), x, -np.inf))

    return edit


# -- what a hidden key gets --------------------------------------------------------------------------------------------

Score = Callable[[Array, Node], Array]  # of the scores that the node reads: those of hidden keys


def hidden_scores(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A finite score in place of minus infinity: the mask's own number is small, or a later step makes it finite."""
    masks = [node for node in nodes if node.op == "attn_softmax"]
    scores: dict[str, Score] = {}
    caps = sorted({cap for node in masks if (cap := _cap(c, node))})
    if caps:
        number = "/".join(f"{cap:g}" for cap in caps)
        scores[f"{{}} get the score -{number}: the mask comes before the soft cap"] = lambda x, node: np.full_like(
            x, -_cap(c, node)
        )
    for value in FINITE:
        scores[f"{{}} get the score {value:g}, not minus infinity"] = lambda x, node, v=value: np.full_like(  # type: ignore[misc]
            x, v / node.attr("scale")
        )
        if value:
            scores[f"{{}} get {value:g} added to their scores, not minus infinity"] = (
                lambda x, node, v=value: x + v / node.attr("scale")  # type: ignore[misc]
            )
    windowed = any(node.attr("window") for node in masks)
    for words, score in scores.items() if masks else ():
        for whose, which in _WHOSE.items() if windowed else list(_WHOSE.items())[:1]:
            yield VISIBLE, placed(words.format(whose), _scored(score, which), ("attn_softmax",))


def _cap(c: Context, node: Node) -> float:
    """The soft cap of the scores that the node reads, 0 without one."""
    before = c.model.graph.by_name.get(node.inputs[0])
    return float(before.attr("cap")) if before is not None and before.op == "softcap" else 0.0


# Of the keys that a query should not see: those that get a score, from (query, key) places.
_WHOSE: dict[str, Callable[[Array, Array], Mask]] = {
    "hidden keys": lambda rows, keys: keys == keys,
    "keys before the window": lambda rows, keys: keys <= rows,
    "later keys": lambda rows, keys: keys > rows,
}


def _scored(score: Score, which: Callable[[Array, Array], Mask]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        window = node.attr("window") or 0

        def scores(x: Array, shown: Mask, written: Mask) -> Array:
            some = written & np.broadcast_to(which(*_places(shown)), shown.shape)
            return np.where(shown, x, np.where(some, score(x, node), -np.inf))

        only_window = not bool(which(np.array([0]), np.array([1]))[0])
        return None if only_window and not window else _masked(c, node, scores)

    return edit


GENERATORS = (seen_keys, hidden_scores)
