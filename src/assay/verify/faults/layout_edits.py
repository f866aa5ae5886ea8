"""Edits of stages `weight layout` and `embedding`, and of the head's matrix: right numbers in the wrong places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import linear
from assay.graph import Node
from assay.verify.dumps.observation import hf_order
from assay.verify.faults.fault import (
    Array,
    Change,
    Context,
    Search,
    by_heads,
    is_output,
    plant,
    role,
    standard,
    width,
    with_weight,
)


def transposed(c: Context, name: str) -> Array:
    """The tensor's data taken as [in, out]."""
    value = c.model.file.decode(name)
    rows, columns = value.shape
    return value.reshape(columns, rows).T


def is_matrix(c: Context, node: Node) -> bool:
    return len(c.model.file.tensors[node.weights[0]].shape) == 2


def is_square(c: Context, node: Node) -> bool:
    shape = c.model.file.tensors[node.weights[0]].shape
    return len(shape) == 2 and shape[0] == shape[1]


def _transpose(fault: str, label: str, when: Callable[[Context, Node], bool]) -> None:
    @plant(fault, label, op="linear", when=when)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return with_weight(node, lambda: transposed(c, node.weights[0])) if is_matrix(c, node) else None


_transpose("w-transposed", "the data read as [in, out]", lambda c, n: not is_output(c, n))
_transpose("gguf-dims-order", "ne taken as a row-major shape", is_matrix)
_transpose("w-square-only-transposed", "square matrices transposed", is_square)
_transpose("head-transposed", "the head read as [in, vocab]", is_output)
_transpose("head-gemm-ld", "the head's product with the other leading dimension", is_output)


@plant("embd-strided", "E[d * n_vocab + t]", op="embed")
def embd_strided(c: Context, node: Node, p: float) -> Change | None:
    def run(tokens: Array) -> Array:
        table = c.model.file.decode(node.weights[0])
        return table.reshape(table.shape[1], table.shape[0])[:, tokens].T.astype(np.float64)

    return Change(replace(node, weights=()), run)


# -- rows of Q, K, V --------------------------------------------------------------------------------------------

PROJECTED = {"Qcur_proj": "q", "Kcur_proj": "k", "Vcur": "v"}


def heads_of(c: Context, node: Node) -> int:
    return c.hp.n_head if role(node).startswith("Q") else c.hp.n_head_kv


def permuted_rows(node: Node, order: NDArray[np.int64]) -> Change:
    """The node with its output features in another order, as if the weight's rows were."""
    own = standard(node)
    return Change(node, lambda *operands: own(*operands)[:, order])


