"""What words leave open, settled by the values: which of several nodes a phrase means, and which token's row is shown.

People print "layer 3: [...]" and do not say of which token. One answer is sought for the whole log, because a print
statement does the same in every layer: the reading that brings the values nearest to the definition's. A faulty engine
is near to nothing in most layers, but what it computed before the fault decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import split
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Dump, Observation, measure, rows_of, token_axis

Array = NDArray[Any]
Rows = tuple[int, int] | None
_CLOSEST = 1e-7  # distances below this are the same: an exact match of a few digits proves no more
_NEAR = 0.15  # of a row's rms: further off is no evidence for a node
_ROW_WORDS = {"all": "", "last": "the last token's row", "first": "the first token's row", "said": ""}


def settle(
    observations: Sequence[Observation],
    model: Model,
    n: int,
    truth: Callable[[Collection[str]], dict[str, Array]],
) -> tuple[list[Observation], list[str]]:
    """Partial observations with one name and one row each, and what was assumed."""
    counted = [_from_the_end(o, n) for o in observations]
    if not any(_open(o, n) for o in counted):
        return counted, []
    graph, width = model.graph, model.hparams.n_embd_head
    values = truth({name for o in counted if _open(o, n) for name in (o.name, *o.others)})

    def distance(obs: Observation, rows: Rows) -> float:
        value, axis = values[obs.name], token_axis(graph, obs.name)
        expected = measure(replace(obs, rows=rows), value, axis, width)
        if len(expected) != len(obs.target()):
            return math.inf
        scale = float(np.sqrt(np.mean(np.square(rows_of(value, axis, rows), dtype=np.float64)))) + 1e-30
        error = float(np.mean(np.abs(obs.target() - expected))) / scale
        return max(error, _CLOSEST) if math.isfinite(error) else math.inf

    found, notes = [], list[str]()
    open_ = [o for o in counted if _open(o, n)]
    votes = _vote(open_, n, distance)
    chosen = _choose(open_, lambda o: _voted(o, n, votes)[1], distance)
    for obs in counted:
        if not _open(obs, n):
            found.append(obs)
            continue
        label, rows = _voted(obs, n, votes)
        i = chosen.get(_phrase(obs), 0)
        name = (obs.name, *obs.others)[i]
        found.append(replace(obs, name=name, others=(), rows=rows, perhaps=None))
        if _ROW_WORDS.get(label):
            notes.append(f"{name}: read as {_ROW_WORDS[label]}")
        if i:
            notes.append(f"{obs.foreign}: read as {name}, whose values are nearer than {obs.name}'s")
    return found, notes


def _from_the_end(obs: Observation, n: int) -> Observation:
    """Rows counted from the last one, as (-1, 0), counted from the first."""
    if obs.rows is None or obs.rows[0] >= 0 or obs.kind == "values":
        return obs
    start = max(obs.rows[0] + n, 0)
    return replace(obs, rows=(start, start + 1))


def _open(obs: Observation, n: int) -> bool:
    return obs.kind != "values" and (bool(obs.others) or (obs.rows is None and obs.shape is None and n > 1))


def _class(obs: Observation) -> str:
    """Lists and statistics are often of different rows."""
    return "statistic" if obs.kind in STATISTICS else "top" if obs.kind == "top" else "list"


def _rows(obs: Observation, n: int) -> list[tuple[str, Rows]]:
    if obs.rows is not None or obs.shape is not None or n == 1:
        return [("fixed", obs.rows)]
    found: list[tuple[str, Rows]] = [("all", None), ("last", (n - 1, n)), ("first", (0, 1))]
    if obs.perhaps is not None and -n <= obs.perhaps < n:
        found.append(("said", (obs.perhaps % n, obs.perhaps % n + 1)))
    return found


def _vote(
    observations: Sequence[Observation], n: int, distance: Callable[[Observation, Rows], float]
) -> dict[str, str]:
    """For lists and for statistics: the reading of rows with the least sum of the logarithms of its distances."""
    totals: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for obs in observations:
        options = _rows(obs, n)
        if options[0][0] == "fixed":
            continue
        counts[_class(obs)] = counts.get(_class(obs), 0) + 1
        for label, rows in options:
            best = min(distance(replace(obs, name=name), rows) for name in (obs.name, *obs.others))
            totals.setdefault(_class(obs), {}).setdefault(label, 0.0)
            totals[_class(obs)][label] += math.log(min(best, 1e3))
        if len(options) < 4 and "said" in totals.get(_class(obs), {}):
            totals[_class(obs)]["said"] += math.log(1e3)
    order = {"all": 0, "first": 1, "last": 2, "said": 3}
    votes = {kind: min(sums, key=lambda k: (round(sums[k], 6), order[k])) for kind, sums in totals.items()}
    for kind, sums in totals.items():  # what the text told, unless the values tell clearly otherwise
        margin = math.log(3) * min(counts[kind], 4) if counts[kind] > 1 else math.log(30)  # one may be near by chance
        far = sums[votes[kind]] > math.log(_NEAR) * counts[kind]  # nothing is near: the values tell nothing
        if far or sums.get("said", math.inf) <= sums[votes[kind]] + margin:
            votes[kind] = "said" if "said" in sums else votes[kind]
    return votes


def _voted(obs: Observation, n: int, votes: dict[str, str]) -> tuple[str, Rows]:
    """The rows of an observation, and in which words they were voted for."""
    wanted = (votes.get(_class(obs)), "fixed")
    return next((option for option in _rows(obs, n) if option[0] in wanted), ("all", obs.rows))


def _phrase(obs: Observation) -> tuple[str, ...]:
    """What one print statement writes in every layer."""
    return (obs.template, obs.side, *(split(name)[0] for name in (obs.name, *obs.others)))


def _choose(
    observations: Sequence[Observation],
    rows: Callable[[Observation], Rows],
    distance: Callable[[Observation, Rows], float],
) -> dict[tuple[str, ...], int]:
    """For every phrase that may mean several nodes, which: the likeliest, unless another is near and nearer by far."""
    totals: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}
    lists = {_phrase(o) for o in observations if o.kind not in STATISTICS}
    for obs in observations:
        if not obs.others or (obs.kind in STATISTICS and _phrase(obs) in lists):  # a list tells more
            continue
        far = [math.log(min(distance(replace(obs, name=name), rows(obs)), 1e3)) for name in (obs.name, *obs.others)]
        have, near = totals.setdefault(_phrase(obs), ([0.0] * len(far), [math.inf] * len(far)))
        totals[_phrase(obs)] = [a + b for a, b in zip(have, far, strict=True)], list(map(min, near, far))
    return {
        phrase: next((i for i, total in enumerate(sums) if total <= min(sums) + math.log(3) and fits[i]), 0)
        for phrase, (sums, near) in totals.items()
        for fits in [[d < math.log(_NEAR) for d in near]]
    }


def folded(notes: Iterable[str]) -> list[str]:
    """Notes that say the same of several subjects, a line each kind: "l_out-0 and 29 more: read as the last row"."""
    kinds: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        kinds.setdefault(re.sub(r"\d[\d.]*(?:e[-+]\d+)?", "#", note.partition(": ")[2] or note), []).append(note)
    found = []
    for many in kinds.values():
        subject, colon, rest = many[0].partition(": ")
        others = list(dict.fromkeys(s for note in many if (s := note.partition(": ")[0]) != subject))
        if others:
            subject += f" and {others[0]}" if len(others) == 1 else f" and {len(others)} more"
        found.append(
            subject + colon + rest if others or len(many) == 1 else f"{many[0]} ({len(many) - 1} more like it)"
        )
    return found


# -- what was understood -----------------------------------------------------------------------------------------


def understood(dump: Dump, n: int) -> list[str]:
    """The reading of a log, a line each kind: "l_out-0 … l_out-29 (30 nodes): last row, 5 values and an rms each"."""
    lines: dict[str, dict[str, list[Observation]]] = {}
    for obs in dump.observations:
        lines.setdefault(obs.name, {}).setdefault(_shown(obs, n), []).append(obs)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, kinds in lines.items():
        rows = next(iter(kinds))
        what = _what([o for many in kinds.values() for o in many])
        key = (split(name)[0], f"{rows if len(kinds) == 1 else f'{len(kinds)} rows'}, {what}")
        groups.setdefault(key, []).append(name)
    found = []
    for (_, what), names in groups.items():
        said = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} nodes)"
        found.append(f"{said}: {what}{' each' if len(names) > 1 else ''}")
    return found


def _shown(obs: Observation, n: int) -> str:
    if obs.rows is None or obs.rows == (0, n):
        return "the only row" if n == 1 else "all rows"
    if obs.rows == (n - 1, n):
        return "last row"
    return f"row {obs.rows[0]}"


def _what(observations: Sequence[Observation]) -> str:
    parts: dict[str, int] = {}
    for obs in observations:
        if obs.kind in STATISTICS:
            parts[("an " if obs.kind[0] in "aeiour" else "a ") + obs.kind] = 1
        else:
            word = {"first": "values", "last": "last values", "at": "single values", "top": "best logits"}[obs.kind]
            parts[word] = max(parts.get(word, 0), len(obs.data))
    words = [k if k.startswith(("a ", "an ")) else f"{v} {k}" for k, v in parts.items()]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def nothing_read(dump: Dump) -> AssayError:
    """What to say of a text in which no line was understood."""
    hint = f"; --pattern {suggestion(dump.aside[0])!r} would take {dump.aside[0]!r}" if dump.aside else ""
    return AssayError(
        f"{dump.source}: no format known here and no line that speaks of a node{hint}; "
        "see docs/reference/dump-format.md"
    )


_LIST = re.compile(r"[\[({](?!\d{1,6}[\])}])\s{0,20}[-+.\d][^\[\](){}a-df-zA-Z]{0,4000}[\])}]")
_NAMED = re.compile(r"\b(layer|block|blk|l)([\s_.:#-]{0,3})\d{1,4}\b(?!\.\d)", re.IGNORECASE)
_FLOAT = re.compile(r"(?<![\w.])[-+]?\d{1,40}\.\d{0,40}(?:[eE][-+]?\d{1,4})?")


def suggestion(line: str) -> str:
    """The --pattern that would take a line which speaks of no known node."""
    text = _LIST.sub(lambda m: m[0][0] + "{first}" + m[0][-1], line, count=1)
    text = _NAMED.sub(r"\1\2{layer}", text, count=1)
    if "{first}" not in text:
        text = _FLOAT.sub("{rms}", text, count=1)
    text = _FLOAT.sub("*", text)
    return text if "{layer}" in text else re.sub(r"^\s*[^\W\d][\w .-]{0,40}?(?=[:=\[])", "{name}", text, count=1)
