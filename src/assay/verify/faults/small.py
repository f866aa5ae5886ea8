"""Edits of small mistakes: a narrow type in one place, one wrong head, a clamp, a file that ends too early.

A coarse engine rounds everywhere, and rightly. A fault of precision (`FaultKind.PRECISION`) is a fault only where the
rest of the engine computes in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from assay.engines.reference.functions import linear
from assay.gguf import codecs
from assay.graph import Node
from assay.verify.faults.attention_edits import masked, softmax
from assay.verify.faults.block_edits import STREAM, over_features, rms
from assay.verify.faults.fault import Array, Change, Context, Search, by_heads, plant, standard
from assay.verify.faults.rotary import rotated_key, turned
from assay.verify.faults.tensors import decoded, first_element, tensor_type, with_tensor

HALF, BFLOAT = "half precision", "bfloat16"


def half(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def bfloat(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)


NARROW: dict[str, Callable[[Array], Array]] = {HALF: half, BFLOAT: bfloat}


# -- the residual stream -------------------------------------------------------------------------------------------


def _residual(kind: str) -> None:
    @plant("residual-half", f"residual sums in {kind}", op="add", roles=STREAM)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, narrow = standard(node), NARROW[kind]
        return Change(node, lambda *operands: narrow(own(*operands)))


for _kind in NARROW:
    _residual(_kind)

# -- norms and softmax ---------------------------------------------------------------------------------------------


def _norm_weight(kind: str) -> None:
    @plant("norm-weight-half", f"norm weights in {kind}", op=("rms_norm", "layer_norm"), weighted=True)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, narrow = standard(node), NARROW[kind]
        return Change(node, lambda x, *w: own(x, *map(narrow, w)))


def _norm_whole(
    kind: str, label: str, formula: Callable[[Array, Array, float, Callable[[Array], Array]], Array]
) -> None:
    @plant("norm-half", f"{label} in {kind}", op="rms_norm", weighted=True, when=over_features)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        eps, narrow = node.attr("eps"), NARROW[kind]
        return Change(node, lambda x, w: formula(x, w, eps, narrow))


def _probabilities(kind: str, label: str, formula: Callable[[Array, Callable[[Array], Array]], Array]) -> None:
    @plant("softmax-half", f"{label} in {kind}", op="attn_softmax", weighted=False)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        scale, window, narrow = node.attr("scale"), node.attr("window") or 0, NARROW[kind]
        return Change(node, lambda x, pos, kpos: formula(masked(x, pos, kpos, scale, window), narrow))


def _narrow_softmax(s: Array, narrow: Callable[[Array], Array]) -> Array:
    s = narrow(s)
    e = narrow(np.exp(narrow(s - s.max(-1, keepdims=True))))
    total = np.zeros_like(e[..., 0])
    for i in range(e.shape[-1]):
        total = narrow(total + e[..., i])
    return narrow(e / total[..., None])


def _narrow_terms(s: Array, narrow: Callable[[Array], Array]) -> Array:
    s = narrow(s)
    e = narrow(np.exp(narrow(s - s.max(-1, keepdims=True))))
    return narrow(e / e.sum(-1, keepdims=True))


for _kind in NARROW:
    _norm_weight(_kind)
    _norm_whole(_kind, "the normed value", lambda x, w, eps, n: n(x / rms(x, eps)) * w)
    _norm_whole(
        _kind, "the mean square", lambda x, w, eps, n: x / np.sqrt(n(np.mean(x * x, -1, keepdims=True)) + eps) * w
    )
    _norm_whole(_kind, "all of the norm", lambda x, w, eps, n: n(n(n(x) / n(rms(n(x), eps))) * n(w)))
    _probabilities(_kind, "scores", lambda s, n: softmax(n(s)))
    _probabilities(_kind, "probabilities", lambda s, n: n(softmax(s)))
    _probabilities(_kind, "exponentials and probabilities", _narrow_terms)
    _probabilities(_kind, "all of the softmax", _narrow_softmax)


# -- sums and the cache ------------------------------------------------------------------------------------------------


def _blockwise(block: int, narrow: Callable[[Array], Array], inner: bool, x: Array, w: Array) -> Array:
    """A sum that is rounded after every `block` products; with `inner`, each partial sum is rounded as well."""
    total = np.zeros((len(x), len(w)), x.dtype)
    for at in range(0, w.shape[1], block):
        part = x[:, at : at + block] @ w[:, at : at + block].T
        total = narrow(total + (narrow(part) if inner else part))
    return total


def _accumulator(label: str, total: Callable[[Array, Array], Array]) -> None:
    @plant("accumulate-half", label, op=("linear", "expert_linear"), when=_summed_like_the_others)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return Change(node, partial(_PRODUCTS[len(c.model.file.tensors[node.weights[0]].shape)], total))


def _summed_like_the_others(c: Context, node: Node) -> bool:
    """A float32 matrix among narrow ones, such as a router's, has a separate kernel; a vector is no matrix."""
    wide = tensor_type(c, node.weights[0]) == "F32" and not _all_wide(c)
    return not wide and len(c.model.file.tensors[node.weights[0]].shape) in _PRODUCTS


def _all_wide(c: Context) -> bool:
    return all(info.type.name == "F32" for info in c.model.file.tensors.values())


def _by_expert(total: Callable[[Array, Array], Array], x: Array, chosen: Array, W: Array) -> Array:
    """Each token's products with the matrices of its experts."""
    rows = [[total(x[t, j][None] if x.ndim == 3 else x[t][None], np.asarray(W[int(e)], x.dtype))[0]
             for j, e in enumerate(experts)] for t, experts in enumerate(chosen)]  # fmt: skip
    return np.array(rows, x.dtype)


