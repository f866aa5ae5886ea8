"""A dump in the model's names and layouts: translate, match, lay out, check that it fits.

Names are translated; what has no known name is matched by its values, arrays are brought into the graph's axes, and the
steps of a sequence are joined. What was assumed stands in `notes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.graph import Graph, Trait
from assay.models import Model
from assay.verify.dumps.finite import is_finite, up_to_first
from assay.verify.dumps.matching import layouts
from assay.verify.dumps.matching.ambiguities import settle
from assay.verify.dumps.matching.by_values import by_values, overruled
from assay.verify.dumps.matching.layer_numbers import numbered
from assay.verify.dumps.matching.reading_notes import folded, nothing_read, suggestion, understood
from assay.verify.dumps.naming.foreign_names import ignored, translate
from assay.verify.dumps.observation import Dump, Observation, inputs_of, rows_of, token_axis
from assay.verify.dumps.tracing import shape_of
from assay.verify.thresholds import COPY, MATCHED, RIVAL

Array = NDArray[Any]
MOST_VALUES = 1 << 28  # of one node: scores grow with the square of the tokens
SPARE_VALUES = 1 << 22  # that a dumped tensor may have beyond its node's: a cache's unused rows, printed too


class Truth:
    """The definition's values for these tokens, computed when first asked for."""

    def __init__(self, model: Model, tokens: Sequence[int], positions: Sequence[int]) -> None:
        self._graph, self._weights = model.graph, Weights(model.file, np.float32, budget=1 << 30)
        self._given = inputs_of(tokens, positions)
        self._known: dict[str, Array] = {}

    def __call__(self, names: Collection[str]) -> dict[str, Array]:
        missing = set(names) - self._known.keys()
        if missing:
            self._known |= interpret(self._graph, self._weights, self._given | self._known, missing)
        return {name: self._known[name] for name in names}


def resolve(
    dump: Dump, model: Model, map: Mapping[str, str] | None = None, *, tokens: Sequence[int] = (), side: str = ""
) -> Dump:
    """The dump in the model's names and layouts, checked against it."""
    dump = _check_tokens(dump, model, tuple(tokens))
    truth = Truth(model, dump.tokens, dump.positions)
    notes = list(dump.notes)
    chosen, note = _choose_side(dump, side)
    notes += note
    chosen, unread, note = numbered([*chosen], dump.unread, model.hparams.n_layer)
    notes += note
    named, unknown = _translate(chosen, model, map or {}, dump.source)
    named, broken = up_to_first(named, model.graph, dump.steps)
    named, told, note = told_by_values(named, unread, model, len(dump.tokens), truth)
    notes += note
    dump = replace(dump, aside=tuple(a for w, a in zip(dump.aside_at, dump.aside, strict=True) if w not in told))
    if dump.log and not named and not broken:
        raise nothing_read(dump)
    matched, left, note = _match_by_value(unknown, model, dump, truth, {o.name for o in named})
    notes += note
    laid: list[Observation] = []
    for obs in (*named, *matched):
        done, label = _lay(obs, model, dump, truth)
        if done is None:
            continue
        laid.append(done)
        if label:
            notes.append(f"{obs.name}: read as {label}")
    laid, note = _orders(laid, model, truth)
    notes += note
    joined = _join_steps(laid, model, dump)
    order = {node.name: i for i, node in enumerate(model.graph)}
    joined.sort(key=lambda o: order[o.name])
    unmatched = tuple(dict.fromkeys(o.foreign for o in left))
    notes += [f"not understood: {line!r}; --pattern {suggestion(line)!r} would take it" for line in dump.aside[:3]]
    notes = folded(notes)
    dump = replace(
        dump, observations=tuple(joined), unmatched=unmatched, notes=tuple(notes), not_finite=broken or dump.not_finite
    )
    return replace(dump, reading=tuple(understood(dump, len(dump.tokens)))) if dump.log else dump


def told_by_values(
    named: Sequence[Observation],
    unread: Sequence[Observation],
    model: Model,
    n: int,
    truth: Callable[[Collection[str]], dict[str, Array]],
) -> tuple[list[Observation], set[str], list[str]]:
    """What words left open, settled: nodes, then rows. And the lines that no word named and values did."""
    open_ = [o for o in named if o.vague and o.kind != "values"]
    clear = [o for o in named if not (o.vague and o.kind != "values")]
    done, notes = by_values([*open_, *unread], model, n, truth) if open_ or unread else ([], [])
    found, note = settle([*clear, *(o for o in done if o.name)], model, n, truth)
    found, more = overruled(found, model, n, truth)
    notes += more
    return found, {o.where for o in done[len(open_) :] if o.name}, notes + note


