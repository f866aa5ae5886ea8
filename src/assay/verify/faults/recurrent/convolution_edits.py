"""Edits of stage `convolution`: causal convolutions, their window between two calls, and LFM2's gates around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.engines.reference.functions import rms_norm, silu
from assay.engines.reference.recurrent_functions import causal_conv
from assay.graph import Node
from assay.verify.faults.families.edits import at, passed_through, skipped
from assay.verify.faults.fault import Array, Change, Context, plant, role, sibling, standard
from assay.verify.faults.recurrent.delta_rule_edits import exchanged
from assay.verify.faults.recurrent.token_loops import Pair, call_starts, in_parts

SILU = ("conv_output_silu", "q_conv_silu", "k_conv_silu", "v_conv_silu")
_GATED = "shortconv_gated"


def _reversed(x: Array, w: Array, window: Array) -> Pair:
    kernel = np.asarray(w).reshape(len(window), -1)
    return causal_conv(x, kernel[:, ::-1], window)


def _late(x: Array, w: Array, window: Array) -> Pair:
    """Row t holds the sum that belongs to row t - 1."""
    rows = np.concatenate([np.zeros_like(window.T[:1]), window.T, x.reshape(len(x), -1)])
    y, _ = causal_conv(rows[-len(x) - 1 : -1], w, rows[: -len(x) - 1].T[:, -window.shape[1] :])
    return y, rows[len(x) + 1 :].T.copy()


at("conv-reversed", "taps in reverse order", lambda c, n: Change(n, _reversed), op="causal_conv")
at("conv-late", "the window ends one token early", lambda c, n: Change(n, _late), op="causal_conv")
at("conv-act-absent", "no SiLU after the convolution", passed_through, op="act", roles=SILU)
skipped("conv-bias-absent", "no bias", "conv_output_biased", op="bias")

# -- the window between two calls -----------------------------------------------------------------------------------


def _between_calls(fault: str, label: str, change: Callable[[Array], Array], *, at_end: bool = False) -> None:
    """The window that a call finds is `change(window)`."""

    def edit(c: Context, node: Node) -> Change:
        return Change(
            node, in_parts(node, lambda n: call_starts(c, n), lambda window, t, x: change(window), at_end=at_end)
        )

    at(fault, label, edit, op="causal_conv")


def _oldest_lost(window: Array) -> Array:
    found = window.copy()
    found[:, 0] = 0
    return found


def _newest_lost(window: Array) -> Array:
    found = window.copy()
    found[:, -1] = 0
    return found


def _moved(by: int, rest: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`by` rows enter after the newest: the rows `rest(window)`."""
    return lambda window: np.concatenate([window, np.repeat(rest(window), by, axis=1)], axis=1)[:, by:]


_between_calls("conv-state-missing", "an empty window at every call", np.zeros_like)
_between_calls("conv-state-short", "the oldest row lost", _oldest_lost)
_between_calls("conv-state-short", "the newest row lost", _newest_lost)
_between_calls("conv-state-padded", "a row of zeros enters", _moved(1, lambda w: 0 * w[:, -1:]), at_end=True)
_between_calls("conv-state-padded", "the last row enters again", _moved(1, lambda w: w[:, -1:]), at_end=True)
_between_calls("conv-state-padded", "two rows of zeros enter", _moved(2, lambda w: 0 * w[:, -1:]), at_end=True)
_between_calls("conv-state-padded", "four rows of zeros enter", _moved(4, lambda w: 0 * w[:, -1:]), at_end=True)


def _other_rows(fault: str, label: str, rows: Callable[..., Array], reads: Callable[[Context, Node], Change | None],
                ) -> None:  # fmt: skip
    """Every call but the first finds other values in the window, `rows(x, y, *further operands)` of the rows before.

    `reads` gives the node with the further operands that `rows` needs.
    """

    def edit(c: Context, node: Node) -> Change | None:
        change = reads(c, node)
        if change is None:
            return None
        more, n_more = change.node, len(change.node.inputs) - len(node.inputs)

        def run(x: Array, *operands: Array) -> Pair:
            others, (w, *weights), window = operands[:n_more], operands[n_more:-1], operands[-1]
            x = x.reshape(len(x), -1)
            wide = window.shape[1]
            kept = np.concatenate([window.T, x])  # the rows that a later call finds
            found = []
            starts = call_starts(c, len(x))
            for start, stop in zip(starts, [*starts[1:], len(x)], strict=True):
                y, window = causal_conv(x[start:stop], w, kept[start : start + wide].T)
                found.append(y)
                kept[wide + start : wide + stop] = rows(x[start:stop], y, *(o[start:stop] for o in others), *weights)
            return np.concatenate(found), kept[len(x) :].T.copy()

        return Change(more, run)

    at(fault, label, edit, op="causal_conv")


def _as_is(c: Context, node: Node) -> Change | None:
    return Change(node)


