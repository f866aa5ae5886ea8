"""From a file of somebody's making to observations of our nodes: read it, name it, lay it out, check that it fits.

`read_dump` understands the formats; `resolve` needs the model: it translates names, matches what has no known name by
its values, brings arrays into the graph's axes, and joins the steps of a sequence. What it assumed stands in `notes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.weights import Weights
from assay.errors import AssayError
from assay.graph import split
from assay.models import Model
from assay.verify.dumps import axes
from assay.verify.dumps.logs import is_eval_callback, read_eval_callback, read_log
from assay.verify.dumps.names import ignored, translate
from assay.verify.dumps.observation import Dump, Observation, inputs_of, measure, rows_of, token_axis
from assay.verify.dumps.readers import read_json_lines, read_npy_folder, read_npz, read_tensors
from assay.verify.dumps.remembered import fingerprint
from assay.verify.dumps.trace import shape_of

Array = NDArray[Any]
NEAR, CLEAR = 0.05, 10.0  # a name is matched by value below this nmse, if no other node comes within this factor


def read_dump(path: Path, patterns: Sequence[str] = ()) -> Dump:
    """The observations as they were written; the format is told by what is in the file."""
    try:
        if path.is_dir():
            return read_npy_folder(path)
        with open(path, "rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise AssayError(f"{path}: cannot be opened ({(error.strerror or str(error)).lower()})") from None
    if not head:
        raise AssayError(f"{path}: the file is empty")
    if head[:4] == b"PK\x03\x04":
        return read_npz(path)
    if path.suffix == ".safetensors" or head[8:10] in (b'{"', b"{}"):
        return read_tensors(path)
    if head.lstrip()[:1] == b"{" and b"assay_dump" in head.splitlines()[0]:
        return read_json_lines(path)
    if path.suffix in (".jsonl", ".npy"):
        raise AssayError(f"{path}: not an assay dump; its first line must be a header, or the folder of .npy be named")
    text = head.decode("utf-8", "replace")
    if is_eval_callback(text):
        return read_eval_callback(path)
    dump = read_log(path, patterns)
    if not dump.observations:
        raise AssayError(f"{path}: no format known here and no line that a pattern fits; see docs/dump-format.md")
    return dump


def load_dump(
    path: Path | str,
    model: Model | None = None,
    map: Mapping[str, str] | None = None,
    *,
    tokens: Sequence[int] = (),
    patterns: Sequence[str] = (),
    side: str = "",
) -> Dump:
    """A dump; with a model, its observations carry the model's names and layouts."""
    dump = read_dump(Path(path), patterns)
    return dump if model is None else resolve(dump, model, map, tokens=tokens, side=side)


def read_map(path: Path) -> dict[str, str]:
    """`--map`: a JSON object from foreign names to nodes."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AssayError(f"{path}: not a JSON map of names ({str(error).lower()})") from None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise AssayError(f"{path}: must be a JSON object from foreign names to node names")
    return found


class Truth:
    """The definition's values for these tokens, computed when first asked for."""

    def __init__(self, model: Model, tokens: Sequence[int], positions: Sequence[int]) -> None:
        self._model, self._given = model, inputs_of(tokens, positions)
        self._known: dict[str, Array] = {}

    def __call__(self, names: Collection[str]) -> dict[str, Array]:
        missing = set(names) - self._known.keys()
        if missing:
            weights = Weights(self._model.file, np.float32, budget=1 << 30)
            self._known |= interpret(self._model.graph, weights, self._given, missing)
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
    named, unknown = _translate(chosen, model, map or {}, dump.source)
    matched, left, note = _match_by_value(unknown, model, dump, truth)
    notes += note
    laid: list[Observation] = []
    seen: set[str] = set()
    for obs in (*named, *matched):
        done, label = _lay(obs, model, dump, truth)
        if done is None:
            continue
        laid.append(done)
        role = split(obs.name)[0]
        if label and role not in seen:
            seen.add(role)
            notes.append(f"{obs.name}: read as {label}")
    laid, note = _orders(laid, model, truth)
    notes += note
    joined = _join_steps(laid, model, dump)
    order = {node.name: i for i, node in enumerate(model.graph)}
    joined.sort(key=lambda o: order[o.name])
    unmatched = tuple(dict.fromkeys(o.foreign for o in left))
    return replace(dump, observations=tuple(joined), unmatched=unmatched, notes=tuple(notes))


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
    theirs = dump.provenance.get("model_sha256")
    if theirs and theirs != fingerprint(model.file):
        name = Path(dump.provenance.get("model", "unknown")).name
        raise AssayError(
            f"{dump.source}: is a trace of another model (found {name}, sha256 {theirs[:12]}…, "
            f"expected {model.file.path.name}, {fingerprint(model.file)[:12]}…)"
        )
    positions = dump.positions or tuple(range(len(tokens)))
    return replace(dump, tokens=tokens, positions=positions, steps=dump.steps or (len(tokens),))


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
        elif found := translate(name, obs.op, model.graph):
            named.append(replace(obs, name=found[0]))
        elif not ignored(name, obs.op):
            unknown.append(obs)
    return named, unknown


