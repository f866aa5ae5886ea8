"""Edits of stage `recurrent state`: its type, what a call leaves behind, and the borders of chunks.

Faults that let other tokens into the state (padding, a sequence before, tokens taken back) are runs of other calls and
no edits of a node: `diagnosis.by_calls` tries them. Those that follow from the rows of one node are here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.engines.reference.functions import sigmoid
from assay.graph import Node
from assay.verify.faults.families.edits import at
from assay.verify.faults.fault import Array, Change, Context, Search, plant, sibling, standard
from assay.verify.faults.recurrent.token_loops import call_starts, in_parts
from assay.verify.faults.small import bfloat, half

RECURRENCES = ("delta_rule", "ssm_scan", "wkv6", "wkv7")
PADDING = 4  # rows: a batch padded to the next multiple

# -- the type -------------------------------------------------------------------------------------------------------


def _every_row(c: Context, n: int) -> Sequence[int]:
    return range(n)


def _rounded(fault: str, label: str, narrow: Callable[[Array], Array], cuts: Callable[[Context, int], Sequence[int]],
             ) -> None:  # fmt: skip
    def edit(c: Context, node: Node) -> Change:
        return Change(node, in_parts(node, lambda n: cuts(c, n), lambda S, t, x: narrow(S), at_end=True))

    at(fault, label, edit, op=RECURRENCES)


for _fault, _narrow, _type in (("st-bf16", bfloat, "bfloat16"), ("st-f16", half, "half precision")):
    _rounded(_fault, f"rounded to {_type} after every token", _narrow, _every_row)
    _rounded(_fault, f"rounded to {_type} after every call", _narrow, call_starts)


def _with_windows(fault: str, label: str, narrow: Callable[[Array], Array]) -> None:
    """Everything that is kept for a sequence in the narrow type: the matrices after every token, rows after a call."""

    def edit(c: Context, node: Node) -> Change:
        cuts = _every_row if node.op in RECURRENCES else call_starts
        return Change(node, in_parts(node, lambda n: cuts(c, n), lambda S, t, x: narrow(S), at_end=True))

    at(fault, label, edit, op=(*RECURRENCES, "causal_conv", "shift"))


for _fault, _narrow, _type in (("st-bf16", bfloat, "bfloat16"), ("st-f16", half, "half precision")):
    _with_windows(_fault, f"state and window rounded to {_type}", _narrow)

# -- what a call finds ----------------------------------------------------------------------------------------------

at(
    "st-lost", "zero at every call",
    lambda c, n: Change(n, in_parts(n, lambda t: call_starts(c, t), lambda S, t, x: np.zeros_like(S))),
    op=RECURRENCES,
)  # fmt: skip

# The operands that write to the state; with these at zero a row only decays it.
_WRITES = {"delta_rule": (1, 4), "ssm_scan": (0,), "wkv6": (2,), "wkv7": (2, 3, 4)}


def _padded(label: str, fault: str, rows: int, *, writes: bool, of: Callable[[int], int]) -> None:
    """`rows` further rows enter the state at the end of a call: copies of row `of(end)`, without its writes."""

    def edit(c: Context, node: Node) -> Change:
        own, n_in = standard(node), len(node.inputs)

        def run(*operands: Array) -> tuple[Array, Array]:
            weights = operands[n_in:-1]

            def pad(S: Array, end: int, inputs: Sequence[Array]) -> Array:
                copies = [np.repeat(x[of(end)][None], rows, axis=0) for x in inputs]
                if not writes:
                    copies = [0 * x if i in _WRITES[node.op] else x for i, x in enumerate(copies)]
                kept: Array = own(*copies, *weights, S)[1]
                return kept

            return in_parts(node, lambda n: call_starts(c, n), pad, at_end=True)(*operands)

        return Change(node, run)

    at(fault, label, edit, op=RECURRENCES)


for _rows in (PADDING, 1, 2, 3, 8):
    _many = f"{_rows} rows" if _rows > 1 else "a row"
    _padded(f"{_many} of padding like the last row enter", "st-pad-enters", _rows, writes=True, of=lambda end: end - 1)
    _padded(
        f"{_many} of padding decay the state as the last row does", "st-pad-decays", _rows, writes=False,
        of=lambda end: end - 1,
    )  # fmt: skip


_IDLE = {"wkv6": "w_biased", "wkv7": "w_biased"}


def _idle_rwkv(c: Context, node: Node) -> tuple[tuple[str, ...], Callable[..., Array]] | None:
    """RWKV's decay of a row of zeros: that of its bias alone."""
    biased, log = sibling(c, node, "w_biased"), sibling(c, node, "w_log")
    if biased is None or biased.op != "bias" or log is None or log.op != "scale":
        return None
    factor, seven = log.attr("factor"), node.op == "wkv7"

    def decay(b: Array) -> Array:
        b = np.asarray(b).reshape(-1)
        return np.asarray(np.exp(factor * (sigmoid(b) if seven else np.exp(b))))

    return biased.weights, decay


