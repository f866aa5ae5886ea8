"""Chooses by values what words leave open: which of several nodes a phrase means, and which token's row is shown.

People print "layer 3: [...]" and do not say of which token. One answer holds for the whole log, because a print
statement does the same in every layer: the reading with the smallest distance to the definition. The values of a faulty
engine match nothing after the fault; its values before the fault decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import split
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Observation, measure, rows_of, token_axis
from assay.verify.thresholds import LARGE_MODEL

Array = NDArray[Any]
Rows = tuple[int, int] | None
_CLOSEST = 1e-7  # smaller distances count as equal: a few matching digits prove no more
_NEAR = 0.15  # of a row's rms: a larger distance is no evidence for a node
_SURE = 0.02  # of a row's rms: so near, best logits show that another row than the last was printed
_PROOF = 5e-3  # of a row's rms: only such a match decides between two kinds of value, since a fault's match by chance
_SAME = 1e-3  # of a row's rms: as near, several values of a statement prove which rows it shows
_PROOFS = 2  # such values
# A vocabulary's sum and norm have so many terms that half precision moves them by more than a row's rms. They grow as
# this power of the vocabulary's size.
_TERMS = {"sum": 1.0, "abssum": 1.0, "norm": 0.5}
_ROW_WORDS = {"all": "", "last": "the last token's row", "first": "the first token's row", "said": ""}


def choose_readings(
    observations: Sequence[Observation],
    model: Model,
    n: int,
    truth: Callable[[Collection[str]], dict[str, Array]],
) -> tuple[list[Observation], list[str]]:
    """Partial observations with one name and one row each, and notes on what was assumed."""
    counted = [_from_the_end(o, n) for o in observations]
    doubtful = [(select(counted, n), change, note) for select, change, note in _SECOND_READINGS]
    several = {id(o) for many, _, _ in doubtful for o in many}
    if not several and not any(_open(o, n) for o in counted):
        return counted, []
    graph, width = model.graph, model.hparams.n_embd_head
    open_ = _enough([o for o in counted if id(o) in several or _open(o, n)], model)
    values = truth({name for o in open_ for name in (o.name, *o.others)})

    def distance(obs: Observation, rows: Rows) -> float:
        value, axis = values[obs.name], token_axis(graph, obs.name)
        if not rows_of(value, axis, rows).size:
            return math.inf  # a row behind the prompt
        expected = measure(replace(obs, rows=rows), value, axis, width)
        if len(expected) != len(obs.target()):
            return math.inf
        # A row with a few huge values, as the first token has, makes the distance of any small values tiny.
        against = expected if obs.kind in ("first", "last") else rows_of(value, axis, rows)
        scale = float(np.sqrt(np.mean(np.square(against, dtype=np.float64)))) + 1e-30
        if _class(obs) == "statistic of logits":
            scale *= against.shape[-1] ** _TERMS.get(obs.kind, 0.0)
        error = float(np.mean(np.abs(obs.target() - expected))) / scale
        return max(error, _CLOSEST) if math.isfinite(error) else math.inf

    found, notes = [], list[str]()
    decisive = {id(o) for o in open_}
    changed: dict[int, Observation] = {}
    for many, change, note in doubtful:
        if _is_nearer([o for o in many if id(o) in decisive], change, n, distance):
            changed |= {id(o): change(o, n) for o in many}
            notes.append(note)
    counted = [changed.get(id(o), o) for o in counted]
    open_ = _enough([o for o in counted if _open(o, n)], model)
    votes = _vote(open_, n, distance)
    own = _other_rows(open_, n, votes, distance)
    chosen = _choose(open_, lambda o: _rows_read(o, n, votes, own)[1], distance)
    for obs in counted:
        if not _open(obs, n):
            found.append(obs)
            continue
        label, rows = _rows_read(obs, n, votes, own)
        i = chosen.get(_phrase(obs), 0)
        name = (obs.name, *obs.others)[i]
        found.append(replace(obs, name=name, others=(), rows=rows, possible_row=None))
        if _ROW_WORDS.get(label):
            notes.append(f"{name}: read as {_ROW_WORDS[label]}")
        if i:
            notes.append(f"{obs.foreign}: read as {name}, whose values are nearer than {obs.name}'s")
    return found, notes


def _lone_ends(observations: Sequence[Observation], n: int) -> list[Observation]:
    """Lists after the word "last" on lines that show no first values."""
    starts, rows = {o.where for o in observations if o.kind == "first"}, (None, (n - 1, n))
    return [o for o in observations if o.kind == "last" and o.rows in rows and o.where not in starts]


def _largest(observations: Sequence[Observation], n: int) -> list[Observation]:
    """Values called max, unless one of them is less than a minimum's absolute value, which no absolute value is."""
    found = [o for o in observations if o.kind == "max"]
    least = {
        (o.where, o.name): abs(o.target()[0]) - max(o.printed, default=0.0) for o in observations if o.kind == "min"
    }
    return found if all(o.target()[0] >= max(least.get((o.where, o.name), 0.0), 0.0) for o in found) else []


