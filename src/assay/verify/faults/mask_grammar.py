"""Generators of the grammar for the mask: which keys are hidden, by what rule, from whom.

keys of an id         a mask against padding that compares ids: the padding id is also an end or a separator
keys of a place       one position, the first keys (padding on the left), the prompt's last
the rest of keys      a loop over tiles of keys does not visit the last, partial one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node, Trait
from assay.verify.faults.description import HIDDEN, Description, placed, special_ids
from assay.verify.faults.fault import Array, Change, Context, Edit, standard

MOST_POSITIONS = 64  # that are tried one by one
MOST_LEFT = 16  # keys that padding on the left may hide
TILES = (2, 4, 8, 16, 32)  # keys that a loop takes at once

Mask = NDArray[np.bool_]
Rule = Callable[[Context, Array], Mask]  # of the ids [S]: True where query t does not see key s [T, S]


def hidden_keys(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Every rule by which the mask may hide more keys than it should."""
    if not any(node.op == "attn_softmax" for node in nodes):
        return
    for words, rule in (
        *_by_place(c, 0, 1),
        *_by_id(c),
        *_by_place(c, 1, MOST_POSITIONS),
        *_in_number(c),
        *_by_tile(c),
    ):
        yield HIDDEN, placed(f"the mask also hides {words}", _hiding(rule), ("attn_softmax",))


def _by_id(c: Context) -> Iterator[tuple[str, Rule]]:
    for token in special_ids(c):
        if c.tokens and token not in c.tokens:
            continue
        places = ", ".join(str(i) for i, other in enumerate(c.tokens[:MOST_POSITIONS]) if other == token)
        whose = f"the keys of token {token}" + (f" (position {places})" if places else "")
        yield whose, lambda c, ids, token=token: _columns(ids == token)  # type: ignore[misc]
        if token in c.tokens[:-1]:
            yield (
                f"{whose}, except from themselves",
                lambda c, ids, token=token: _columns(ids == token) & _others(ids),  # type: ignore[misc]
            )


def _by_place(c: Context, first: int, end: int) -> Iterator[tuple[str, Rule]]:
    for at in range(first, min(sum(c.steps), end)):
        one = lambda c, ids, at=at: _columns(np.arange(len(ids)) == at)  # noqa: E731
        yield f"the key at position {at}", one
        if at + 1 < sum(c.steps):
            from_later = f"the key at position {at} from later tokens"
            yield from_later, lambda c, ids, one=one: one(c, ids) & _others(ids)  # type: ignore[misc]


def _in_number(c: Context) -> Iterator[tuple[str, Rule]]:
    for n in range(2, min(sum(c.steps), MOST_LEFT)):
        yield f"the first {n} keys", lambda c, ids, n=n: _columns(np.arange(len(ids)) < n)  # type: ignore[misc]
    if len(c.steps) > 1:
        yield "the keys of the prompt's last token from decode steps", _last_of_prompt
        yield "the keys of earlier decode steps", _earlier_steps


def _by_tile(c: Context) -> Iterator[tuple[str, Rule]]:
    for size in TILES:
        if size <= sum(c.steps):
            yield f"the last n % {size} of the n keys that a token sees", _partial_tile(size, by_call=False)
            if len(c.steps) > 1:
                words = f"the last n % {size} of the n keys that the cache holds after a call"
                yield words, _partial_tile(size, by_call=True)


def _columns(hidden: Array) -> Mask:
    return np.broadcast_to(hidden[None, :], (len(hidden), len(hidden)))


def _others(ids: Array) -> Mask:
    return ~np.eye(len(ids), dtype=bool)


def _last_of_prompt(c: Context, ids: Array) -> Mask:
    return np.asarray(_columns(np.arange(len(ids)) == c.steps[0] - 1) & c.decoding(len(ids))[:, None])


def _earlier_steps(c: Context, ids: Array) -> Mask:
    decoded = c.decoding(len(ids))
    return np.asarray(decoded[:, None] & decoded[None, :] & _others(ids))


def _partial_tile(size: int, *, by_call: bool) -> Rule:
    def rule(c: Context, ids: Array) -> Mask:
        n = (c.ends(len(ids)) if by_call else np.arange(1, len(ids) + 1))[:, None]
        return np.asarray(np.arange(len(ids))[None, :] >= n - n % size)

    return rule


def _hiding(rule: Rule) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n = standard(node), len(node.inputs)

        def run(x: Array, *operands: Array) -> Array:
            ids = operands[n - 1]
            hidden = rule(c, ids)
            if hidden.shape != x.shape[1:]:
                return own(x, *operands[: n - 1], *operands[n:])
            y = own(np.where(hidden, -np.inf, x), *operands[: n - 1], *operands[n:])
            return np.asarray(np.nan_to_num(y))  # a query that sees no key gets nothing

        if not node.has(Trait.SCORES) or node.attr("scale") <= 0:
            return None
        return Change(replace(node, inputs=(*node.inputs, "inp_tokens")), run)

    return edit


GENERATORS = (hidden_keys,)