def _activated(c: Context, node: Node) -> Change | None:
    """The node, if its result is activated. LFM2's is not."""
    plain = role(node) == "conv_output_raw" and sibling(c, node, "conv_output_silu") is None
    return None if plain else Change(node)


def _with_bias(c: Context, node: Node) -> Change | None:
    biased = sibling(c, node, "conv_output_biased")
    return None if biased is None else Change(replace(node, weights=(*node.weights, *biased.weights)))


_other_rows("conv-state-activated", "the window keeps silu(x)", lambda x, y: silu(x), _as_is)
_other_rows("conv-state-activated", "the window keeps the activated result", lambda x, y: silu(y), _activated)
_other_rows("conv-state-activated", "the window keeps the result before SiLU", lambda x, y: y, _as_is)
_other_rows(
    "conv-state-activated", "the window keeps the result with bias and SiLU",
    lambda x, y, b: silu(y + np.asarray(b).reshape(-1)), _with_bias,
)  # fmt: skip


def _ungated(c: Context, node: Node) -> Change | None:
    inner = sibling(c, node, "shortconv_x")
    return None if inner is None else Change(replace(node, inputs=(*node.inputs, inner.name)))


_other_rows("conv-state-input", "the window keeps x, not B * x", lambda x, y, inner: inner, _ungated)

# -- the gates of LFM2 ----------------------------------------------------------------------------------------------

_PARTS = ("shortconv_b", "shortconv_c", "shortconv_x")
_READ_AS = {"shortconv_x": 0, "shortconv_b": 1, "shortconv_c": 2}


@plant("sconv-order", "in_proj read as x, B, C", op="slice", roles=_PARTS)
def other_order(c: Context, node: Node, p: float) -> Change | None:
    width = node.attr("stop") - node.attr("start")
    place = _READ_AS[role(node)]
    return Change(node.with_attrs(start=place * width, stop=(place + 1) * width))


exchanged("sconv-gates-swapped", "B and C exchanged", "shortconv_b", "shortconv_c")
at("sconv-c-absent", "no C", lambda c, n: Change(n, lambda gate, y: y), op="mul", roles=_GATED)
at("sconv-silu", "SiLU on the result", lambda c, n: Change(n, lambda gate, y: gate * silu(y)), op="mul", roles=_GATED)


@plant("sconv-silu", "SiLU inside the convolution", op="causal_conv")
def silu_inside(c: Context, node: Node, p: float) -> Change | None:
    if sibling(c, node, "shortconv_x") is None:
        return None

    def run(x: Array, w: Array, window: Array) -> Pair:
        y, kept = causal_conv(x, w, window)
        return silu(y), kept

    return Change(node, run)


@plant("sconv-b-late", "B multiplied in after the convolution", op=("causal_conv", "mul"))
def late_b(c: Context, node: Node, p: float) -> Change | None:
    first, inner = sibling(c, node, "shortconv_b"), sibling(c, node, "shortconv_x")
    if first is None or inner is None or role(node) not in ("conv_output_raw", _GATED):
        return None
    if node.op == "causal_conv":
        return Change(replace(node, inputs=(inner.name,)))
    return Change(replace(node, inputs=(*node.inputs, first.name)), lambda gate, y, b: gate * y * b)


def _normed_embedding(label: str, roles: tuple[str, ...]) -> None:
    @plant("sconv-norm-first", label, op=("embed", "rms_norm"), roles=roles)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        last = c.model.graph.by_name.get("result_norm")
        if last is None or last.weights != ("token_embd_norm.weight",):
            return None
        if node.op == "rms_norm":
            return passed_through(c, node)
        own, eps = standard(node), last.attr("eps")
        return Change(
            replace(node, weights=(*node.weights, *last.weights)),
            lambda ids, table, w: rms_norm(own(ids, table), np.asarray(w), eps=eps, n_head=0),
        )


_normed_embedding("token_embd_norm on the embedding, no norm before the logits", ("embd", "result_norm"))
_normed_embedding("token_embd_norm on the embedding as well", ("embd",))


def _normed_in_use(label: str, last_too: bool) -> None:
    """As `_normed_embedding`, in an engine that shows the embedding before the norm: its readers take the norm."""

    @plant("sconv-norm-first", label, op=("rms_norm", "add"))
    def edit(c: Context, node: Node, p: float) -> Change | None:
        last = c.model.graph.by_name.get("result_norm")
        if last is None or last.weights != ("token_embd_norm.weight",):
            return None
        if node.name == last.name:
            return passed_through(c, node) if last_too else None
        if "embd" not in node.inputs:
            return None
        own, eps, place = standard(node), last.attr("eps"), node.inputs.index("embd")

        def run(*operands: Array) -> Array:
            *given, w = operands
            given[place] = rms_norm(given[place], np.asarray(w), eps=eps, n_head=0)
            return own(*given)

        return Change(replace(node, weights=(*node.weights, *last.weights)), run)


_normed_in_use("the embedding's readers take its token_embd_norm, no norm before the logits", last_too=True)
_normed_in_use("the embedding's readers take its token_embd_norm", last_too=False)