def _decay_of_zeros(c: Context, node: Node) -> tuple[tuple[str, ...], Callable[..., Array]] | None:
    """The weights from which a row of zeros gets its decay, and the operand that holds it, before the operation."""
    if node.op in _IDLE:
        return _idle_rwkv(c, node)
    bias = next((n for name in ("alpha_biased", "kda_g1_biased", "dt") if (n := sibling(c, node, name))), None)
    if bias is None or bias.op != "bias":
        return None
    if node.op == "ssm_scan":
        return bias.weights, lambda b: np.logaddexp(0, np.asarray(b).reshape(-1))
    gain = next((n for name in ("gate", "kda_g1") if (n := sibling(c, node, name))), None)
    if gain is None or node.op != "delta_rule":
        return None
    n_head = node.attr("n_head")

    def decay(b: Array, a: Array) -> Array:
        soft = np.logaddexp(0, np.asarray(b)).reshape(n_head, -1)
        return np.asarray(soft * np.asarray(a).reshape(n_head, -1))

    return (*bias.weights, *gain.weights), decay


def _decayed_by_zeros(rows: int) -> None:
    label = f"{rows} rows of zeros decay the state by dt's bias" if rows > 1 else "a row of zeros decays the state"

    def edit(c: Context, node: Node) -> Change | None:
        found = _decay_of_zeros(c, node)
        if found is None:
            return None
        names, decay = found
        own, n_in, place = standard(node), len(node.inputs), 3 if node.op == "delta_rule" else 1

        def run(*operands: Array) -> tuple[Array, Array]:
            inputs, weights = operands[:n_in], operands[n_in:-1]
            kept_weights, more = weights[: len(weights) - len(names)], weights[len(weights) - len(names) :]
            by = decay(*more)

            def pad(S: Array, end: int, given: Sequence[Array]) -> Array:
                copies = [np.zeros((rows, *x.shape[1:]), x.dtype) for x in given]
                copies[place] = np.broadcast_to(by.reshape(given[place].shape[1:]), copies[place].shape)
                kept: Array = own(*copies, *kept_weights, S)[1]
                return kept

            parts = in_parts(node, lambda n: call_starts(c, n), pad, at_end=True)
            return parts(*inputs, *kept_weights, operands[-1])

        return Change(_with_weights(node, names), run)

    at("st-pad-decays", label, edit, op=RECURRENCES)


def _with_weights(node: Node, names: tuple[str, ...]) -> Node:
    return Node(node.name, node.op, node.inputs, (*node.weights, *names), node.attrs)


for _rows in (PADDING, 1, 2, 3, 8):
    _decayed_by_zeros(_rows)


def _twice(c: Context, node: Node) -> Change:
    """The first row of every call but the first has entered the state before: its draft was taken back too late."""
    own, n_in = standard(node), len(node.inputs)

    def run(*operands: Array) -> tuple[Array, Array]:
        weights = operands[n_in:-1]

        def again(S: Array, start: int, inputs: Sequence[Array]) -> Array:
            kept: Array = own(*(x[start : start + 1] for x in inputs), *weights, S)[1]
            return kept

        return in_parts(node, lambda n: call_starts(c, n), again)(*operands)

    return Change(node, run)


at("st-rollback", "the first row of a call is in the state already", _twice, op=RECURRENCES)

# -- chunks ---------------------------------------------------------------------------------------------------------

_CHUNK = Search(2, 256, (16, 64, 32, 128, 8, 4, 256), True, True, 40, rows=True)


def _chunk_starts(c: Context, n: int, size: int) -> list[int]:
    """The first rows of all chunks in the calls of several tokens, and of all calls."""
    calls = call_starts(c, n)
    found = set(calls)
    for start, stop in zip(calls, [*calls[1:], n], strict=True):
        found |= set(range(start, stop, size))
    return sorted(found)


@plant("chunk-reset", "zero at every {p}th token", _CHUNK, op=RECURRENCES)
def reset(c: Context, node: Node, p: float) -> Change | None:
    def between(S: Array, start: int, inputs: Sequence[Array]) -> Array:
        return S if start in call_starts(c, len(inputs[0])) else np.zeros_like(S)

    return Change(node, in_parts(node, lambda n: _chunk_starts(c, n, int(p)), between))


@plant("chunk-decay", "the first decay of every {p} tokens left out", _CHUNK, op=RECURRENCES)
def undecayed(c: Context, node: Node, p: float) -> Change | None:
    own: Callable[..., Any] = standard(node)
    size = int(p)

    def firsts(n: int) -> list[int]:
        calls = set(call_starts(c, n))
        return [t for t in _chunk_starts(c, n, size) if t not in calls]

    def run(*operands: Array) -> tuple[Array, Array]:
        if node.op == "ssm_scan":
            return _scan_without(node, firsts, *operands)
        place, still = (3, 0.0) if node.op == "delta_rule" else (1, 1.0)
        changed = operands[place].copy()
        changed[firsts(len(changed))] = still
        found: tuple[Array, Array] = own(*operands[:place], changed, *operands[place + 1 :])
        return found

    return Change(node, run)


def _scan_without(
    node: Node, firsts: Callable[[int], list[int]], x: Array, dt: Array, B: Array, C: Array, A: Array, S: Array
) -> tuple[Array, Array]:
    """The scan in which some rows write without decaying: x is scaled by dt first, then dt decays alone."""
    own, n_head = standard(node), node.attr("n_head")
    still, found, state = set(firsts(len(x))), [], S
    for t in range(len(x)):
        row = (x[t : t + 1], dt[t : t + 1], B[t : t + 1], C[t : t + 1])
        value, state = own(*row, 0 * np.asarray(A) if t in still else A, state)
        found.append(value)
    return np.concatenate(found).reshape(len(x), n_head, -1), state