def _check_tokens(dump: Dump, model: Model, given: tuple[int, ...]) -> Dump:
    if given and dump.tokens and given != dump.tokens:
        at = next((i for i, (a, b) in enumerate(zip(given, dump.tokens, strict=False)) if a != b), -1)
        raise AssayError(
            f"{dump.source}: holds other tokens (found {list(dump.tokens)[:8]}…, expected {list(given)[:8]}…"
            f"{f', first differing at {at}' if at >= 0 else ', another number of them'}); compare runs of the same ids"
        )
    tokens = dump.tokens or given
    if not tokens:
        raise AssayError(f"{dump.source}: does not say which tokens were fed; give them with --tokens")
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
    positions = dump.positions or tuple(range(len(tokens)))
    return replace(dump, tokens=tokens, positions=positions, steps=dump.steps or (len(tokens),))


def _check_room(source: str, model: Model, n: int) -> None:
    """Before anything is computed: so many tokens fit the context, and their largest value fits memory."""
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
            named.append(replace(obs, name=found[0], others=found[1:]))
        elif not ignored(name, obs.op):
            unknown.append(obs)
    return named, unknown


def candidates(obs: Observation, model: Model) -> tuple[str, ...]:
    """The nodes of this model that the observation's words may mean."""
    last = str(model.hparams.n_layer - 1)
    for several in ((obs.name, *obs.others), obs.otherwise):
        names = (name.replace("-last", "-" + last) for name in several)
        if nodes := tuple(dict.fromkeys(f[0] for name in names if (f := translate(name, obs.op, model.graph)))):
            return nodes
    return ()


