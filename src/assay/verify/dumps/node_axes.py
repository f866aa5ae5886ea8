"""Observations in the axes of the graph: layouts are recognised, padding is cut, heads are ordered, steps are joined.

Touch this module when a dump is read at the right node, but with its rows, heads or axes in the wrong order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.graph import Graph, Trait
from assay.models import Model
from assay.verify.dumps.definition_values import Truth
from assay.verify.dumps.matching import layouts
from assay.verify.dumps.matching.state_layouts import nearest_state, state_readings, value_head_order
from assay.verify.dumps.observation import Dump, Observation, rows_of, token_axis
from assay.verify.dumps.tracing import shape_of
from assay.verify.dumps.unknown_names import SPARE_VALUES

Array = NDArray[Any]


class _OtherShape(AssayError):
    """An array whose shape is not its node's. Few of them are left out; many are a dump of another model."""


def lay_all(
    observations: Sequence[Observation], model: Model, dump: Dump, truth: Truth
) -> tuple[list[Observation], list[str]]:
    """The observations in the graph's axes, and notes on layouts that are not plain and on what is not used."""
    laid, notes = list[Observation](), list[str]()
    strange: list[tuple[Observation, AssayError]] = []
    for obs in observations:
        try:
            done, label = _lay(obs, model, dump, truth)
        except AssayError as error:
            if not (dump.log or isinstance(error, _OtherShape)):
                raise
            strange.append((obs, error))
            continue
        laid += [done] if done is not None else []
        notes += [f"{obs.name}: read as {label}"] if label else []
    if 2 * len(strange) > len(laid):
        raise strange[0][1]
    return laid, [*notes, *(_not_used(obs, error) for obs, error in strange)]


def _not_used(obs: Observation, error: AssayError) -> str:
    if isinstance(error, _OtherShape):
        return f"{obs.foreign}: not used; its shape {list(obs.shape or ())} is not {obs.name}'s"
    return f"not used: {error}"


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


def lay_states(
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


def order_heads(laid: list[Observation], model: Model, truth: Truth) -> tuple[list[Observation], list[str]]:
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


def join_steps(laid: list[Observation], model: Model, dump: Dump) -> list[Observation]:
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
