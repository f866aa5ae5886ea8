"""Edits of stage `rope`: rotation and positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.reference.functions import rope
from assay.graph import Node
from assay.verify.faults.fault import Array, Change, Context, Search, layer, plant, sibling, standard, width

_BASE = Search(100.0, 1e8, (1e4, 5e5, 1e6, 1e5, 2e4, 8e4), points=37)


def is_rotation(node: Node) -> bool:
    return node.op == "rope"


def rotated_key(c: Context, node: Node) -> Node | None:
    """The node of the same layer that rotates the keys, if the layer has one."""
    key = sibling(c, node, "Kcur")
    return key if key is not None and is_rotation(key) else None


def turned(node: Node, x: Array, positions: Array, factors: tuple[Array, ...] = (), **changes: Any) -> Array:
    """The node's rotation with some attributes changed."""
    return rope(x, positions, *factors, **{**node.all_attrs(), **changes})


def _rope(
    fault: str,
    label: str,
    formula: Callable[[Context, Node, Array, Array, tuple[Array, ...]], Array],
    roles: str = "",
    *,
    from_zero: bool = False,
) -> None:
    """Another rotation. A formula that rotates each head from its first value on sets `from_zero`."""

    @plant(fault, label, op="rope", roles=roles or ())
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if from_zero and node.attr("offset"):
            return None
        return Change(node, lambda x, pos, *factors: formula(c, node, x, pos, factors))


def heads(node: Node, x: Array) -> Array:
    return x.reshape(x.shape[0], node.attr("n_head"), -1)


@plant("rope-type", "pairs (i, i + d/2)", op="rope")
def halves(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(mode="neox")) if node.attr("mode") == "norm" else None


@plant("rope-type", "pairs (2i, 2i + 1)", op="rope")
def neighbours(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(mode="norm")) if node.attr("mode") == "neox" else None


