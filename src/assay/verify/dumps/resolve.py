"""Brings a dump into the model's names and layouts: translate names, match by value, lay out axes, join steps.

The order is fixed: `resolve` reads like a list of these passes. Every assumption of a pass is a line in `Dump.notes`.
Touch this module when a dump is read correctly but ends up at the wrong node, row or layout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.graph import Graph, Trait, join
from assay.models import Model
from assay.verify.dumps.draft_tracing import model_of
from assay.verify.dumps.finite import up_to_first
from assay.verify.dumps.matching import layouts
from assay.verify.dumps.matching.ambiguities import choose_readings
from assay.verify.dumps.matching.both_ends import split_both_ends
from assay.verify.dumps.matching.by_values import by_values, choose_alternatives, overrule_words
from assay.verify.dumps.matching.by_width import logits_by_width, lone_wide_array
from assay.verify.dumps.matching.confirmed_later import Definition, any_is_right, leave_refuted
from assay.verify.dumps.matching.cut_arrays import cut_columns
from assay.verify.dumps.matching.decode_rows import split_decode_rows
from assay.verify.dumps.matching.heads import place_heads
from assay.verify.dumps.matching.layer_numbers import number_layers
from assay.verify.dumps.matching.reading_notes import (
    grouped_notes,
    nothing_read_error,
    reading_summary,
    says_nothing,
    suggested_pattern,
)
from assay.verify.dumps.matching.repeated_prints import one_print_of_each
from assay.verify.dumps.matching.state_layouts import nearest_state, state_readings, value_head_order
from assay.verify.dumps.matching.statement_nodes import as_in_prompt, assign_nodes
from assay.verify.dumps.matching.statistic_lists import read_statistic_lists
from assay.verify.dumps.matching.token_statistics import split_by_token
from assay.verify.dumps.naming.foreign_names import ignored, translate
from assay.verify.dumps.observation import Dump, Observation, inputs_of, rows_of, token_axis
from assay.verify.dumps.other_evidence import different_sizes, of_another_model
from assay.verify.dumps.state_rows import shown_states, states_after, take_states
from assay.verify.dumps.tracing import shape_of
from assay.verify.dumps.unknown_names import SPARE_VALUES, after_rotation, match_by_value, match_by_words, same_role

Array = NDArray[Any]
_LETTER_ALONE = re.compile(r"(?:^|[._/])(?:q|k|query|key)$", re.IGNORECASE)
MOST_VALUES = 1 << 28  # of one node; scores grow with the square of the tokens


class _OtherShape(AssayError):
    """An array whose shape is not its node's. Few of them are left out; many are a dump of another model."""


class Truth:
    """The definition's values for these tokens, computed when first asked for."""

    def __init__(
        self,
        model: Model,
        tokens: Sequence[int],
        positions: Sequence[int],
        given: Mapping[str, Array] | None = None,
    ) -> None:
        self._graph, self._weights = model.graph, Weights(model.file, np.float32, budget=1 << 30)
        self._feed = tuple(tokens), tuple(positions)
        self._given = {**inputs_of(tokens, positions), **(given or {})}
        self._known: dict[str, Array] = {}

    def fits(self, model: Model, dump: Dump) -> bool:
        """Is it of this model and these tokens?"""
        return self._graph is model.graph and self._feed == (dump.tokens, dump.positions)

    def __call__(self, names: Collection[str]) -> dict[str, Array]:
        missing = set(names) - self._known.keys()
        if missing:
            self._known |= interpret(self._graph, self._weights, self._given | self._known, missing)
        return {name: self._known[name] for name in names}

    def after(self, name: str, value: Array, later: str) -> Array:
        """The value of a later node, if a node had this value."""
        changed = {name}
        for node in self._graph:
            if changed & set(node.inputs):
                changed.add(node.name)
        between = changed & self._graph.ancestors([later]) - {name}
        sides = {other for node in between for other in self._graph[node].inputs} - changed - self._given.keys()
        return interpret(self._graph, self._weights, {**self._given, **self(sides), name: value}, {later})[later]

    def states(self, name: str, steps: Sequence[int]) -> Array:
        """The state that a node shows, for each call."""
        kept = {}
        for keeper in (self._graph[other] for other in self._graph[name].inputs):
            inputs = self(keeper.inputs)
            kept[keeper.name] = states_after(keeper, [inputs[i] for i in keeper.inputs], self._weights, steps)
        return shown_states(self._graph[name], kept)