Select = Callable[[Sequence[Observation], int], list[Observation]]
Respell = Callable[[Observation, int], Observation]
_SECOND_READINGS: tuple[tuple[Select, Respell, str], ...] = (
    (
        _lone_ends, lambda o, n: replace(o, kind="first", rows=(n - 1, n)),
        "lists headed by the word last: read as the first values of the last token's row",
    ),
    (_largest, lambda o, n: replace(o, kind="absmax"), "max: read as the largest absolute value"),
)  # fmt: skip


def _is_nearer(
    observations: Sequence[Observation], change: Respell, n: int, distance: Callable[[Observation, Rows], float]
) -> bool:
    """Whether the values are nearer to the second reading. Values that are near to neither decide nothing."""

    def nearest(obs: Observation) -> float:
        named = [replace(obs, name=name) for name in (obs.name, *obs.others)]
        return min(_NEAR, *(distance(o, r) for o in named for _, r in _rows(o, n)))

    both = [(nearest(o), nearest(change(o, n))) for o in observations]
    proved = [first - second for first, second in both if min(first, second) < _PROOF and first != second]
    gained = sum(math.log(first) - math.log(second) for first, second in both)
    return gained > 1e-6 and sum(d > _PROOF for d in proved) > sum(-d > _PROOF for d in proved)


def _enough(observations: list[Observation], model: Model) -> list[Observation]:
    """Those that decide: of a large model the first printed layer, because its other layers take seconds to compute."""
    if sum(math.prod(shape) for shape in model.graph.weights.values()) <= LARGE_MODEL:
        return observations
    first = min((at for o in observations if (at := split(o.name)[1]) is not None), default=None)
    return [o for o in observations if split(o.name)[1] == first]


def _from_the_end(obs: Observation, n: int) -> Observation:
    """Rows counted from the last one, as (-1, 0), counted from the first."""
    if obs.rows is None or obs.rows[0] >= 0 or obs.kind == "values":
        return obs
    start = max(obs.rows[0] + n, 0)
    return replace(obs, rows=(start, start + 1))


def _open(obs: Observation, n: int) -> bool:
    return obs.kind != "values" and (bool(obs.others) or (obs.rows is None and obs.shape is None and n > 1))


def _class(obs: Observation) -> str:
    """Lists, statistics, statistics of logits and logits by id vote apart, because they often show different rows."""
    logits = obs.name == "result_output"
    if obs.kind in STATISTICS:
        return "statistic of logits" if logits else "statistic"
    return "top" if obs.kind == "top" else "logits by id" if obs.kind == "at" and logits else "list"


def _rows(obs: Observation, n: int) -> list[tuple[str, Rows]]:
    if obs.rows is not None or obs.shape is not None or n == 1:
        return [("fixed", obs.rows)]
    found: list[tuple[str, Rows]] = [("all", None), ("last", (n - 1, n)), ("first", (0, 1))]
    if obs.possible_row is not None and -n <= obs.possible_row < n:
        found.append(("said", (obs.possible_row % n, obs.possible_row % n + 1)))
    return found


Class = tuple[str, bool]  # kind of value; whether the words may name its row


def _vote(
    observations: Sequence[Observation], n: int, distance: Callable[[Observation, Rows], float]
) -> dict[Class, str]:
    """For lists and for statistics: the reading of rows with the least sum of the logarithms of its distances.

    Lists that are near some row decide first, because the values after a fault match no row and would outvote them.
    If no list is near any row, the first list decides: it has passed the fewest faulty operations. Lines with a number
    that may be a row vote apart from those without: a log may show all tokens of one node and the last one of another.
    """
    totals: dict[Class, dict[str, float]] = {}
    near: dict[tuple[Class, str], float] = {}  # sums for lists in which a list that is not near counts as _NEAR
    earliest: dict[tuple[Class, str], float] = {}  # distances of the first list
    counts: dict[Class, int] = {}
    for obs in observations:
        options = _rows(obs, n)
        if options[0][0] == "fixed":
            continue
        kind = _class(obs), len(options) > 3
        counts[kind] = counts.get(kind, 0) + 1
        for label, rows in options:
            best = min(distance(replace(obs, name=name), rows) for name in (obs.name, *obs.others))
            totals.setdefault(kind, {}).setdefault(label, 0.0)
            totals[kind][label] += math.log(min(best, 1e3))
            if kind[0] == "list":
                near[kind, label] = near.get((kind, label), 0.0) + math.log(min(best, _NEAR) / _NEAR)
                earliest.setdefault((kind, label), best)
    order = {"all": 0, "first": 1, "last": 2, "said": 3}

    undecided = not any(near.values())

    def rank(kind: Class, label: str) -> tuple[float, float, float, int]:
        first = earliest.get((kind, label), 0.0) if undecided else 0.0
        return round(near.get((kind, label), 0.0), 6), round(first, 6), round(totals[kind][label], 6), order[label]

    votes = {kind: min(sums, key=partial(rank, kind)) for kind, sums in totals.items()}
    for kind, sums in totals.items():  # the row that the text names, unless the values clearly favour another
        # A single observation may match by chance.
        margin = math.log(3) * min(counts[kind], 4) if counts[kind] > 1 else math.log(30)
        far = sums[votes[kind]] > math.log(_NEAR) * counts[kind]  # no reading matches: the values decide nothing
        if far or sums.get("said", math.inf) <= sums[votes[kind]] + margin:
            votes[kind] = "said" if "said" in sums else votes[kind]
    for said in (False, True):
        for name, like in (("statistic of logits", "statistic"), ("logits by id", "list")):
            kind = name, said
            near_one = kind in votes and totals[kind][votes[kind]] <= math.log(_SURE) * counts[kind]
            if kind in votes and (like, said) in votes and not near_one:
                votes[kind] = votes[like, said]
        top = "top", said
        if top in votes and votes[top] != "said" and min(totals[top].values()) > math.log(_SURE) * counts[top]:
            votes[top] = "last"  # engines print the best logits of the row from which they sample
    return votes


