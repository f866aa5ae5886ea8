"""Generators of the grammar for tokens: which id is looked up in place of the right one, at all positions or at one.

all      a neighbour of the id, its lower bits, the largest number of a narrow integer
decode   the token of the step before, the prompt's last or first one
one      a neighbour, a special id, another one of the prompt
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.graph import Node
from assay.verify.faults.description import TOKEN, Description, placed, special_ids
from assay.verify.faults.fault import Array, Change, Context, Edit, layer, standard

MOST_POSITIONS = 64  # that are tried one by one
NARROW = (8, 15, 16)  # bits of an integer that does not hold every id


def _next(step: int, ids: Array) -> Array:
    return ids + step


def _lower(bits: int, ids: Array) -> Array:
    return ids & ((1 << bits) - 1)


def _most(bits: int, ids: Array) -> Array:
    return np.minimum(ids, (1 << bits) - 1)


_OTHERS: dict[str, Callable[[Array], Array]] = {
    "every token is looked up with its id + 1": partial(_next, 1),
    "every token is looked up with its id - 1": partial(_next, -1),
    **{f"every token is looked up with the lower {n} bits of its id": partial(_lower, n) for n in NARROW},
    **{f"every token is looked up with its id, {(1 << n) - 1} at most": partial(_most, n) for n in NARROW},
}


def _one_late(c: Context, ids: Array) -> Array:
    found = ids.copy()
    found[c.steps[0] :] = ids[c.steps[0] - 1 : -1]
    return found


def _always_last(c: Context, ids: Array) -> Array:
    found = ids.copy()
    found[c.steps[0] :] = ids[c.steps[0] - 1]
    return found


def _always_first(c: Context, ids: Array) -> Array:
    found = ids.copy()
    found[c.steps[0] :] = ids[0]
    return found


# The ids that decode steps are fed in place of their own.
_STALE: dict[str, Callable[[Context, Array], Array]] = {
    "every decode step is fed the token of the step before": _one_late,
    "every decode step is fed the prompt's last token": _always_last,
    "every decode step is fed the prompt's first token": _always_first,
}


def tokens(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another id, where a node of no layer or of the first one is wrong."""
    if not any(layer(node) in (None, 0) for node in nodes):
        return
    fed = np.asarray(c.tokens, np.int64)
    for words, other in _OTHERS.items():
        if not len(fed) or (other(fed) != fed).any():
            yield TOKEN, placed(words, _all_fed(other), ("embed",))
    for words, stale in _STALE.items() if len(c.steps) > 1 else ():
        if not len(fed) or (stale(c, fed) != fed).any():
            yield TOKEN, placed(words, _all_fed(partial(stale, c)), ("embed",))
    yield from one_token(c)


def one_token(c: Context) -> Iterator[Description]:
    """Another id at one position."""
    total = min(sum(c.steps), MOST_POSITIONS)
    for at in range(total):
        others: dict[str, Callable[[Any], int]] = {
            "with its id + 1": lambda ids, at=at: ids[at] + 1,  # type: ignore[misc]
            "with its id - 1": lambda ids, at=at: ids[at] - 1,  # type: ignore[misc]
        }
        others |= {f"as id {i}": lambda ids, i=i: i for i in special_ids(c)}  # type: ignore[misc]
        others |= {f"as that of position {i}": lambda ids, i=i: ids[i] for i in range(total) if i != at}  # type: ignore[misc]
        for how, other in others.items():
            yield TOKEN, placed(f"the token at position {at} is fed {how}", _fed(at, other), ("embed",))


def _all_fed(other: Callable[[Array], Array]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, last = standard(node), c.model.hparams.n_vocab - 1
        return Change(node, lambda ids, *rest: own(np.clip(other(ids), 0, last), *rest))

    return edit


def _fed(at: int, other: Callable[[Any], int]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, last = standard(node), c.model.hparams.n_vocab - 1

        def run(ids: Array, *rest: Array) -> Array:
            ids = ids.copy()
            if at < len(ids):
                ids[at] = min(max(int(other(ids)), 0), last)
            return own(ids, *rest)

        return Change(node, run)

    return edit


GENERATORS = (tokens,)