def resolve(
    dump: Dump,
    model: Model,
    map: Mapping[str, str] | None = None,
    *,
    tokens: Sequence[int] = (),
    side: str = "",
    truth: Truth | None = None,
) -> Dump:
    """The dump in the model's names and layouts, checked against it.

    `truth` has values of earlier dumps of these tokens, so that several dumps of one prompt are resolved faster.
    """
    dump = split_decode_rows(dump, tokens)
    if dump.later:
        return _with_decode_steps(dump, model, map, tuple(tokens), side)
    model = model_of(model, dump)
    if says_nothing(dump):
        raise nothing_read_error(dump, different_sizes(dump.claims, model) if dump.claims is not None else "")
    if (other := of_another_model(dump, model)) is not None:
        try:
            found = resolve(replace(dump, claims=None), model, map, tokens=tokens, side=side, truth=truth)
        except AssayError:
            raise other from None
        if not any_is_right(found.observations, model, Truth(model, found.tokens, found.positions, found.given)):
            raise other
        return found
    dump = _check_tokens(dump, model, tuple(tokens))
    if truth is None or not truth.fits(model, dump):
        truth = Truth(model, dump.tokens, dump.positions, dump.given)
    notes = list(dump.notes)
    chosen, note = _choose_side(dump, side)
    notes += note
    chosen, unread, note = number_layers([*chosen], dump.unread, model.hparams.n_layer)
    notes += note
    if dump.log:
        chosen, unread, note = logits_by_width(chosen, unread, model, len(dump.tokens))
        notes += note
    named, unknown = _translate(chosen, model, map or {}, dump.source)
    if dump.log:  # the model has no such node: the values may tell which one is meant
        unread = [*unread, *(replace(o, name="", others=()) for o in unknown if o.kind != "values")]
    named, unknown, note = lone_wide_array(named, unknown, model)
    notes += note
    named, unknown, cut, note = cut_columns(named, unknown, model, len(dump.tokens))
    unread, notes = [*unread, *cut], [*notes, *note]
    named, note = place_heads(named, model, len(dump.tokens), dump.steps, truth)
    notes += note
    named, note = after_rotation(named, model, len(dump.tokens), truth)
    notes += note
    named, broken = up_to_first(named, model.graph, dump.steps)
    named, states = take_states(named, model.graph, dump.steps)
    states, note = _lay_states(states, model, dump, truth)
    notes += note
    listed = {o.where for o in unread}
    if dump.log:
        named, note = split_by_token(named, model, len(dump.tokens), truth)
        notes += note
        named, unread, note = read_statistic_lists(named, unread, model, len(dump.tokens), truth)
        notes += note
    listed -= {o.where for o in unread}
    named, explained, note = decide_by_values(named, unread, model, len(dump.tokens), truth)
    explained |= listed
    notes += note
    dump = replace(
        dump,
        unexplained=tuple(a for w, a in zip(dump.unexplained_at, dump.unexplained, strict=True) if w not in explained),
    )
    if dump.log and not named and not states and not broken:
        raise nothing_read_error(dump)
    matched, left, note = match_by_value(unknown, model, dump, truth, {o.name for o in named})
    notes += note
    spoken, left, note = match_by_words(left, model, len(dump.tokens), {o.name for o in (*named, *matched)})
    matched += spoken
    notes += note
    laid: list[Observation] = []
    strange: list[tuple[Observation, AssayError]] = []
    for obs in (*named, *matched):
        try:
            done, label = _lay(obs, model, dump, truth)
        except AssayError as error:
            if not (dump.log or isinstance(error, _OtherShape)):
                raise
            strange.append((obs, error))
            continue
        if done is None:
            continue
        laid.append(done)
        if label:
            notes.append(f"{obs.name}: read as {label}")
    if 2 * len(strange) > len(laid):
        raise strange[0][1]
    notes += [_not_used(obs, error) for obs, error in strange]
    laid, note = _orders(laid, model, truth)
    notes += note
    for choose in (
        (split_both_ends, leave_refuted, one_print_of_each, partial(leave_refuted, singly=True)) if dump.log else ()
    ):
        laid, note = choose(laid, model, truth, len(dump.tokens))
        notes += note
    joined = _join_steps(laid, model, dump)
    order = {node.name: i for i, node in enumerate(model.graph)}
    joined.sort(key=lambda o: order[o.name])
    unmatched = tuple(dict.fromkeys(o.foreign for o in left))
    notes += [
        f"not understood: {line!r}; --pattern {suggested_pattern(line)!r} would take it"
        for line in dump.unexplained[:3]
    ]
    notes = grouped_notes(notes)
    dump = replace(
        dump,
        observations=tuple(joined),
        states=tuple(states),
        unmatched=unmatched,
        notes=tuple(notes),
        not_finite=broken or dump.not_finite,
    )
    return replace(dump, reading=tuple(reading_summary(dump, len(dump.tokens)))) if dump.log else dump


