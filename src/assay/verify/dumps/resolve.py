"""Brings a dump into the model's names and layouts: translate names, match by value, lay out axes, join steps.

`resolve` runs the passes of `PASSES` in their order. A pass moves observations between the lists of `Resolution`, and
notes what it assumed. Touch this module when a pass is added or must run at another time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from numpy.typing import NDArray

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.definition_values import Truth
from assay.verify.dumps.draft_tracing import model_of
from assay.verify.dumps.finite import up_to_first
from assay.verify.dumps.matching.both_ends import split_both_ends
from assay.verify.dumps.matching.by_width import logits_by_width, lone_wide_array
from assay.verify.dumps.matching.confirmed_later import any_is_right, leave_refuted
from assay.verify.dumps.matching.cut_arrays import cut_columns
from assay.verify.dumps.matching.decode_rows import split_decode_rows
from assay.verify.dumps.matching.heads import place_heads
from assay.verify.dumps.matching.layer_numbers import number_layers
from assay.verify.dumps.matching.led_lists import split_led_lists
from assay.verify.dumps.matching.reading_notes import (
    grouped_notes,
    nothing_read_error,
    reading_summary,
    says_nothing,
    suggested_pattern,
)
from assay.verify.dumps.matching.refuted_arrays import leave_refuted_arrays
from assay.verify.dumps.matching.repeated_prints import one_print_of_each
from assay.verify.dumps.matching.statement_nodes import as_in_prompt
from assay.verify.dumps.matching.statistic_lists import read_statistic_lists
from assay.verify.dumps.matching.token_statistics import split_by_token
from assay.verify.dumps.matching.value_decisions import decide_by_values
from assay.verify.dumps.node_axes import join_steps, lay_all, lay_states, order_heads
from assay.verify.dumps.node_translation import translate_names
from assay.verify.dumps.observation import Dump, NotFinite, Observation
from assay.verify.dumps.other_evidence import different_sizes, of_another_model
from assay.verify.dumps.state_rows import take_states
from assay.verify.dumps.token_checks import check_tokens
from assay.verify.dumps.tracing import shape_of
from assay.verify.dumps.unknown_names import after_rotation, match_by_value, match_by_words

Array = NDArray[Any]

_LONG_LINE = 160  # characters


@dataclass
class Resolution:
    """A dump between two passes."""

    dump: Dump
    model: Model
    truth: Truth
    map: Mapping[str, str]  # the caller's names of nodes
    side: str  # the engine to judge, in a log that shows several
    named: list[Observation]  # with a node of the model, behind `_names`
    unread: list[Observation]  # printed values without a node
    unknown: list[Observation] = field(default_factory=list)  # whole arrays whose names the model lacks
    states: list[Observation] = field(default_factory=list)  # of recurrent layers
    broken: NotFinite | None = None
    explained: set[str] = field(default_factory=set)  # places of lines that a pass gave a node
    notes: list[str] = field(default_factory=list)
    set_aside: float = 0.0  # the share of prints that `_choices` left out

    @property
    def n(self) -> int:
        return len(self.dump.tokens)

    def keep(self, named: list[Observation], notes: Sequence[str] = ()) -> None:
        self.named = named
        self.notes += notes


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
    dump = split_decode_rows(dump, tokens, model)
    if dump.later:
        return _with_decode_steps(dump, model, map, tuple(tokens), side)
    model = model_of(model, dump)
    if says_nothing(dump):
        raise nothing_read_error(dump, different_sizes(dump.claims, model) if dump.claims is not None else "")
    if (other := of_another_model(dump, model)) is not None:
        return _right_all_the_same(dump, other, partial(resolve, map=map, tokens=tokens, side=side, truth=truth), model)
    dump = check_tokens(dump, model, tuple(tokens))
    if truth is None or not truth.fits(model, dump):
        truth = Truth(model, dump.tokens, dump.positions, dump.given)
    found = Resolution(
        dump,
        model,
        truth,
        map or {},
        side,
        named=list(dump.observations),
        unread=list(dump.unread),
        notes=[*dump.notes],
    )
    for step in PASSES:
        if dump.log or not step.logs_only:
            step.run(found)
    return _resolved(found)


def _right_all_the_same(dump: Dump, other: AssayError, again: Callable[[Dump, Model], Dump], model: Model) -> Dump:
    """The sizes that a log states are another model's. It is this model's all the same, if a value is right."""
    try:
        found = again(replace(dump, claims=None), model)
    except AssayError:
        raise other from None
    if not any_is_right(found.observations, model, Truth(model, found.tokens, found.positions, found.given)):
        raise other
    return found


def _sides(r: Resolution) -> None:
    sides = list(dict.fromkeys(o.side for o in r.named if o.side))
    if r.side and r.side not in sides:
        raise AssayError(f"--side {r.side}: the log shows no such engine; it shows {', '.join(sides) or 'only one'}")
    if len(sides) > 1:
        chosen = r.side or sides[0]
        note = f"the log shows {' and '.join(sides)}; {chosen}'s values are judged (--side chooses)"
        r.keep([o for o in r.named if o.side in ("", chosen)], [note])


def _layers(r: Resolution) -> None:
    named, r.unread, notes = number_layers(r.named, r.unread, r.model.hparams.n_layer)
    r.keep(named, notes)


def _logits(r: Resolution) -> None:
    named, r.unread, notes = logits_by_width(r.named, r.unread, r.model, r.n)
    r.keep(named, notes)


def _names(r: Resolution) -> None:
    r.named, r.unknown = translate_names(r.named, r.model, r.map)
    if r.dump.log:  # the model has no such node: the values may tell which one is meant
        r.unread += [replace(o, name="", others=()) for o in r.unknown if o.kind != "values"]


def _wide(r: Resolution) -> None:
    named, r.unknown, notes = lone_wide_array(r.named, r.unknown, r.model)
    r.keep(named, notes)


def _cut(r: Resolution) -> None:
    named, r.unknown, lists, notes = cut_columns(r.named, r.unknown, r.model, r.n)
    r.unread += lists
    r.keep(named, notes)


def _heads(r: Resolution) -> None:
    r.keep(*place_heads(r.named, r.model, r.n, r.dump.steps, r.truth))


def _rotation(r: Resolution) -> None:
    r.keep(*after_rotation(r.named, r.model, r.n, r.truth))


def _finite(r: Resolution) -> None:
    r.named, r.broken = up_to_first(r.named, r.model.graph, r.dump.steps)


def _states(r: Resolution) -> None:
    named, states = take_states(r.named, r.model.graph, r.dump.steps)
    r.states, notes = lay_states(states, r.model, r.dump, r.truth)
    r.keep(named, notes)


def _token_lists(r: Resolution) -> None:
    r.keep(*split_by_token(r.named, r.model, r.n, r.truth))


def _statistic_lists(r: Resolution) -> None:
    before = {o.where for o in r.unread}
    named, r.unread, notes = read_statistic_lists(r.named, r.unread, r.model, r.n, r.truth)
    r.explained |= before - {o.where for o in r.unread}
    r.keep(named, notes)


def _led_lists(r: Resolution) -> None:
    named, r.unread, notes = split_led_lists(r.named, r.unread, r.model, r.n, r.truth)
    r.keep(named, notes)


def _values(r: Resolution) -> None:
    named, explained, notes = decide_by_values(r.named, r.unread, r.model, r.n, r.truth)
    r.explained |= explained
    r.keep(named, notes)


def _something(r: Resolution) -> None:
    dump = r.dump
    lines = zip(dump.unexplained_at, dump.unexplained, strict=True)
    r.dump = replace(dump, unexplained=tuple(line for where, line in lines if where not in r.explained))
    if dump.log and not r.named and not r.states and not r.broken:
        raise nothing_read_error(r.dump)


def _unknown(r: Resolution) -> None:
    found, left, notes = match_by_value(r.unknown, r.model, r.dump, r.truth, {o.name for o in r.named})
    r.keep([*r.named, *found], notes)
    found, r.unknown, notes = match_by_words(left, r.model, r.n, {o.name for o in r.named})
    r.keep([*r.named, *found], notes)


def _axes(r: Resolution) -> None:
    r.keep(*lay_all(r.named, r.model, r.dump, r.truth))


def _head_order(r: Resolution) -> None:
    r.keep(*order_heads(r.named, r.model, r.truth))


def _refuted(r: Resolution) -> None:
    r.keep(*leave_refuted_arrays(r.named, r.model, r.truth, r.n))


def _choices(r: Resolution) -> None:
    r.keep(*split_both_ends(r.named, r.model, r.truth, r.n))
    before = len(r.named)
    for choose in (leave_refuted, one_print_of_each, partial(leave_refuted, singly=True)):
        r.keep(*choose(r.named, r.model, r.truth, r.n))
    r.set_aside = 1 - len(r.named) / before if before else 0.0


def _steps(r: Resolution) -> None:
    r.named = join_steps(r.named, r.model, r.dump)


class Pass(NamedTuple):
    run: Callable[[Resolution], None]
    does: str
    logs_only: bool = False


PASSES = (
    Pass(_sides, "one engine's values, of a log that shows several"),
    Pass(_layers, "layers are counted from 0"),
    Pass(_logits, "lists as long as the vocabulary are logits", logs_only=True),
    Pass(_names, "names become nodes of the graph"),
    Pass(_wide, "the only array as wide as the vocabulary is the logits"),
    Pass(_cut, "arrays with columns cut away become lists of first values"),
    Pass(_heads, "values of one attention head get their place in the row"),
    Pass(_rotation, "`q` and `k`: before or behind RoPE"),
    Pass(_finite, "nothing behind the first value that is not finite is judged"),
    Pass(_states, "recurrent states leave the other nodes, in the graph's layout"),
    Pass(_token_lists, "one statistic for each token becomes an observation a token", logs_only=True),
    Pass(_statistic_lists, "one statistic for each layer or token, without a node's name", logs_only=True),
    Pass(_led_lists, "statistics before the first values of a row, in one list", logs_only=True),
    Pass(_values, "values decide what the words leave open"),
    Pass(_something, "a log of which nothing was read is refused"),
    Pass(_unknown, "arrays with unknown names: by value, then by words"),
    Pass(_axes, "the graph's axes, whatever the layout"),
    Pass(_head_order, "queries and keys in GGUF's order of pairs"),
    Pass(_refuted, "arrays whose name is a guess that later arrays refute"),
    Pass(_choices, "of several prints of a node, those that later values confirm", logs_only=True),
    Pass(_steps, "the rows of all steps become one tensor"),
)


def _resolved(r: Resolution) -> Dump:
    order = {node.name: i for i, node in enumerate(r.model.graph)}
    asks = [_not_understood(line) for line in r.dump.unexplained[:3]]
    dump = replace(
        r.dump,
        observations=tuple(sorted(r.named, key=lambda o: order[o.name])),
        states=tuple(r.states),
        unmatched=tuple(dict.fromkeys(o.foreign for o in r.unknown)),
        notes=tuple(grouped_notes([*r.notes, *asks])),
        not_finite=r.broken or r.dump.not_finite,
        set_aside=r.set_aside,
    )
    return replace(dump, reading=tuple(reading_summary(dump, r.n))) if dump.log else dump


def _not_understood(line: str) -> str:
    """A line, and the pattern that reads it. Of a long line the beginning is shown, and no pattern."""
    if len(line) > _LONG_LINE:
        return f"not understood: {line[:_LONG_LINE]!r}…; --pattern tells what it holds"
    return f"not understood: {line!r}; --pattern {suggested_pattern(line)!r} would take it"


def _with_decode_steps(
    dump: Dump, model: Model, map: Mapping[str, str] | None, tokens: tuple[int, ...], side: str
) -> Dump:
    """A log of a prompt and of decode steps: the prompt is read alone, then each step is a row behind it."""
    steps = tuple(token for token, _ in dump.later)
    if not dump.observations and not dump.unread and (dump.tokens or tokens):
        return resolve(_steps_alone(dump, dump.tokens or tokens), model, map, tokens=tokens, side=side)
    prompt = tokens[: -len(steps)]
    if prompt and tokens == (*(dump.tokens or prompt), *steps):
        tokens = prompt  # the caller gave the whole sequence
    given = _given(dump, len(dump.tokens or tokens))
    first = resolve(replace(dump, later=(), given=given), model, map, tokens=tokens, side=side)
    n, graph = len(first.tokens), model.graph
    found = []
    for obs in first.observations:
        shape = obs.shape or (shape_of(graph, obs.name, n) if "S" in graph.shapes[obs.name] else None)
        found.append(replace(obs, rows=obs.rows or (0, n), shape=shape))
    fed, set_aside = [*first.tokens], [first.set_aside]
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
            resolved = resolve(step, model, map, side=side)
            found += resolved.observations
            set_aside.append(resolved.set_aside)
    order = {node.name: i for i, node in enumerate(graph)}
    found.sort(key=lambda obs: order[obs.name])
    done = replace(
        first, tokens=tuple(fed), positions=tuple(range(len(fed))), steps=(n, *(1 for _ in dump.later)),
        given=dump.given, observations=tuple(found), set_aside=sum(set_aside) / len(set_aside),
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