def _match_by_value(
    unknown: list[Observation], model: Model, dump: Dump, truth: Truth, named: Collection[str]
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Unknown names that carry whole values: the one node whose value it is, or a list of those it might be.

    Nodes that hold the same values in another shape, as kqv-0 and kqv_out-0 do, are one: the first that has the dumped
    axes and that nobody named stands for them.
    """
    graph, n = model.graph, len(dump.tokens)
    matched: list[Observation] = []
    left: list[Observation] = []
    notes: list[str] = []
    for obs in unknown:
        if obs.kind != "values" or obs.rows not in (None, (0, n)):
            left.append(obs)
            continue
        size = obs.array().size if obs.shape is None else math.prod(obs.shape)
        fits = [node.name for node in graph if node.op != "cache" and math.prod(shape_of(graph, node.name, n)) == size]
        if not fits:
            left.append(obs)
            continue
        array = obs.array().astype(np.float64)
        if not is_finite(array, "kq").all():
            left.append(obs)
            continue
        values = truth(fits)
        scored, plain = [], dict[str, bool]()
        for name in fits:
            reading = layouts.readings(graph, name, array, (0, n), n)
            if reading:
                best = layouts.nearest(reading, values[name], token_axis(graph, name))
                scored.append((_distance(best.array, values[name], token_axis(graph, name)), name))
                plain[name] = not best.label
        scored.sort(key=lambda pair: pair[0])
        same = [name for _, name in scored if _same_values(values[name], values[scored[0][1]])]
        rivals = [pair for pair in scored if pair[1] not in same]
        if scored and scored[0][0] < MATCHED and (not rivals or rivals[0][0] > RIVAL * scored[0][0]):
            taken = {*named, *(o.name for o in matched)}
            one = min(same, key=lambda name: (name in taken, not plain[name]))
            if one in named and scored[0][0] > COPY:  # of another run: the dump has the node under its name
                left.append(obs)
                notes.append(_evidence(obs, [(scored[0][0], one)], "not used; the dump itself names"))
                continue
            matched.append(replace(obs, name=one))
            notes.append(_evidence(obs, [(scored[0][0], one), *rivals], "taken for", [n for n in same if n != one]))
        else:
            left.append(obs)
            if scored and scored[0][0] < MATCHED:
                notes.append(_evidence(obs, scored, "not used: it might be"))
    return matched, left, notes


def _same_values(a: Array, b: Array) -> bool:
    """The same numbers in whatever shape."""
    return a is b or (a.size == b.size and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None)))


def _distance(array: Array, truth: Array, axis: int) -> float:
    """Mean over token rows of the nmse, so that one row of large values does not decide alone."""
    a, b = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (array, truth))
    return float(np.mean(np.sum((a - b) ** 2, axis=1) / (np.sum(b**2, axis=1) + 1e-30)))


def _evidence(obs: Observation, scored: list[tuple[float, str]], verb: str, same: Sequence[str] = ()) -> str:
    near = ", ".join(f"{name} (nmse {nmse:.1e})" for nmse, name in scored[: 1 if "taken" in verb else 3])
    rest = f"; next {scored[1][1]} (nmse {scored[1][0]:.1e})" if len(scored) > 1 and "taken" in verb else ""
    shared = f", whose values {' and '.join(same)} shares" if same else ""
    return f"{obs.foreign}: matched by value, {verb} {near}{shared}{rest}"


def _lay(obs: Observation, model: Model, dump: Dump, truth: Truth) -> tuple[Observation | None, str]:
    """The observation in the graph's axes, and how it was read if that is not plain; None if it means nothing."""
    graph, n = model.graph, len(dump.tokens)
    axis = token_axis(graph, obs.name)
    if obs.kind != "values":
        return _lay_part(obs, model, n, truth)
    rows = obs.rows or (0, n)
    shape = obs.shape
    plain = shape_of(graph, obs.name, n)
    if obs.rows is None and shape == plain:
        return replace(obs, data=partial(_as_computed, obs, graph)), ""
    small = shape is None or math.prod(shape) <= math.prod(plain) + SPARE_VALUES  # before it is read
    found = layouts.readings(graph, obs.name, obs.array(), rows, n) if small else []
    if not found:
        raise AssayError(
            f"{dump.source}: {obs.foreign}: shape {list(shape or obs.array().shape)} does not fit {obs.name} "
            f"(expected {[*plain]} for {n} tokens); is it a dump of another model, or of other tokens?"
        )
    best = found[0] if len(found) == 1 else layouts.nearest(found, truth([obs.name])[obs.name], axis)
    data = _as_computed(replace(obs, data=best.array), graph)
    return replace(obs, data=data, rows=best.rows, shape=best.array.shape), best.label


def _as_computed(obs: Observation, graph: Graph) -> Array:
    """Scores without what was masked before its time; the numbers of experts as whole numbers, also where they were
    written as floats."""
    value, node = obs.array(), graph[obs.name]
    if not node.has(Trait.INDICES):
        return np.where(np.isneginf(value), 0, value) if node.op == "kq" else value
    first = graph[node.inputs[0]] if node.op == "topk" else node
    count = int(graph.shapes[first.name][-1])
    wrong = value[~((value >= 0) & (value < count) & (value == np.rint(value)))]
    if wrong.size:
        raise AssayError(
            f"{obs.where or obs.foreign}: no expert has this number (found {wrong[0]:g}, expected 0 to {count - 1})"
        )
    return value.astype(np.int64)


def _without_padding(obs: Observation, n_keys: int) -> Observation | None:
    """Scores over the whole allocated cache: values at real keys are kept, statistics over unset ones mean nothing."""
    assert obs.shape is not None
    padded, shape = obs.shape[-1], (*obs.shape[:-1], n_keys)
    if obs.kind != "at":
        return None
    kept = [k for k, (i, _) in enumerate(obs.data) if i % padded < n_keys]
    data = tuple((obs.data[k][0] // padded * n_keys + obs.data[k][0] % padded, obs.data[k][1]) for k in kept)
    return replace(obs, data=data, shape=shape, printed=tuple(obs.printed[k] for k in kept)) if data else None


def _lay_part(obs: Observation, model: Model, n: int, truth: Truth) -> tuple[Observation | None, str]:
    """Partial evidence: check that it fits; where the row was not said, take the nearest of first, last and all."""
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
        obs = replace(obs, shape=whole)  # the whole tensor's shape beside one row of it
    if obs.shape is not None and math.prod(obs.shape) not in (math.prod(whole), math.prod(last)):
        raise AssayError(
            f"{obs.where}: shape {list(obs.shape)} does not fit {obs.name} "
            f"(expected {list(whole)}); is it a dump of another model, or of other tokens?"
        )
    short = obs.shape is not None and math.prod(obs.shape) < math.prod(whole)
    if short or (obs.kind == "top" and stop - start > 1):
        obs = replace(obs, rows=(stop - 1, stop))
    if obs.kind in ("at", "top"):
        room = math.prod(last if obs.row is not None else whole)
        high = max(i for i, _ in obs.data)
        if high >= room:
            raise AssayError(f"{obs.where}: {obs.foreign}: index {high} is outside the {room} values described")
    if obs.shape is not None:
        obs = replace(obs, shape=last if obs.row is not None and symbolic[0] != "S" else whole)
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
    """Where every step gave its rows of a node, they are one tensor."""
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
        whole = np.zeros(shape_of(graph, name, n), np.float64)
        for obs in many:
            data = obs.array()
            rows_of(whole, token_axis(graph, name), obs.rows)[tuple(slice(0, k) for k in data.shape)] = data
        out.append(replace(many[0], data=whole, rows=None, shape=whole.shape))
    return out