def _not_used(obs: Observation, error: AssayError) -> str:
    if isinstance(error, _OtherShape):
        return f"{obs.foreign}: not used; its shape {list(obs.shape or ())} is not {obs.name}'s"
    return f"not used: {error}"


def _with_decode_steps(
    dump: Dump, model: Model, map: Mapping[str, str] | None, tokens: tuple[int, ...], side: str
) -> Dump:
    """A log of a prompt and of decode steps: the prompt is read alone, then each step is a row behind it."""
    steps = tuple(token for token, _ in dump.later)
    if not dump.observations and not dump.unread and (dump.tokens or tokens):
        return resolve(_steps_alone(dump, dump.tokens or tokens), model, map, tokens=tokens, side=side)
    if not dump.tokens and tokens[-len(steps) :] == steps and len(tokens) > len(steps):
        tokens = tokens[: -len(steps)]  # the caller gave the whole sequence
    given = _given(dump, len(dump.tokens or tokens))
    first = resolve(replace(dump, later=(), given=given), model, map, tokens=tokens, side=side)
    n, graph = len(first.tokens), model.graph
    found = []
    for obs in first.observations:
        shape = obs.shape or (shape_of(graph, obs.name, n) if "S" in graph.shapes[obs.name] else None)
        found.append(replace(obs, rows=obs.rows or (0, n), shape=shape))
    fed = [*first.tokens]
    for token, shown in dump.later:
        seen = as_in_prompt(shown, (*dump.observations, *dump.unread), first.observations)
        fed.append(token)
        rows = (len(fed) - 1, len(fed))
        step = replace(
            dump, later=(), tokens=tuple(fed), positions=tuple(range(len(fed))), steps=(len(fed),),
            unread=tuple(_in_row(obs, rows) for obs in seen if not obs.name), unexplained=(), unexplained_at=(),
            observations=tuple(_in_row(obs, rows) for obs in seen if obs.name), notes=(),
            given=_given(dump, len(fed)),
        )  # fmt: skip
        if seen:
            found += resolve(step, model, map, side=side).observations
    order = {node.name: i for i, node in enumerate(graph)}
    found.sort(key=lambda obs: order[obs.name])
    done = replace(
        first, tokens=tuple(fed), positions=tuple(range(len(fed))), steps=(n, *(1 for _ in dump.later)),
        given=dump.given, observations=tuple(found),
        notes=(*first.notes, f"{len(dump.later)} decode steps are read behind the prompt"),
    )  # fmt: skip
    return replace(done, reading=tuple(reading_summary(done, len(fed))))


def _steps_alone(dump: Dump, prompt: tuple[int, ...]) -> Dump:
    """A log that shows nothing of the prompt itself: one dump of all tokens, each step a row."""
    n = len(prompt)
    shown = [(_in_row(obs, (n + i, n + i + 1))) for i, (_, seen) in enumerate(dump.later) for obs in seen]
    fed = (*prompt, *(token for token, _ in dump.later))
    return replace(
        dump, later=(), tokens=fed, positions=tuple(range(len(fed))), steps=(n, *(1 for _ in dump.later)),
        observations=tuple(o for o in shown if o.name), unread=tuple(o for o in shown if not o.name),
    )  # fmt: skip


def _given(dump: Dump, n: int) -> dict[str, Array]:
    """Inputs of a run of the first n tokens, beside the tokens."""
    return {name: rows[:n] for name, rows in dump.given.items()}