def _by_matrix(total: Callable[[Array, Array], Array], x: Array, W: Array) -> Array:
    return total(x.reshape(len(x), -1), np.asarray(W[:]))


_PRODUCTS: dict[int, Callable[..., Array]] = {2: _by_matrix, 3: _by_expert}  # by the axes of the weight


def _sums(kind: str) -> None:
    narrow = NARROW[kind]
    for block in (16, 32, 64, 256):
        _accumulator(f"sums in {kind}, kept after {block} products", partial(_blockwise, block, narrow, False))
    _accumulator(f"sums in {kind}, blocks of 32 rounded too", partial(_blockwise, 32, narrow, True))
    _accumulator(f"results in {kind}", lambda x, w: narrow(linear(x, w)))


for _kind in NARROW:
    _sums(_kind)


def _q8_of_half(rows: Array) -> Array:
    flat = half(rows).reshape(len(rows), -1).astype(np.float32)
    return codecs.decode("Q8_0", codecs.encode("Q8_0", flat)).reshape(rows.shape).astype(rows.dtype)


def _stored(label: str, narrow: Callable[[Array], Array], blocks: int = 1) -> None:
    @plant(
        "kv-rounded-twice", label, op=("kq", "kqv"),
        when=lambda c, node: (c.hp.n_head_kv * c.hp.n_embd_head) % blocks == 0,
    )  # fmt: skip
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda a, kv: own(a, narrow(kv)))


_stored("keys and values in bfloat16, then in half precision", lambda kv: half(bfloat(kv)))
_stored("keys and values in half precision, then in Q8_0", _q8_of_half, 32)


@plant("kv-rounded-twice", "keys in half precision before the rotation and after it", op="kq")
def rounded_before_rope(c: Context, node: Node, p: float) -> Change | None:
    key = rotated_key(c, node)
    if key is None or not by_heads(c, node.inputs[1]):
        return None
    own = standard(node)
    return Change(
        replace(node, inputs=(*node.inputs, key.inputs[0], "inp_kpos"), weights=key.weights),
        lambda q, k, before, pos, *f: own(q, half(turned(key, half(before), pos, f)).reshape(k.shape)),
    )


# -- one head, one clamp -----------------------------------------------------------------------------------------------

_HEADS = Search(0, 63, (), False, True, 64, nominal=True)


def _one_head(label: str, wrong: Callable[[Array, int], Array]) -> None:
    @plant("head-one-wrong", label, _HEADS, op="kqv")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        head = int(p)
        if head >= c.hp.n_head:
            return None
        own = standard(node)

        def run(*operands: Array) -> Array:
            value = own(*operands).copy()
            value[head] = wrong(value, head)
            return value

        return Change(node, run)


_one_head("head {p} is zero", lambda value, head: np.zeros_like(value[head]))
_one_head("head {p} holds the values of the head before", lambda value, head: value[head - 1])
_one_head("head {p} holds the values of the head after", lambda value, head: value[(head + 1) % len(value)])


@plant("head-one-wrong", "head {p} reads the next key and value head", _HEADS, op=("kq", "kqv"))
def next_key_head(c: Context, node: Node, p: float) -> Change | None:
    head = int(p)
    if head >= c.hp.n_head or c.hp.n_head_kv < 2 or not by_heads(c, node.inputs[1]):
        return None
    order = np.arange(c.hp.n_head) // (c.hp.n_head // c.hp.n_head_kv)
    order[head] = (order[head] + 1) % c.hp.n_head_kv
    own = standard(node)
    return Change(node, lambda a, kv: own(a, kv[:, order]))


_LIMIT = Search(0.05, 1e4, (10.0, 100.0, 5.0, 50.0, 30.0, 20.0, 1.0), points=33, limit=True)


def _clamp(label: str, **where: Any) -> None:
    @plant("clamp-silent", label, _LIMIT, **where)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        return Change(node, lambda *operands: np.clip(own(*operands), -p, p))


_clamp("activations clipped to ±{p}", op="glu")
_clamp("the residual stream clipped to ±{p}", op="add", roles=STREAM)
_clamp("the layer's output clipped to ±{p}", op="add", roles="l_out")
_clamp("the feed-forward's output clipped to ±{p}", op="linear", roles=("ffn_out", "ffn_down"))
_clamp("scores clipped to ±{p} before they are scaled", op="kq")


# -- the end of a file -------------------------------------------------------------------------------------------------


def _ends(c: Context, nodes: Sequence[Node]) -> list[float]:
    """Places where a download may have stopped: the beginning and the middle of every tensor that these nodes read.

    The last comes first, because a file that is zero from an earlier place on is zero from a later one on as well.
    """
    found = set[float]()
    for name in {w for node in nodes for w in node.weights}:
        info = c.model.file.tensors[name]
        found |= {info.offset, info.offset + info.nbytes // 2}
    return sorted(found, reverse=True)


@plant("weight-torn", "zeros from byte {p} of the file on", Search(0, 1e15, (), False, True, 0, scan=_ends))
def torn(c: Context, node: Node, p: float) -> Change | None:
    tensors = [c.model.file.tensors[w] for w in node.weights]
    if len(tensors) != 1 or tensors[0].part or tensors[0].offset + tensors[0].nbytes <= p:
        return None

    def kept(name: str, rows: slice) -> Array:
        info = c.model.file.tensors[name]
        value = decoded(c, name, rows).copy()
        whole = max(0, int(p) - info.offset) // info.type.type_size * info.type.block_size
        value.reshape(-1)[max(0, whole - first_element(c, name, rows)) :] = 0
        return value

    change = with_tensor(node, kept)
    return None if change is None else replace(change, preview=None)  # the first features are right
