"""Finds logits by their size: lists as long as the vocabulary, and indices that no other node has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from assay.models import Model
from assay.verify.dumps.observation import Observation


def logits_by_width(
    chosen: list[Observation], unread: Sequence[Observation], model: Model, n: int
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Lists without a name that are as long as the vocabulary are logits: of their row, of all rows, of the last."""
    chosen, moved = _ids_not_elements(chosen, model, n)
    long = [o for o in unread if o.kind == "first" and len(o.data) == model.hparams.n_vocab]
    if not long or not {o.rows for o in long} <= {None, *((i, i + 1) for i in range(n))}:
        return chosen, list(unread), moved
    whole = len(long) == n and all(o.rows is None for o in long)
    for i, obs in enumerate(long):
        rows = obs.rows or ((i, i + 1) if whole else (n - 1, n))
        chosen = [*chosen, replace(obs, name="result_output", rows=rows)]
    note = f"result_output: {len(long)} lists without a name, as long as the vocabulary"
    return chosen, [o for o in unread if not any(o is other for other in long)], [*moved, note]


def lone_wide_array(
    named: list[Observation], unknown: list[Observation], model: Model
) -> tuple[list[Observation], list[Observation], list[str]]:
    """The only array of an unknown name that is as wide as the vocabulary is the logits, if no other array is."""
    wide = [o for o in unknown if o.kind == "values" and o.array().shape[-1:] == (model.hparams.n_vocab,)]
    if len(wide) != 1 or any(o.name == "result_output" for o in named):
        return named, unknown, []
    found = replace(wide[0], name="result_output")
    note = f"{found.foreign or wide[0].name}: read as result_output, because it is as wide as the vocabulary"
    return [*named, found], [o for o in unknown if o is not wide[0]], [note]


def _ids_not_elements(chosen: list[Observation], model: Model, n: int) -> tuple[list[Observation], list[str]]:
    """Single values whose index lies outside their node, but inside the vocabulary, are logits of these ids."""
    graph, found = model.graph, list[Observation]()
    logits: dict[tuple[object, ...], dict[int, tuple[float, float]]] = {}
    first: dict[tuple[object, ...], Observation] = {}
    for obs in chosen:
        names = [name for name in (obs.name, *obs.others) if name in graph and "S" not in graph.shapes[name]]
        room = max((math.prod(int(d) for d in graph.shapes[name] if d != "T") for name in names), default=0)
        single = obs.kind in ("at", "top") and obs.shape is None and (obs.rows is None or obs.row is not None)
        most = max(i for i, _ in obs.data) if single and room else -1
        if not room <= most < model.hparams.n_vocab or not room:
            found.append(obs)
            continue
        key: tuple[object, ...] = (obs.rows or (n - 1, n), obs.side)
        first.setdefault(key, replace(obs, name="result_output", others=(), rows=obs.rows or (n - 1, n), vague=False))
        halves = obs.printed or (0.0,) * len(obs.data)
        for (i, value), half in zip(obs.data, halves, strict=True):
            logits.setdefault(key, {}).setdefault(i, (value, half))
    for place, pairs in logits.items():
        data, printed = tuple((i, v) for i, (v, _) in pairs.items()), tuple(half for _, half in pairs.values())
        found.append(replace(first[place], kind="at", data=data, printed=printed if all(printed) else ()))
    return found, ["result_output: single values with ids of the vocabulary"] if logits else []