Print = tuple[Class, str, str]  # kind of value, words, engine


def _print(obs: Observation, n: int) -> Print:
    return (_class(obs), len(_rows(obs, n)) > 3), obs.template, obs.side


def _other_rows(
    observations: Sequence[Observation],
    n: int,
    votes: dict[Class, str],
    distance: Callable[[Observation, Rows], float],
) -> dict[Print, str]:
    """Print statements whose values are digit by digit those of other rows than the vote's.

    A line may give the mean of all rows beside the norms of the last one: `out mean=0.1 std=0.8 last=[0.5, 1.5]`.
    """
    proved: dict[Print, dict[tuple[str, int], int]] = {}  # by statement: values of a node in these rows
    for obs in observations:
        options = _rows(obs, n)
        if options[0][0] == "fixed" or obs.kind == "top" or not obs.template:
            continue
        counts = proved.setdefault(_print(obs, n), {})
        for label, rows in options:
            for i, name in enumerate((obs.name, *obs.others)):
                near = distance(replace(obs, name=name), rows) <= _SAME
                counts[label, i] = counts.get((label, i), 0) + near
    found: dict[Print, str] = {}
    for key, counts in proved.items():
        best, _ = max(counts, key=lambda place: counts[place])
        most = {label: max(count for (other, _), count in counts.items() if other == label) for label, _ in counts}
        if most[best] >= _PROOFS and all(2 * many <= most[best] for label, many in most.items() if label != best):
            found[key] = best
    return {key: label for key, label in found.items() if label != votes.get(key[0])}


def _rows_read(obs: Observation, n: int, votes: dict[Class, str], own: dict[Print, str]) -> tuple[str, Rows]:
    """The rows of an observation and the label of that reading: its statement's own, or those of the vote."""
    label = own.get(_print(obs, n))
    found = next((option for option in _rows(obs, n) if option[0] == label), None) if label else None
    return found or _voted(obs, n, votes)


def _voted(obs: Observation, n: int, votes: dict[Class, str]) -> tuple[str, Rows]:
    """The rows that the vote gives an observation, and the label of that reading."""
    options = _rows(obs, n)
    wanted = (votes.get((_class(obs), len(options) > 3)), "fixed")
    return next((option for option in options if option[0] in wanted), ("all", obs.rows))


def _phrase(obs: Observation) -> tuple[str, ...]:
    """The key of a print statement: the same in every layer, and for every token."""
    return (_any_row(obs), obs.side, *(split(name)[0] for name in (obs.name, *obs.others)))


def _any_row(obs: Observation) -> str:
    """The words of a line without the number of the token whose row it shows."""
    if obs.rows is None or obs.rows[1] - obs.rows[0] != 1:
        return obs.template
    return re.sub(rf"(?<!\d){obs.rows[0]}(?!\d)", "#", obs.template, count=1)


def _choose(
    observations: Sequence[Observation],
    rows: Callable[[Observation], Rows],
    distance: Callable[[Observation, Rows], float],
) -> dict[tuple[str, ...], int]:
    """For every phrase with several nodes, the index of its node: the likeliest, unless another one fits far better."""
    totals: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}
    lists = {_phrase(o) for o in observations if o.kind not in STATISTICS}
    for obs in observations:
        if not obs.others or (obs.kind in STATISTICS and _phrase(obs) in lists):  # a list is better evidence
            continue
        # Behind a fault all nodes are far: such values must not outvote those before it.
        far = [math.log(min(distance(replace(obs, name=name), rows(obs)), _NEAR)) for name in (obs.name, *obs.others)]
        have, near = totals.setdefault(_phrase(obs), ([0.0] * len(far), [math.inf] * len(far)))
        totals[_phrase(obs)] = [a + b for a, b in zip(have, far, strict=True)], list(map(min, near, far))
    return {
        phrase: next((i for i, total in enumerate(sums) if total <= min(sums) + math.log(3) and fits[i]), 0)
        for phrase, (sums, near) in totals.items()
        for fits in [[d < math.log(_NEAR) for d in near]]
    }
