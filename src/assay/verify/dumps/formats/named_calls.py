"""Arrays of several calls in one file: the call is the first part of every name, as `c0/…`, `prefill/…`, `step_1.…`.

The ids stand in each call, or in arrays beside the calls: one of all tokens, or one of the prompt and one of the decode
steps. Otherwise the caller gives them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from assay.verify.dumps.formats.field_checks import MAX_TOKENS
from assay.verify.dumps.formats.module_names import GENERATED, TOKENS
from assay.verify.dumps.formats.numpy_files import Arrays

_BETWEEN = r"(?:[/.:]|__)"
_NUMBERED = re.compile(
    r"(?:c|call|s|step|pass|fwd|forward|iter|chunk|d|dec|decode|decoding|g|gen|generate|tg|t|tok|token|pos|n|next|new)"
    rf"[_-]?(\d{{1,4}}){_BETWEEN}(.+)",
    re.IGNORECASE,
)
_PROMPT = re.compile(rf"(?:prefill|prompt|pp|ctx|context|encode|initial|first)(?:[_-]?0)?{_BETWEEN}(.+)", re.IGNORECASE)
_ONE_STEP = re.compile(
    rf"(?:decode|decoding|dec|gen|generate|step|next|tg){_BETWEEN}(?:(\d{{1,4}}){_BETWEEN})?(.+)", re.IGNORECASE
)
_ONLY_BESIDE_A_PROMPT = re.compile(r"(?:t|tok|token|pos|n|d|g)[_-]?\d", re.IGNORECASE)  # t3.weight may be anything
_BEFORE = -1
_OF_TOKENS = re.compile(r"(?:^|[_. /-])(?:ids?|tokens?|tok|toks|prompt|input|fed)(?:$|[_. /-])", re.IGNORECASE)


def arrays_of_calls(arrays: Arrays, lists: Sequence[str]) -> tuple[list[Arrays], Arrays]:
    """The arrays of each call, in order, and the arrays of ids beside them; no calls where names do not begin so."""
    calls: dict[int, Arrays] = {}
    beside: Arrays = {}
    guessed = False
    for name, array in arrays.items():
        if name in lists:
            beside[name] = array
        elif (found := _call_of(name)) is not None:
            number, rest = found
            guessed = guessed or bool(_ONLY_BESIDE_A_PROMPT.match(name))
            calls.setdefault(number, {})[rest] = array
        elif len(array[0]) < 2 and math.prod(array[0]) <= MAX_TOKENS:
            beside[name] = array
        else:
            return [], {}
    numbers = sorted(calls)
    steps = [i for i in numbers if i != _BEFORE]
    counted = bool(steps) and steps[0] in (0, 1) and steps == [*range(steps[0], steps[0] + len(steps))]
    if len(numbers) < 2 or not counted or (guessed and _BEFORE not in calls):
        return [], {}
    return [calls[i] for i in numbers], beside


def _call_of(name: str) -> tuple[int, str] | None:
    """The number of the call that a name begins with, and the rest of the name."""
    if m := _PROMPT.fullmatch(name):
        return _BEFORE, m[1]
    if m := _NUMBERED.fullmatch(name):
        return int(m[1]), m[2]
    m = _ONE_STEP.fullmatch(name)
    return (int(m[1] or 0), m[2]) if m else None


def ids_in_document(document: object) -> list[int]:
    """The ids that a JSON document beside the arrays gives: a list, or lists by call in the order of the document."""
    if not isinstance(document, dict):
        return []
    for key, value in document.items():
        if _OF_TOKENS.search(str(key)) is None:
            continue
        lists = list(value.values()) if isinstance(value, dict) else [value]
        lists = [[one] if type(one) is int else one for one in lists]
        if lists and all(isinstance(one, list) and all(type(i) is int for i in one) for one in lists):
            found = [i for one in lists for i in one]
            beside = [document[k] for k in document if str(k).lower() in GENERATED and k != key]
            more = beside[0] if beside and isinstance(beside[0], list) else []
            return [*found, *(i for i in more if type(i) is int)]
    return []


def ids_of_calls(calls: Sequence[Arrays], beside: Arrays, rows: Sequence[int]) -> list[int]:
    """The ids that all calls were fed; empty if they are not there."""
    within = [_ids_within(call, n) for call, n in zip(calls, rows, strict=True)]
    if all(within):
        return [i for ids in within for i in ids]
    total, first = sum(rows), rows[0]
    lists = {name: ids for name, array in beside.items() if (ids := _whole(array))}
    named = {name: ids for name, ids in lists.items() if name in (*TOKENS, *GENERATED) or _OF_TOKENS.search(name)}
    for ids in named.values():
        if len(ids) == total:
            return ids
    order = sorted(named, key=lambda name: not re.search("prompt|input|prefill", name, re.IGNORECASE))
    for name in order:
        for other in order:
            if other != name and len(named[name]) == first and len(named[other]) in (total - first, total - first + 1):
                return [*named[name], *named[other][: total - first]]
    return []


def _ids_within(call: Arrays, n: int) -> list[int]:
    for name, array in call.items():
        if (name in TOKENS or _OF_TOKENS.search(name)) and len(ids := _whole(array)) == n:
            return ids
    return []


def _whole(array: tuple[tuple[int, ...], object]) -> list[int]:
    """The whole numbers of a small array; empty for any other."""
    shape, read = array
    if not callable(read) or math.prod(shape) > MAX_TOKENS or math.prod(shape[:-1]) > 1:
        return []
    found = np.asarray(read())
    return [int(i) for i in found.reshape(-1)] if found.dtype.kind in "iu" else []