def _match_by_value(
    unknown: list[Observation], model: Model, dump: Dump, truth: Truth
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Unknown names that carry whole values: the one node whose value it is, or a list of those it might be."""
    graph, n = model.graph, len(dump.tokens)
    matched: list[Observation] = []
    left: list[Observation] = []
    notes: list[str] = []
    for obs in unknown:
        if obs.kind != "values" or obs.rows not in (None, (0, n)):
            left.append(obs)
            continue
        array = obs.array().astype(np.float64)
        fits = [
            node.name for node in graph
            if node.op != "cache" and math.prod(shape_of(graph, node.name, n)) == array.size
        ]  # fmt: skip
        values = truth(fits)
        scored = []
        for name in fits:
            reading = axes.readings(graph, name, array, (0, n), n)
            if reading:
                best = axes.nearest(reading, values[name], token_axis(graph, name))
                scored.append((_distance(best.array, values[name], token_axis(graph, name)), name))
        scored.sort(key=lambda pair: pair[0])
        if scored and scored[0][0] < NEAR and (len(scored) == 1 or scored[1][0] > CLEAR * scored[0][0]):
            matched.append(replace(obs, name=scored[0][1]))
            notes.append(_evidence(obs, scored, "taken for"))
        else:
            left.append(obs)
            if scored and scored[0][0] < NEAR:
                notes.append(_evidence(obs, scored, "not used: it might be"))
    return matched, left, notes


def _distance(array: Array, truth: Array, axis: int) -> float:
    """Mean over token rows of the nmse, so that one row of large values does not decide alone."""
    a, b = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (array, truth))
    return float(np.mean(np.sum((a - b) ** 2, axis=1) / (np.sum(b**2, axis=1) + 1e-30)))


def _evidence(obs: Observation, scored: list[tuple[float, str]], verb: str) -> str:
    near = ", ".join(f"{name} (nmse {nmse:.1e})" for nmse, name in scored[: 1 if "taken" in verb else 3])
    rest = f"; next {scored[1][1]} (nmse {scored[1][0]:.1e})" if len(scored) > 1 and "taken" in verb else ""
    return f"{obs.foreign}: matched by value, {verb} {near}{rest}"


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
        return replace(obs, data=partial(_unmasked, obs, graph[obs.name].op)), ""
    found = axes.readings(graph, obs.name, obs.array(), rows, n)
    if not found:
        raise AssayError(
            f"{dump.source}: {obs.foreign}: shape {list(obs.array().shape)} does not fit {obs.name} "
            f"(expected {[*plain]} for {n} tokens); is it a dump of another model, or of other tokens?"
        )
    best = found[0] if len(found) == 1 else axes.nearest(found, truth([obs.name])[obs.name], axis)
    data = np.where(np.isneginf(best.array), 0, best.array) if graph[obs.name].op == "kq" else best.array
    return replace(obs, data=data, rows=best.rows, shape=best.array.shape), best.label


def _unmasked(obs: Observation, op: str) -> Array:
    value = obs.array()
    return np.where(np.isneginf(value), 0, value) if op == "kq" else value


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
    if obs.rows is not None or obs.shape is not None or n == 1:
        return obs, ""
    axis, value = token_axis(graph, obs.name), truth([obs.name])[obs.name]
    options = [replace(obs, rows=rows) for rows in (None, (n - 1, n), (0, 1))]

    def distance(option: Observation) -> float:
        expected = measure(option, value, axis, model.hparams.n_embd_head)
        scale = np.sqrt(np.mean(rows_of(value, axis, option.rows) ** 2)) + 1e-30
        return float(np.sum(np.abs(option.target() - expected)) / scale)

    best = min(options, key=distance)
    label = {None: "", (n - 1, n): "the last token's row", (0, 1): "the first token's row"}[best.rows]
    return best, label


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
        if axes.is_hf(first, truth([usable[0].name]), graph, width):
            ids = {id(o) for o in mine}
            laid = [axes.reorder(o, width) if id(o) in ids else o for o in laid]
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