def _in_row(obs: Observation, rows: tuple[int, int]) -> Observation:
    others = tuple(replace(other, rows=rows, possible_row=None) for other in obs.alternatives)
    return replace(obs, rows=rows, possible_row=None, alternatives=others)


def decide_by_values(
    named: Sequence[Observation],
    unread: Sequence[Observation],
    model: Model,
    n: int,
    truth: Definition,
) -> tuple[list[Observation], set[str], list[str]]:
    """Decide by values what words leave open: readings, nodes, rows. Also the places of lines named by values."""
    named, by_token = split_by_token(named, model, n, truth)
    named, chosen = choose_alternatives(named, model, n, truth)
    open_ = [o for o in named if o.vague and o.kind != "values"]
    clear = [o for o in named if not (o.vague and o.kind != "values")]
    whole, places, first = assign_nodes(open_, unread, model, n, truth, complete=False)
    open_ = [o for o in whole if o.vague]
    clear += [o for o in whole if not o.vague]
    unread = [o for o in unread if o.where not in places]
    done, notes = by_values([*open_, *unread], model, n, truth) if open_ or unread else ([], [])
    found, note = choose_readings([*clear, *_confirmed(done, clear)], model, n, truth)
    found, more = overrule_words(found, model, n, truth)
    found, more_places, last = assign_nodes(found, [o for o in done if not o.name], model, n, truth)
    places |= more_places
    notes = [*by_token, *chosen, *first, *notes, *more, *last]
    return found, {o.where for o in done[len(open_) :] if o.name} | places, notes + note


def _confirmed(done: Sequence[Observation], clear: Sequence[Observation]) -> list[Observation]:
    """The observations that have a node. Two numbers below a layer are not its values, if other lines give these."""
    known = {o.name for o in (*clear, *(o for o in done if not o.vague)) if o.kind == "first"}
    return [o for o in done if o.name and not (o.vague and o.kind == "first" and len(o.data) < 3 and o.name in known)]


def _check_tokens(dump: Dump, model: Model, given: tuple[int, ...]) -> Dump:
    prompt = len(dump.steps) > 1 and given == dump.tokens[: dump.steps[0]]
    if given and dump.tokens and given != dump.tokens and not prompt:
        at = next((i for i, (a, b) in enumerate(zip(given, dump.tokens, strict=False)) if a != b), -1)
        raise AssayError(
            f"{dump.source}: holds other tokens (found {list(dump.tokens)[:8]}…, expected {list(given)[:8]}…"
            f"{f', first differing at {at}' if at >= 0 else ', another number of them'}); compare runs of the same ids"
        )
    tokens = dump.tokens or given
    if not tokens:
        raise AssayError(
            f"{dump.source}: does not say which tokens were fed; give them with --tokens, or their text with -p"
        )
    n_vocab = model.hparams.n_vocab
    bad = next((t for t in tokens if not 0 <= t < n_vocab), None)
    if bad is not None:
        raise AssayError(
            f"{dump.source}: token {bad} is outside the vocabulary of {model.file.path.name} (0 to {n_vocab - 1}); "
            "is it a dump of another model?"
        )
    _check_room(dump.source, model, len(tokens))
    theirs = dump.provenance.get("model_sha256")
    if theirs and theirs != model.file.sha256:
        name = Path(dump.provenance.get("model", "unknown")).name
        raise AssayError(
            f"{dump.source}: is a trace of another model (found {name}, sha256 {theirs[:12]}…, "
            f"expected {model.file.path.name}, {model.file.sha256[:12]}…)"
        )
    if dump.steps and sum(dump.steps) != len(tokens):
        raise AssayError(
            f"{dump.source}: holds calls of {', '.join(map(str, dump.steps[:8]))} tokens (found {len(tokens)} ids, "
            f"expected {sum(dump.steps)}); give the ids of all calls, the prompt's first"
        )
    positions = dump.positions if len(dump.positions) == len(tokens) else tuple(range(len(tokens)))
    return replace(dump, tokens=tokens, positions=positions, steps=dump.steps or (len(tokens),))


