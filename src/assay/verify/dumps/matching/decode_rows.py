"""Rows behind the prompt: a log that gives positions shows decode steps as rows that the prompt does not have.

The token of such a row is the one that the log gives at its position. Else it is the next of the ids that the log
lists, the one whose row of the embedding table is printed (`fed_tokens.py`), or the best logit of the row before. A log
that gives an id at each position from 0 on, and no prompt, was fed these ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from assay.models import Model
from assay.verify.dumps.matching.fed_tokens import FedTokens
from assay.verify.dumps.observation import Dump, Observation

MOST = 4096  # rows behind the prompt
_ROW = 32  # logits: fewer are the first of a row, and seldom have its best


def split_decode_rows(dump: Dump, given: Sequence[int], model: Model | None = None) -> Dump:
    """The dump with rows behind the prompt as decode steps; unchanged where a token of theirs is unknown."""
    if dump.log and not dump.tokens and not given:
        dump = _fed_from_the_start(dump)
    n = len(dump.tokens or given)
    behind = [o for o in dump.observations if o.rows is not None and o.rows[0] >= n]
    if not dump.log or dump.later or not n or not behind:
        return dump
    last = max(o.rows[0] for o in behind if o.rows is not None)
    if last - n >= MOST:
        return dump
    by_values = FedTokens(model, dump.tokens or given, dump.observations) if model is not None else None
    steps: list[tuple[int, tuple[Observation, ...]]] = []
    for at in range(n, last + 1):
        token = _token(dump, at, n, by_values)
        if token is None:
            return dump
        steps.append((token, tuple(o for o in behind if o.rows == (at, at + 1))))
    unread = tuple(o for o in dump.unread if o.rows is None or o.rows[0] < n)
    kept = tuple(o for o in dump.observations if not any(o is other for other in behind))
    return replace(dump, observations=kept, unread=unread, later=tuple(steps))


def _fed_from_the_start(dump: Dump) -> Dump:
    """The dump with the ids beside its positions 0, 1, 2, … as its tokens; unchanged without two of them."""
    n = next(i for i in range(len(dump.fed) + 1) if i not in dump.fed)
    if n < 2 or n > MOST:
        return dump
    return replace(dump, tokens=tuple(dump.fed[i] for i in range(n)), positions=tuple(range(n)), steps=(n,))


def _token(dump: Dump, at: int, n: int, by_values: FedTokens | None) -> int | None:
    if at in dump.fed:
        return dump.fed[at]
    if at - n < len(dump.decoded):
        return dump.decoded[at - n]
    if by_values is not None and (token := by_values.at(at)) is not None:
        return token
    best = [
        pair
        for o in dump.observations
        if o.name == "result_output"
        and o.rows == (at - 1, at)
        and (o.kind in ("top", "at") or (o.kind == "first" and len(o.data) >= _ROW))
        for pair in (enumerate(o.data) if o.kind == "first" else o.data)
    ]
    return max(best, key=lambda pair: pair[1])[0] if best else None