def within_heads(n_head: int, n: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    return (np.arange(n_head)[:, None] * n + order).reshape(-1)


def to_gguf(n_rows: int, n_head: int) -> NDArray[np.int64]:
    """The converter's reordering of rows for `n_head` heads: halves become pairs."""
    return np.arange(n_rows).reshape(n_head, 2, n_rows // n_head // 2).swapaxes(1, 2).reshape(-1)


@plant("qk-hf-in-interleaved", "rows of Q and K in halves", op="linear", roles=("Qcur_proj", "Kcur_proj"))
@plant("qk-hf-in-interleaved", "rows of Q alone in halves", op="linear", roles="Qcur_proj")
@plant("qk-hf-in-interleaved", "rows of K alone in halves", op="linear", roles="Kcur_proj")
def hf_rows(c: Context, node: Node, p: float) -> Change | None:
    n = c.hp.n_embd_head
    return permuted_rows(node, within_heads(heads_of(c, node), n, hf_order(n)))


def turns_neighbours(c: Context, node: Node) -> bool:
    """Does the rotation pair neighbouring values?"""
    return bool(node.attr("mode") == "norm")


@plant(
    "qk-hf-in-interleaved", "rows of Q and K in halves, rotated as neighbours (read back in the file's order)",
    op="rope", when=turns_neighbours,
)  # fmt: skip
def hf_rows_rotated(c: Context, node: Node, p: float) -> Change | None:
    """The same fault where the reader recognised the dump's heads as halves and converted them to pairs."""
    own, order = standard(node), hf_order(width(c, node))
    back = np.argsort(order)

    def run(x: Array, *rest: Array) -> Array:
        heads = x.reshape(len(x), node.attr("n_head"), -1)
        return own(heads[..., order], *rest)[..., back]

    return Change(node, run)


@plant("qk-gguf-in-halfsplit", "rotate_half on the file's row order", op="rope", when=turns_neighbours)
def gguf_rows(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(mode="neox"))


def _k_perm(label: str, count: Callable[[Context], int]) -> None:
    @plant("k-perm-nhead", label, roles="Kcur_proj")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        rows, n_head = c.hp.n_head_kv * c.hp.n_embd_head, count(c)
        if n_head == c.hp.n_head_kv or rows % (2 * n_head):
            return None
        back = np.argsort(to_gguf(rows, c.hp.n_head_kv))  # GGUF's order to Hugging Face's
        return permuted_rows(node, back[to_gguf(rows, n_head)])


_k_perm("K reordered with n_head", lambda c: c.hp.n_head)
_k_perm("K reordered with n_head / n_kv", lambda c: c.hp.n_head // c.hp.n_head_kv)


@plant("qk-bias-not-permuted", "the bias in halves", op="bias", roles=("Qcur_biased", "Kcur_biased"))
def bias_rows(c: Context, node: Node, p: float) -> Change | None:
    n = c.hp.n_embd_head
    order = within_heads(heads_of(c, node), n, hf_order(n))
    return Change(node, lambda x, b: x + b[order])


def _stack(c: Context, node: Node, stems: tuple[str, ...]) -> list[str] | None:
    """The tensors that a fused matrix would hold, or None where the file lacks one."""
    parts = node.weights[0].split(".")
    names = [".".join([*parts[:2], stem, "weight"]) for stem in stems]
    return names if all(name in c.model.file.tensors for name in names) else None


def _rows_of_stack(
    c: Context, node: Node, stems: tuple[str, ...], rows: Callable[[int], NDArray[np.int64]]
) -> Change | None:
    names = _stack(c, node, stems) if node.weights and node.weights[0].startswith("blk.") else None
    if names is None:
        return None

    def value() -> Array:
        stack = np.concatenate([c.model.file.decode(name) for name in names])
        return stack[rows(len(stack))]

    return with_weight(node, value)


def _grouped(c: Context, node: Node) -> bool:
    """Do several query heads share a key head?"""
    return c.hp.n_head != c.hp.n_head_kv


@plant("qkv-split", "the stack [q; k; v] cut in thirds", op="linear", roles=("Kcur_proj", "Vcur"), when=_grouped)
def qkv_thirds(c: Context, node: Node, p: float) -> Change | None:
    n_kv, which = c.hp.n_head_kv * c.hp.n_embd_head, 1 if role(node) == "Kcur_proj" else 2
    return _rows_of_stack(c, node, ("attn_q", "attn_k", "attn_v"), lambda total: which * (total // 3) + np.arange(n_kv))


@plant(
    "qkv-split",
    "q, k and v of each head or group of heads taken as side by side",
    op=("linear", "slice"),
    roles=PROJECTED,
)
def qkv_groups(c: Context, node: Node, p: float) -> Change | None:
    """The query heads of a group, their key head, their value head, then the next group. Without grouped queries: q, k
    and v of one head, then of the next."""
    n, n_kv, group = c.hp.n_embd_head, c.hp.n_head_kv, c.hp.n_head // c.hp.n_head_kv
    first, count = {"q": (0, group), "k": (group, 1), "v": (group + 1, 1)}[PROJECTED[role(node)]]
    grouped = np.arange(n_kv * (group + 2) * n).reshape(n_kv, group + 2, n)
    rows = grouped[:, first : first + count].reshape(-1)
    if node.op == "slice":  # the file's matrix is fused
        return Change(node, lambda x: x[:, rows]) if node.attr("stop") - node.attr("start") == len(rows) else None
    return _rows_of_stack(c, node, ("attn_q", "attn_k", "attn_v"), lambda _total: rows)


@plant("gateup-split", "even rows for gate, odd rows for up", op="linear", roles=("ffn_gate", "ffn_up"))
def gate_up(c: Context, node: Node, p: float) -> Change | None:
    first = 0 if role(node) == "ffn_gate" else 1
    return _rows_of_stack(c, node, ("ffn_gate", "ffn_up"), lambda total: np.arange(first, total, 2))


def _o_proj(label: str, inverse: bool) -> None:
    @plant("o-proj-head-order", label, op="linear", roles=("attn_out", "attn_out_proj"))
    def edit(c: Context, node: Node, p: float) -> Change | None:
        n_kv, group = c.hp.n_head_kv, c.hp.n_head // c.hp.n_head_kv
        if 1 in (n_kv, group):
            return None
        heads = np.arange(c.hp.n_head).reshape(n_kv, group).T.reshape(-1)
        heads = np.argsort(heads) if inverse else heads
        columns = (heads[:, None] * c.hp.n_embd_head_v + np.arange(c.hp.n_embd_head_v)).reshape(-1)
        return Change(node, lambda x, W: linear(x[:, columns], W))


_o_proj("heads taken as g * n_kv + h", False)
_o_proj("heads taken as h * group + g of the other grouping", True)


def _norm_swap(label: str, names: dict[str, str]) -> None:
    @plant("norm-name-swap", label, op="rms_norm", roles=names)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        other = node.weights[0].replace(role(node), names[role(node)])
        return Change(replace(node, weights=(other,))) if other in c.model.file.tensors else None


_norm_swap("ffn_norm takes attn_norm's weight", {"ffn_norm": "attn_norm"})
_norm_swap("attn_norm takes ffn_norm's weight", {"attn_norm": "ffn_norm"})
_norm_swap("the two exchanged", {"attn_norm": "ffn_norm", "ffn_norm": "attn_norm"})


def axes_exchanged(x: Array, n_head: int) -> Array:
    """[T, n_head * hd] viewed as [T, hd, n_head], then heads first again."""
    flat = x.reshape(len(x), -1)
    return flat.reshape(len(x), -1, n_head).swapaxes(1, 2)


def _axes_of_rotated(c: Context, node: Node) -> Change:
    n_head, own = node.attr("n_head"), standard(node)
    return Change(node, lambda x, *rest: own(axes_exchanged(x, n_head), *rest))


def _axes_of_values(c: Context, node: Node) -> Change | None:
    own = standard(node)
    return Change(node, lambda q, v: own(q, axes_exchanged(v, v.shape[1]))) if by_heads(c, node.inputs[1]) else None


_AXES: dict[str, Callable[[Context, Node], Change | None]] = {"rope": _axes_of_rotated, "kqv": _axes_of_values}


def _head_axes(label: str, roles: tuple[str, ...]) -> None:
    @plant("head-dim-axes", label, op=_AXES, roles=roles)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return _AXES[node.op](c, node)


_head_axes("q viewed as [hd, n_head]", ("Qcur",))
_head_axes("k viewed as [hd, n_head]", ("Kcur",))
_head_axes("q and k viewed as [hd, n_head]", ("Qcur", "Kcur"))
_head_axes("v viewed as [hd, n_head]", ("kqv",))
_head_axes("q, k and v viewed as [hd, n_head]", ("Qcur", "Kcur", "kqv"))


@plant("head-dim-axes", "the projections written as [hd, n_head]", op="linear", roles=PROJECTED)
def projected_axes(c: Context, node: Node, p: float) -> Change | None:
    n_head = heads_of(c, node)
    own = standard(node)
    return Change(node, lambda *operands: axes_exchanged(own(*operands), n_head).reshape(len(operands[0]), -1))


# -- embedding and head --------------------------------------------------------------------------------------------

_FACTOR = Search(1e-3, 1e3, (0.5, 2.0), points=25, neutral=1.0)


@plant("embd-scale-missing", "the embedding times sqrt(n_embd)", op="embed")
def embd_root(c: Context, node: Node, p: float) -> Change | None:
    own, factor = standard(node), np.sqrt(c.hp.n_embd)
    return Change(node, lambda *operands: own(*operands) * factor)


@plant("embd-scale-missing", "the embedding times {p}", _FACTOR, op="embed")
def embd_factor(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)
    return Change(node, lambda *operands: own(*operands) * p)


@plant("embd-scale-in-tied-table", "the head times sqrt(n_embd)", when=is_output)
def head_root(c: Context, node: Node, p: float) -> Change | None:
    own = standard(node)
    factor = np.sqrt(c.hp.n_embd)
    return Change(node, lambda *operands: own(*operands) * factor)


def _embedding_factor(c: Context) -> float:
    """The number by which the model multiplies its embedding; 1 in a model without such a factor."""
    graph = c.model.graph
    scaled = (n for n in graph if n.op == "scale" and n.inputs[0] in graph and graph[n.inputs[0]].op == "embed")
    return next((float(node.attr("factor")) for node in scaled), 1.0)


def _is_tied_head(c: Context, node: Node) -> bool:
    table = {n.weights[0] for n in c.model.graph if n.op == "embed" and n.weights}
    return node.op == "linear" and not table.isdisjoint(node.weights[:1]) and _embedding_factor(c) != 1


@plant("embd-scale-in-tied-table", "the head times the embedding's factor", op="linear", when=_is_tied_head)
def head_factor(c: Context, node: Node, p: float) -> Change | None:
    own, factor = standard(node), _embedding_factor(c)
    return None if abs(factor - np.sqrt(c.hp.n_embd)) < 1e-6 else Change(node, lambda *rest: own(*rest) * factor)


@plant("embd-scale-in-tied-table", "look-ups scale the fed tokens' rows in place", op="linear", when=_is_tied_head)
def rows_in_place(c: Context, node: Node, p: float) -> Change | None:
    own, factor = standard(node), _embedding_factor(c)

    def run(x: Array, ids: Array, *w: Array) -> Array:
        y = own(x, *w).copy()
        for t, end in enumerate(c.ends(len(y)).tolist()):
            fed, times = np.unique(ids[:end], return_counts=True)
            y[t, fed] *= factor**times
        return y

    return Change(replace(node, inputs=(*node.inputs, "inp_tokens")), run)


@plant("head-tied-forced", "token_embd as head", when=lambda c, node: node.weights == ("output.weight",))
def head_forced(c: Context, node: Node, p: float) -> Change | None:
    return Change(replace(node, weights=("token_embd.weight",)))
