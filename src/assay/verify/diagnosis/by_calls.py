"""Calls that the dump does not name: padding, a draft that was taken back, a request before this one.

Their keys and values are gone, and their recurrent state is not. No edit of a node gives such values, because the
hidden tokens pass through the whole model. So each row of `HIDDEN` names the calls that were really made, and the
definition runs them with a cache that forgets rows and keeps states. Some rows make the dump's own calls with a cache
that gives a layer the state of another one.

Touch this module to add another way in which tokens get into a state that they do not belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Graph, split
from assay.models import Model
from assay.verify.diagnosis.by_feeds import cause_of, comparable
from assay.verify.diagnosis.fault_trials import FaultTrials, ObservationFit
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import token_axis
from assay.verify.faults.description import OTHER_CACHE
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.thresholds import ACCEPT, AMPLIFIED, RULED_OUT

Array = NDArray[Any]
BOTH = ("recurrent", "convolution")
PADDED = (4, 1, 2, 3, 8)  # rows of padding that are tried
DRAFTED = (1, 2, 3, 4)  # tokens that were taken back


@dataclass(frozen=True)
class FedCall:
    """Tokens that were computed together. A hidden call leaves its states, of the kinds in `keeps`, and no rows."""

    tokens: tuple[int, ...]
    start: int  # position of its first token
    keeps: tuple[str, ...] | None = None  # None: a call of the dump


class _Kept:
    """The cache of one sequence. Its rows can be set back; its states remain."""

    def __init__(self) -> None:
        self.rows: dict[str, Array] = {}
        self.states: dict[str, Array] = {}
        self._new: dict[str, Array] = {}

    def append(self, name: str, rows: Array) -> Array:
        self.rows[name] = np.concatenate([self.rows[name], rows]) if name in self.rows else rows
        return self.rows[name]

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.states[name] if name in self.states else np.zeros(shape, dtype)

    def store(self, name: str, value: Array) -> None:
        self._new[name] = value

    def stored(self, name: str) -> Array:
        return self._new[name]

    def finish(self, nodes: Collection[str]) -> None:
        """The states of these nodes after the call replace those before it."""
        self.states |= {name: value for name, value in self._new.items() if name in nodes}
        self._new.clear()


class _OnePlace(_Kept):
    """A cache with one place for the states of all layers, of these roles. In the first call states may be zero."""

    def __init__(self, roles: Collection[str], *, in_decode: bool = False) -> None:
        super().__init__()
        self._place: dict[str, Array] = {}
        self._roles, self._in_decode = roles, in_decode

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if split(name)[0] not in self._roles:
            return super().load(name, shape, dtype)
        found = None if self._in_decode and not self.states else self._place.get(split(name)[0])
        return np.zeros(shape, dtype) if found is None or found.shape != shape else found

    def store(self, name: str, value: Array) -> None:
        super().store(name, value)
        self._place[split(name)[0]] = value


class _LayerBefore(_Kept):
    """A cache that gives a layer, from the second call on, the state that the layer before has just written."""

    def __init__(self, roles: Collection[str]) -> None:
        super().__init__()
        self._roles = roles

    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        kept = [(other, x) for other, x in self._new.items() if split(other)[0] in self._roles]
        written = [x for other, x in kept if split(other)[0] == split(name)[0] and x.shape == shape]
        return written[-1] if written and self.states else super().load(name, shape, dtype)


@dataclass(frozen=True)
class HiddenCalls:
    """A fault, and the calls that an engine with it makes; `decoding` if it shows from the second call on."""

    fault: str
    label: str
    calls: tuple[FedCall, ...]
    decoding: bool | None  # None: in some layers
    same: tuple[str, ...] = ()  # faults that make the same calls
    cache: Callable[[], _Kept] = _Kept


def run_calls(
    graph: Graph,
    weights: Weights,
    calls: Sequence[FedCall],
    names: Collection[str],
    begin: Mapping[int, Mapping[str, Array]] | None = None,
    make: Callable[[], _Kept] = _Kept,
) -> dict[str, Array]:
    """The values of nodes in the calls of the dump, joined. A node without tokens has its value after the last call.

    `begin` has states that a call, by its number, begins with in the place of those that the call before left.
    """
    cache, found = make(), dict[str, list[Array]]()
    kinds = {kept.node: kept.kind.name for kept in graph.state.per_sequence}
    needed = (
        graph.ancestors(names) if make is _Kept else {node.name for node in graph}
    )  # a state may be a later layer's
    stateful = needed & graph.state.by_node.keys()
    for i, call in enumerate(calls):
        before = dict(cache.rows)
        shown = names if call.keeps is None else ()
        at = np.arange(call.start, call.start + len(call.tokens))
        env = {
            "inp_tokens": np.asarray(call.tokens, np.int64),
            "inp_pos": at,
            "inp_kpos": cache.append("inp_kpos", at),
            **(begin or {}).get(i, {}),
        }
        values = interpret(graph, weights, env, {*shown, *stateful}, cache=cache)
        for name in shown:
            found.setdefault(name, []).append(values[name])
        cache.finish([name for name, kind in kinds.items() if call.keeps is None or kind in call.keeps])
        if call.keeps is not None:
            cache.rows = before
    return {
        name: np.concatenate(parts, axis=token_axis(graph, name)) if "T" in graph.shapes[name] else parts[-1]
        for name, parts in found.items()
    }


def dumped_calls(tokens: Sequence[int], steps: Sequence[int]) -> list[FedCall]:
    """The calls that the dump names."""
    ends = np.cumsum(steps or (len(tokens),))
    return [
        FedCall(tuple(tokens[end - n : end]), int(end - n))
        for n, end in zip(steps or (len(tokens),), ends, strict=True)
    ]


# -- what may have been called beside them --------------------------------------------------------------------------


def _padded(
    calls: Sequence[FedCall], count: int, pad: Callable[[FedCall], int], keeps: tuple[str, ...]
) -> tuple[FedCall, ...]:
    """After every call but the last, `count` rows of padding."""
    found = []
    for call in calls[:-1]:
        end = call.start + len(call.tokens)
        found += [call, FedCall((pad(call),) * count, end, keeps)]
    return (*found, calls[-1])


def _drafted(calls: Sequence[FedCall], draft: Sequence[int], keeps: tuple[str, ...]) -> tuple[FedCall, ...]:
    """A draft after the first call, taken back from keys and values."""
    end = calls[0].start + len(calls[0].tokens)
    return (calls[0], FedCall(tuple(draft), end, keeps), *calls[1:])


def _each_drafted(calls: Sequence[FedCall], keeps: tuple[str, ...]) -> tuple[FedCall, ...]:
    """Before every call but the first, its first token as a draft."""
    found = [calls[0]]
    for call in calls[1:]:
        found += [FedCall(call.tokens[:1], call.start, keeps), call]
    return tuple(found)


# A layer that begins with another layer's state: words, does it show from the second call on, the cache that does so.
_PLACES: tuple[tuple[str, bool | None, Callable[[Collection[str]], _Kept]], ...] = (
    ("all layers share one state: each begins with what the layer before has left", None, _OnePlace),
    (
        "from the second call on all layers share one state: each begins with what the layer before has left",
        True,
        partial(_OnePlace, in_decode=True),
    ),
    ("from the second call on each layer begins with the state of the layer before", True, _LayerBefore),
)
_KEPT = {"": BOTH, ", not into the window": ("recurrent",), ", into the window alone": ("convolution",)}


def hidden_calls(model: Model, tokens: Sequence[int], steps: Sequence[int]) -> Iterator[HiddenCalls]:
    """Every row that can show in these calls."""
    calls = dumped_calls(tokens, steps)
    rest = [t for call in calls[1:] for t in call.tokens]
    roles = list(dict.fromkeys(split(kept.node)[0] for kept in model.graph.state.per_sequence))
    for some in (roles, *([name] for name in roles if len(roles) > 1)):
        tail = f" ({some[0]})" if len(some) < len(roles) else ""
        for label, decoding, cache in _PLACES:
            if rest or not decoding:
                yield HiddenCalls(OTHER_CACHE, label + tail, tuple(calls), decoding, cache=partial(cache, some))
    for tail, keeps in _KEPT.items():
        for text, before in (("the same request", tuple(tokens)), ("the same prompt", calls[0].tokens)):
            if text == "the same request" or rest:
                label = f"the state still holds {text}{tail}"
                yield HiddenCalls("st-leak", label, (FedCall(before, 0, keeps), *calls), False)
    if not rest:
        return
    last = calls[0].tokens[-1]
    for tail, keeps in _KEPT.items():
        for count in DRAFTED:
            if count <= len(rest):
                what = "next token" if count == 1 else f"next {count} tokens"
                made = _drafted(calls, rest[:count], keeps)
                yield HiddenCalls("st-rollback", f"the {what} drafted and taken back from keys alone{tail}", made, True)
            made = _drafted(calls, [last] * count, keeps)
            label = f"{count} copies of the last token drafted and taken back from keys alone{tail}"
            yield HiddenCalls("st-rollback", label, made, True)
        label = f"each call's last token run again and taken back from keys alone{tail}"
        made = _padded(calls, 1, lambda call: call.tokens[-1], keeps)
        yield HiddenCalls("st-rollback", label, made, True, ("st-pad-enters",))
        if len(calls) > 2:
            label = f"every token drafted once and taken back from keys alone{tail}"
            yield HiddenCalls("st-rollback", label, _each_drafted(calls, keeps), True)
    for tail, keeps in _KEPT.items():
        for pad in _padding_ids(model):
            for count in PADDED:
                made = _padded(calls, count, lambda call, pad=pad: pad, keeps)  # type: ignore[misc]
                yield HiddenCalls("st-pad-enters", f"{count} rows of padding, id {pad}, enter{tail}", made, True)
        for count in PADDED:
            made = _padded(calls, count, lambda call: call.tokens[-1], keeps)
            yield HiddenCalls("st-pad-enters", f"{count} copies of a call's last token enter{tail}", made, True)


def _padding_ids(model: Model) -> list[int]:
    """Ids that engines pad with: 0, and those that the file names."""
    keys = ("padding_token_id", "eos_token_id", "bos_token_id")
    named = [model.file.metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    ids = [int(i) for i in named if isinstance(i, int | np.integer) and 0 <= int(i) < model.hparams.n_vocab]
    return list(dict.fromkeys((0, *ids)))


# -- the search -----------------------------------------------------------------------------------------------------


def other_calls(trials: FaultTrials, diff: Diff, say: Callable[[str], None]) -> Cause | None:
    """The hidden calls that explain everything observed, if some do."""
    if not trials.graph.state.per_sequence:
        return None
    names = comparable(trials, diff)
    wrong = [n for n in diff.nodes if n.verdict == "wrong" and n.name in names]
    if not wrong:
        return None
    say("trying calls that the dump does not name")
    trials = trials.on(replace(trials.terms, carried=True))
    later = right_in_the_prompt(trials, wrong)
    rows = [row for row in hidden_calls(trials.model, trials.dump.tokens, trials.dump.steps)
            if later is None or row.decoding in (None, later)]  # fmt: skip
    plain = compare_calls(trials, dumped_calls(trials.dump.tokens, trials.dump.steps), names)
    for row in trials.budget.each(rows, "trying calls that the dump does not name", "calls"):
        first = _noise_of_others(row, plain, compare_calls(trials, row.calls, [wrong[0].name], make=row.cache))
        if first[wrong[0].name].ratio > RULED_OUT * ACCEPT:
            continue
        fits = _noise_of_others(row, plain, compare_calls(trials, row.calls, names, make=row.cache))
        cause = cause_of(trials, row.fault, row.label, plain, fits, wrong, len(rows), row.same)
        if cause is not None:
            return cause
    return None


def _noise_of_others(
    row: HiddenCalls, plain: Mapping[str, ObservationFit], fits: dict[str, ObservationFit]
) -> dict[str, ObservationFit]:
    """The fits; another layer's state brings that layer's noise, so a value that leaves nearly nothing is explained."""
    if row.fault != OTHER_CACHE:
        return fits
    near = {name for name, fit in fits.items() if fit.residual <= AMPLIFIED * plain[name].residual}
    return {n: replace(fit, ratio=min(fit.ratio, ACCEPT)) if n in near else fit for n, fit in fits.items()}


def compare_calls(
    trials: FaultTrials,
    calls: Sequence[FedCall],
    names: Sequence[str],
    begin: Mapping[int, Mapping[str, Array]] | None = None,
    make: Callable[[], _Kept] = _Kept,
) -> dict[str, ObservationFit]:
    """The observations of these nodes against a run of these calls."""
    with np.errstate(all="ignore"):
        values = run_calls(trials.graph, trials.weights, calls, names, begin, make)
    return {name: trials.compare(name, values[name], own=values[name]) for name in names}


def right_in_the_prompt(trials: FaultTrials, wrong: Sequence[NodeVerdict]) -> bool | None:
    """Is the first wrong node right in the first call? None where its values there were not dumped."""
    dump, name = trials.dump, wrong[0].name
    whole = dump.values(name)
    if whole is None or "T" not in trials.graph.shapes[name]:
        return None
    if len(dump.steps) < 2:
        return False
    prompt, axis = dump.steps[0], token_axis(trials.graph, name)
    right = run_calls(trials.graph, trials.weights, dumped_calls(dump.tokens, dump.steps), [name])[name]
    error = np.moveaxis(np.abs(whole - right), axis, 0).reshape(len(dump.tokens), -1).max(1)
    return bool(error[:prompt].max() < 1e-2 * error[prompt:].max())