def _check_room(source: str, model: Model, n: int) -> None:
    """Check before computing: the tokens fit the context, and their largest value fits memory."""
    if n > model.hparams.n_ctx_train:
        raise AssayError(
            f"{source}: {n} tokens, more than the context of {model.file.path.name} ({model.hparams.n_ctx_train}); "
            "is it a dump of another model?"
        )
    name = max((node.name for node in model.graph), key=lambda name: math.prod(shape_of(model.graph, name, n)))
    if (size := math.prod(shape_of(model.graph, name, n))) > MOST_VALUES:
        raise AssayError(
            f"{source}: {n} tokens make {name} {size} values (expected at most {MOST_VALUES}); dump fewer tokens"
        )


def _choose_side(dump: Dump, side: str) -> tuple[list[Observation], list[str]]:
    sides = list(dict.fromkeys(o.side for o in dump.observations if o.side))
    if side and side not in sides:
        raise AssayError(f"--side {side}: the log shows no such engine; it shows {', '.join(sides) or 'only one'}")
    if len(sides) < 2:
        return list(dump.observations), []
    chosen = side or sides[0]
    kept = [o for o in dump.observations if o.side in ("", chosen)]
    return kept, [f"the log shows {' and '.join(sides)}; {chosen}'s values are judged (--side chooses)"]


def _translate(
    observations: list[Observation], model: Model, map: Mapping[str, str], source: str
) -> tuple[list[Observation], list[Observation]]:
    named, unknown = [], []
    for obs in observations:
        name = obs.name
        if name in map or obs.foreign in map:
            target = map.get(name) or map[obs.foreign]
            if target not in model.graph:
                raise AssayError(f"--map: {name}: {target} is no node of the model; `assay inspect --graph` lists them")
            named.append(replace(obs, name=target))
        elif found := candidates(obs, model):
            named.append(_renamed(obs, found, model))
        elif second := [other for other in obs.alternatives if candidates(other, model)]:
            named += [
                _renamed(other, candidates(other, model), model) for other in second
            ]  # the model has no such layer
        elif not ignored(name, obs.op):
            unknown.append(obs)
    return named, unknown


def _renamed(obs: Observation, nodes: tuple[str, ...], model: Model) -> Observation:
    """The observation, and those of its second reading, with nodes of this model."""
    second = ((other, candidates(other, model)) for other in obs.alternatives)
    alternatives = tuple(replace(other, name=found[0], others=found[1:]) for other, found in second if found)
    if (obs.name, obs.others, obs.alternatives) == (nodes[0], nodes[1:], alternatives):
        return obs
    return replace(obs, name=nodes[0], others=nodes[1:], alternatives=alternatives)


def candidates(obs: Observation, model: Model) -> tuple[str, ...]:
    """The nodes of this model that the observation's words may mean."""
    last = str(model.hparams.n_layer - 1)
    for several in ((obs.name, *obs.others), obs.fallbacks):
        names = [name.replace("-last", "-" + last) for name in several]
        if obs.template and not obs.fallbacks:  # words, not a name
            names += [join(role, layer) for name in names for role, layer in same_role(name)]
        nodes = tuple(dict.fromkeys(f[0] for name in names if (f := translate(name, obs.op, model.graph))))
        if nodes and several is not obs.fallbacks and _LETTER_ALONE.search(obs.name) and obs.kind != "values":
            turned = tuple(name for name in obs.fallbacks if name in model.graph and name not in nodes)
            return (*nodes, *turned)  # layers.0.q: before or after the rotation
        if nodes:
            return nodes
    return ()


def _lay(obs: Observation, model: Model, dump: Dump, truth: Truth) -> tuple[Observation | None, str]:
    """The observation in the graph's axes, and a note if the layout was not plain; None if it must be dropped."""
    graph, n = model.graph, len(dump.tokens)
    axis = token_axis(graph, obs.name)
    if obs.kind != "values":
        return _lay_part(obs, model, n, dump.steps)
    rows = obs.rows or (0, n)
    shape = obs.shape
    plain = shape_of(graph, obs.name, n)
    reordered = obs.foreign != obs.name and value_head_order(graph, obs.name, plain[-1]) is not None
    if obs.rows is None and shape == plain and not reordered:
        return replace(obs, data=partial(_read_as_computed, obs, graph)), ""
    small = shape is None or math.prod(shape) <= math.prod(plain) + SPARE_VALUES  # checked before reading
    found = layouts.readings(graph, obs.name, obs.array(), rows, n) if small else []
    if not found:
        raise _OtherShape(
            f"{dump.source}: {obs.foreign}: shape {list(shape or obs.array().shape)} does not fit {obs.name} "
            f"(expected {[*plain]} for {n} tokens); is it a dump of another model, or of other tokens?"
        )
    best = found[0] if len(found) == 1 else layouts.nearest(found, truth([obs.name])[obs.name], axis)
    data = _as_computed(obs, best.array, graph)
    return replace(obs, data=data, rows=best.rows, shape=best.array.shape), best.label