def angles(node: Node, positions: Array, factors: tuple[Array, ...]) -> tuple[Array, Array]:
    """cos and sin [T, 1, n_rot/2] of the node's plain rotation."""
    n_rot = node.attr("n_rot")
    i = np.arange(n_rot // 2)
    theta = positions[:, None] * float(node.attr("base")) ** (-2.0 * i / n_rot) * node.attr("freq_scale")
    if factors:
        theta = theta / factors[0]
    return np.cos(theta)[:, None, :], np.sin(theta)[:, None, :]


def _overlapping(c: Context, node: Node, x: Array, pos: Array, factors: tuple[Array, ...]) -> Array:
    """Pairs (0,1), (1,2), … in turn, each reading the result of the one before."""
    cos, sin = angles(node, pos, factors)
    out = heads(node, x).copy()
    for i in range(node.attr("n_rot") // 2):
        a, b = out[..., i].copy(), out[..., i + 1].copy()
        out[..., i] = a * cos[..., i] - b * sin[..., i]
        out[..., i + 1] = a * sin[..., i] + b * cos[..., i]
    return out


def _aliased(c: Context, node: Node, x: Array, pos: Array, factors: tuple[Array, ...]) -> Array:
    cos, sin = angles(node, pos, factors)
    out = turned(node, x, pos, factors)
    n_rot, x = node.attr("n_rot"), heads(node, x)
    first, second = (slice(0, n_rot, 2), slice(1, n_rot, 2)) if node.attr("mode") == "norm" else (
        slice(0, n_rot // 2), slice(n_rot // 2, n_rot))  # fmt: skip
    out[..., second] = out[..., first] * sin + x[..., second] * cos
    return out


def _global_index(per: str) -> Callable[[Context, Node, Array, Array, tuple[Array, ...]], Array]:
    """The frequency index continues from head to head; the exponent divides by a head's width or by n_embd."""

    def formula(c: Context, node: Node, x: Array, pos: Array, factors: tuple[Array, ...]) -> Array:
        x = heads(node, x)
        n_head, half = node.attr("n_head"), node.attr("n_rot") // 2
        whole = c.hp.n_embd if per == "width" else 2 * half
        i = np.arange(n_head * half).reshape(n_head, half)
        theta = pos[:, None, None] * float(node.attr("base")) ** (-2.0 * i / whole) / (factors[0] if factors else 1.0)
        return rotate(node, x, np.cos(theta), np.sin(theta))

    return formula


def rotate(node: Node, x: Array, cos: Array, sin: Array) -> Array:
    """Pairs of each head turned by given angles [T, H, n_rot/2]."""
    n_rot, out = node.attr("n_rot"), x.copy()
    if node.attr("mode") == "norm":
        first, second = slice(0, n_rot, 2), slice(1, n_rot, 2)
    else:
        first, second = slice(0, n_rot // 2), slice(n_rot // 2, n_rot)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def _by_head(c: Context, node: Node, x: Array, pos: Array, factors: tuple[Array, ...]) -> Array:
    n_head = node.attr("n_head")
    cos, sin = angles(node, np.arange(n_head), factors)
    return rotate(node, heads(node, x), cos.swapaxes(0, 1), sin.swapaxes(0, 1))


_rope("rope-overlap-pairs", "pairs (0,1), (1,2), (2,3), …", _overlapping, from_zero=True)
_rope("rope-inplace-alias", "the second of a pair from the new first", _aliased, from_zero=True)
_rope("rope-global-index", "the index runs over all heads", _global_index("head"), from_zero=True)
_rope(
    "rope-global-index", "the index runs over all heads, exponent over n_embd", _global_index("width"), from_zero=True
)
_rope("rope-one-side", "q not rotated", lambda c, n, x, pos, f: heads(n, x), "Qcur")
_rope("rope-one-side", "k not rotated", lambda c, n, x, pos, f: heads(n, x), "Kcur")
_rope("rope-missing", "no rotation", lambda c, n, x, pos, f: heads(n, x))
_rope("rope-twice", "k turned twice", lambda c, n, x, pos, f: turned(n, x, 2 * pos, f), "Kcur")
_rope("rope-twice", "q and k turned twice", lambda c, n, x, pos, f: turned(n, x, 2 * pos, f))
_rope("rope-axis", "the angle counts heads", _by_head, from_zero=True)
_rope("rope-type", "the rotation turned the other way", lambda c, n, x, pos, f: turned(n, x, -pos, f))


@plant("rope-base", "base {p}", _BASE, op="rope")
def base(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(base=p)) if p != node.attr("base") else None


@plant("gguf-default-hparam", "rope base 10000", op="rope")
def default_base(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(base=1e4)) if node.attr("base") != 1e4 else None


@plant("rope-freq-factors", "rope_freqs ignored", op="rope", weighted=True)
def no_factors(c: Context, node: Node, p: float) -> Change | None:
    return Change(replace(node, weights=()))


@plant("rope-freq-factors", "rope_freqs multiplied", op="rope", weighted=True)
def factors_multiplied(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, pos, factors: turned(node, x, pos, (1 / factors,)))


_LINEAR = Search(1 / 64, 64.0, (0.5, 2.0, 4.0, 0.25, 8.0, 0.125), points=49, neutral=1.0)


@plant("rope-linear", "angles times {p}", _LINEAR, op="rope")
def linear_scale(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(freq_scale=node.attr("freq_scale") * p))


@plant("rope-scheme-confused", "all angles divided by the largest of rope_freqs", op="rope", weighted=True)
def scheme(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, pos, factors: turned(node, x, pos, freq_scale=1.0 / float(np.max(factors))))


@plant(
    "rope-yarn-factor",
    "q and k longer by {p}",
    Search(0.5, 2.0, (1.0 + 0.1 * np.log(4), 1.0 + 0.1 * np.log(8), 1.0 + 0.1 * np.log(32)), points=21, neutral=1.0),
    op="rope",
)
def magnitude(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(attn_factor=node.attr("attn_factor") * p))


def has_ramp(c: Context, node: Node) -> bool:
    """Does the rotation blend two frequencies, as YaRN does?"""
    return bool(node.attr("ext_factor"))


_CONTEXTS = Search(64, 1 << 22, tuple(float(1 << n) for n in range(11, 19)), whole=True, points=65)


@plant("rope-yarn-factor", "YaRN's ramp for an original context of {p}", _CONTEXTS, op="rope", when=has_ramp)
def original_context(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(n_ctx_orig=int(p))) if int(p) != node.attr("n_ctx_orig") else None


@plant("rope-yarn-factor", "YaRN without its ramp: all angles scaled", op="rope", when=has_ramp)
def no_ramp(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(ext_factor=0.0))


def _cut(factors: tuple[Array, ...], n_rot: int) -> tuple[Array, ...]:
    return tuple(f[: n_rot // 2] for f in factors)


def _partial(label: str, count: Callable[[int], int], exponent: Callable[[int], int]) -> None:
    @plant("rope-partial", label, op="rope")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        rotated = width(c, node) - node.attr("offset")
        n_rot, whole, right = count(rotated), exponent(rotated), node.attr("n_rot")
        if (n_rot, whole) == (right, right) or n_rot % 2 or (node.weights and n_rot > right):
            return None
        base = float(node.attr("base")) ** (n_rot / whole)  # base^(-2i/whole) = (base^(n_rot/whole))^(-2i/n_rot)
        return Change(node, lambda x, pos, *f: turned(node, x, pos, _cut(f, n_rot), n_rot=n_rot, base=base))


_partial("all of each head rotated", lambda d: d, lambda d: d)
_partial("half of each head rotated", lambda d: d // 2, lambda d: d // 2)
_partial("half of each head rotated, exponent over the whole", lambda d: d // 2, lambda d: d)
_partial("a quarter of each head rotated", lambda d: d // 4, lambda d: d // 4)
_partial("all of each head, exponent over half of it", lambda d: d, lambda d: d // 2)
_partial("all of each head, exponent over twice its width", lambda d: d, lambda d: 2 * d)


def _turned_part(c: Context, node: Node) -> bool:
    """Is a part of each head rotated, from its first value on?"""
    return not node.attr("offset") and node.attr("n_rot") < width(c, node) and not node.attr("axes")


@plant("rope-partial", "the last values of each head rotated, not the first", op="rope", when=_turned_part)
def last_values(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(offset=width(c, node) - node.attr("n_rot")))


@plant("rope-partial", "value i paired with that of the head's other half", op="rope", when=_turned_part)
def other_half(c: Context, node: Node, p: float) -> Change | None:
    """Pairs (i, i + d/2) for the first n_rot/2 values of a head of d."""
    half, far = node.attr("n_rot") // 2, width(c, node) // 2
    order = [*range(half), *range(far, far + half)]
    own = standard(node.with_attrs(mode="neox"))

    def run(x: Array, *rest: Array) -> Array:
        x, y = heads(node, x), heads(node, x).copy()
        y[..., order] = own(np.concatenate([x[..., order], x[..., order]], axis=-1), *rest)[..., : 2 * half]
        return y

    return Change(node, run) if half <= far else None


@plant("rope-on-v", "V rotated before it is stored", roles="Vcur")
def on_v(c: Context, node: Node, p: float) -> Change | None:
    key = rotated_key(c, node)
    if key is None or c.hp.n_embd_head != c.hp.n_embd_head_v:
        return None
    own = standard(node)
    n = len(node.weights)
    return Change(
        replace(node, inputs=(*node.inputs, "inp_pos"), weights=(*node.weights, *key.weights)),
        lambda x, pos, *w: turned(key, own(x, *w[:n]), pos, w[n:]).reshape(len(x), -1),
    )


@plant("rope-on-v", "V rotated when read", op="kqv")
def on_read_v(c: Context, node: Node, p: float) -> Change | None:
    key = rotated_key(c, node)
    if key is None or c.hp.n_embd_head != c.hp.n_embd_head_v:
        return None
    own = standard(node)
    return Change(
        replace(node, inputs=(*node.inputs, "inp_kpos"), weights=key.weights),
        lambda q, v, pos, *f: own(q, turned(key, v, pos, f)),
    )


@plant("rope-twice", "keys turned again when read", op="kq")
def twice_on_read(c: Context, node: Node, p: float) -> Change | None:
    key = rotated_key(c, node)
    if key is None:
        return None
    own = standard(node)
    return Change(
        replace(node, inputs=(*node.inputs, "inp_kpos"), weights=key.weights),
        lambda q, k, pos, *f: own(q, turned(key, k, pos, f)),
    )


@plant("rope-nope-layer", "no rotation in each fourth layer", op="rope")
def nope(c: Context, node: Node, p: float) -> Change | None:
    if ((layer(node) or 0) + 1) % 4:
        return None
    return Change(node, lambda x, pos, *f: heads(node, x))


# -- positions -----------------------------------------------------------------------------------------------------


def _positions(
    fault: str,
    label: str,
    change: Callable[[Context, Array, int], Array],
    search: Search | None = None,
    upper: bool = False,
) -> None:
    """Rotation at other positions, with the right mask."""

    @plant(fault, label, search, op="rope")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if upper and not layer(node):
            return None
        return Change(node, lambda x, pos, *f: turned(node, x, change(c, pos, int(p)), f))


def _in_decode(change: Callable[[Array, Array, int], Array]) -> Callable[[Context, Array, int], Array]:
    def moved(c: Context, pos: Array, p: int) -> Array:
        return np.where(c.decoding(len(pos)), change(pos, c.starts(len(pos)), p), pos)

    return moved


_positions("pos-all-same", "every row of a step at its first position", lambda c, pos, p: pos[c.starts(len(pos))])
_positions("pos-all-same", "every row at position 0", lambda c, pos, p: 0 * pos)
_positions("pos-all-same", "every row at position 1", lambda c, pos, p: 0 * pos + 1)
_positions("pos-reset-decode", "decode at position 0", _in_decode(lambda pos, start, p: 0 * pos))
_positions(
    "pos-reset-decode",
    "decode counts from 0",
    lambda c, pos, p: np.where(c.decoding(len(pos)), pos - (c.steps or (0,))[0], pos),
)
_positions("pos-off-by-one-decode", "decode one position late", _in_decode(lambda pos, start, p: pos + 1))
_positions("pos-off-by-one-decode", "decode one position early", _in_decode(lambda pos, start, p: pos - 1))
_positions(
    "pos-off-by-one-decode",
    "decode one position late from layer 1 on",
    _in_decode(lambda pos, start, p: pos + 1),
    upper=True,
)
_positions(
    "pos-off-by-one-decode",
    "decode one position early from layer 1 on",
    _in_decode(lambda pos, start, p: pos - 1),
    upper=True,
)


@plant("pos-off-by-one-decode", "decode one position late, past an empty row of the cache", op=("rope", "attn_softmax"))
def past_an_empty_row(c: Context, node: Node, p: float) -> Change | None:
    """The row of zeros has the score 0 and adds nothing to the sum of values."""
    if len(c.steps) < 2:
        return None
    if node.op == "rope":
        return Change(node, lambda x, pos, *f: turned(node, x, pos + c.decoding(len(pos)), f))
    own = standard(node)

    def run(x: Array, pos: Array, kpos: Array, *more: Array) -> Array:
        wider = np.concatenate([x, np.zeros((*x.shape[:2], 1), x.dtype)], axis=-1)
        return np.asarray(own(wider, pos, np.append(kpos, kpos[c.steps[0]]), *more)[..., :-1])

    return Change(node, run)


def _last_row(shift: int) -> Callable[[Context, Array, int], Array]:
    def moved(c: Context, pos: Array, p: int) -> Array:
        last = np.arange(len(pos)) == (c.steps or (len(pos),))[0] - 1
        return np.where(last, np.maximum(pos + shift, 0), pos)

    return moved


_positions("pos-last-off-by-one", "the prompt's last token one position late", _last_row(1))
_positions("pos-last-off-by-one", "the prompt's last token one position early", _last_row(-1))
_positions(
    "pos-clamped",
    "positions held at {p}",
    lambda c, pos, p: np.minimum(pos, p),
    Search(1, 4096, (2047, 4095, 511, 1023), True, True, 61, rows=True),
)
_positions(
    "pos-padding",
    "decode {p} positions ahead",
    _in_decode(lambda pos, start, p: pos + p),
    Search(2, 64, (2, 10, 24, 26, 32), False, True, 63),
)
_positions(
    "prefill-chunk",
    "positions restart every {p} tokens",
    lambda c, pos, p: pos % max(p, 1),
    Search(2, 64, (4, 32), False, True, 63, rows=True),
)
_positions(
    "kv-evict-offset",
    "positions held back by {p} from row {p} on",
    lambda c, pos, p: np.where(pos >= p, pos - p // 2 - 1, pos),
    Search(2, 64, (4,), False, True, 63, rows=True),
)


@plant("pos-global-offset", "all positions {p} too far", Search(1, 2048, (1, 2, 11), True, True, 20), op="rope")
def offset(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda x, pos, *f: turned(node, x, pos + int(p), f))