def _lay_states(
    states: Sequence[Observation], model: Model, dump: Dump, truth: Truth
) -> tuple[list[Observation], list[str]]:
    """States in the graph's layout, and a note for every layout that is not plain."""
    laid, notes = [], list[str]()
    for obs in states:
        want = tuple(int(d) for d in model.graph[obs.name].attr("state"))
        if obs.kind != "values":  # a part of a state is taken as llama.cpp lays it out
            if obs.shape is None or math.prod(obs.shape) == math.prod(want):
                laid.append(replace(obs, shape=(1, *want)))
            else:
                notes.append(f"{obs.foreign}: not used; a part of several cells (found {list(obs.shape)})")
            continue
        small = obs.shape is None or math.prod(obs.shape) <= math.prod(want) + SPARE_VALUES  # checked before reading
        found = state_readings(model.graph, obs.name, obs.array()) if small else []
        if not found:
            raise AssayError(
                f"{dump.source}: {obs.foreign}: shape {list(obs.shape or obs.array().shape)} does not fit the state "
                f"{obs.name} (expected {[*want]}); is it a dump of another model?"
            )
        assert obs.rows is not None
        label, value = found[0]
        if len(found) > 1:
            label, value = nearest_state(found, truth.states(obs.name, dump.steps)[obs.rows[0]])
        laid.append(replace(obs, data=value[None], shape=(1, *want)))
        if label:
            notes.append(f"{obs.name}: read as {label}")
    return laid, notes


def _read_as_computed(obs: Observation, graph: Graph) -> Array:
    return _as_computed(obs, obs.array(), graph)


def _as_computed(obs: Observation, value: Array, graph: Graph) -> Array:
    """Scores with 0 for -inf, because the graph masks later; expert ids as whole numbers, even if written as floats."""
    node = graph[obs.name]
    if not node.has(Trait.INDICES):
        return np.where(np.isneginf(value), 0, value) if node.has(Trait.SCORES) and node.has(Trait.MASKABLE) else value
    first = graph[node.inputs[0]] if node.has(Trait.MOVES) else node
    count = int(graph.shapes[first.name][-1])
    wrong = value[~((value >= 0) & (value < count) & (value == np.rint(value)))]
    if wrong.size:
        raise AssayError(
            f"{obs.where or obs.foreign}: no expert has this number (found {wrong[0]:g}, expected 0 to {count - 1})"
        )
    return value.astype(np.int64)


def _without_padding(obs: Observation, n_keys: int) -> Observation | None:
    """Scores over the whole allocated cache: keep values at real keys; drop statistics, which include unset keys."""
    assert obs.shape is not None
    padded, shape = obs.shape[-1], (*obs.shape[:-1], n_keys)
    if obs.kind != "at":
        return None
    kept = [k for k, (i, _) in enumerate(obs.data) if i % padded < n_keys]
    data = tuple((obs.data[k][0] // padded * n_keys + obs.data[k][0] % padded, obs.data[k][1]) for k in kept)
    return replace(obs, data=data, shape=shape, printed=tuple(obs.printed[k] for k in kept)) if data else None


def _lay_part(obs: Observation, model: Model, n: int, steps: Sequence[int]) -> tuple[Observation | None, str]:
    """Check that a partial observation fits its node, and complete its rows and shape."""
    graph = model.graph
    start, stop = obs.rows or (0, n)
    if stop > n:
        raise AssayError(f"{obs.where}: row {stop - 1} of {n} tokens; give the ids of all of them with --tokens")
    symbolic = graph.shapes[obs.name]
    if obs.rows is not None and symbolic[0] == "S":
        obs = replace(obs, rows=(0, stop))

    def expected(rows: int) -> tuple[int, ...]:
        return tuple(rows if d == "T" else stop if d == "S" else int(d) for d in symbolic)

    whole, last = expected(stop - start), expected(1)
    if obs.shape is not None and symbolic[-1] == "S" and obs.shape[-1] > stop:
        cut = _without_padding(obs, stop)
        if cut is None:
            return None, ""
        obs = cut
    if obs.row is not None and obs.shape is not None and math.prod(obs.shape) == math.prod(expected(n)):
        obs = replace(obs, shape=whole)  # one row, printed with the whole tensor's shape
    if obs.shape is not None and math.prod(obs.shape) not in (math.prod(whole), math.prod(last)):
        raise AssayError(
            f"{obs.where}: shape {list(obs.shape)} does not fit {obs.name} "
            f"(expected {list(whole)}); is it a dump of another model, or of other tokens?"
        )
    if obs.kind in ("first", "last") and obs.shape is None and len(obs.data) > math.prod(whole):
        raise AssayError(
            f"{obs.where}: {obs.foreign}: more values than {obs.name} has (found {len(obs.data)}, expected at most "
            f"{math.prod(whole)}); is it a dump of another model, or of other tokens?"
        )
    short = obs.shape is not None and math.prod(obs.shape) < math.prod(whole)
    if short or (obs.kind == "top" and stop - start > 1):
        obs = replace(obs, rows=(stop - 1, stop))
    if obs.kind in ("at", "top"):
        keys = next((end for end in accumulate(steps) if end >= stop), n)
        room = math.prod(last if obs.row is not None else whole) // (stop if symbolic[-1] == "S" else 1)
        room *= keys if symbolic[-1] == "S" else 1
        high = max(i for i, _ in obs.data)
        if high >= room:
            raise AssayError(f"{obs.where}: {obs.foreign}: index {high} is outside the {room} values described")
    if obs.shape is not None:
        obs = replace(obs, shape=last if obs.row is not None and symbolic[0] != "S" else whole)
    elif obs.rows is not None and symbolic[-1] == "S":  # a row of scores has the keys of its own step, not later ones
        keys = next((end for end in accumulate(steps) if end >= stop), n)
        obs = replace(obs, shape=tuple(keys if d == "S" else stop - start if d == "T" else int(d) for d in symbolic))
    return obs, ""


def _orders(laid: list[Observation], model: Model, truth: Truth) -> tuple[list[Observation], list[str]]:
    """Find Hugging Face's order of queries and keys, on the first layer that shows it."""
    graph, width = model.graph, model.hparams.n_embd_head
    if not any(node.op == "rope" and node.attr("mode") == "norm" for node in graph):
        return laid, []
    notes = []
    for letter, stems in (("Q", ("Qcur",)), ("K", ("Kcur", "cache_k"))):
        mine = [o for o in laid if o.name.startswith(stems)]
        usable = [o for o in mine if o.kind in ("values", "first", "last", "at")]
        if not usable:
            continue
        first = [o for o in usable if o.name == usable[0].name]
        if layouts.is_hf(first, truth([usable[0].name]), graph, width):
            ids = {id(o) for o in mine}
            laid = [layouts.reorder(o, width) if id(o) in ids else o for o in laid]
            notes.append(f"{letter}: heads are in Hugging Face's order (halves); brought into pairs")
    return laid, notes


def _join_steps(laid: list[Observation], model: Model, dump: Dump) -> list[Observation]:
    """Join the rows that the steps gave of a node into one tensor."""
    if len(dump.steps) < 2:
        return laid
    graph, n = model.graph, len(dump.tokens)
    parts: dict[str, list[Observation]] = {}
    for obs in laid:
        if obs.kind == "values" and obs.rows is not None:
            parts.setdefault(obs.name, []).append(obs)
    out = [o for o in laid if not (o.kind == "values" and o.rows is not None)]
    for name, many in parts.items():
        covered = {t for o in many if o.rows for t in range(*o.rows)}
        if len(covered) < n:
            out += many
            continue
        chosen = graph[name].has(Trait.INDICES)  # experts, by number
        whole = np.zeros(shape_of(graph, name, n), np.int64 if chosen else np.float64)
        for obs in many:
            data = obs.array()
            rows_of(whole, token_axis(graph, name), obs.rows)[tuple(slice(0, k) for k in data.shape)] = data
        out.append(replace(many[0], data=whole, rows=None, shape=whole.shape))
    return out
