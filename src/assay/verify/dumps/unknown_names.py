"""Which node an array is whose name says nothing: by its values first, then by the words of its name.

A name with the number of a layer is matched once: arrays of the same name and another number are the same node of other
layers, even where a fault makes their values match nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Trait, join, split
from assay.models import Model
from assay.verify.dumps.finite import is_finite
from assay.verify.dumps.matching import layouts
from assay.verify.dumps.naming.phrases import meaning
from assay.verify.dumps.observation import Dump, Observation, from_hf, rows_of, token_axis
from assay.verify.dumps.tracing import shape_of
from assay.verify.thresholds import COPY, MATCHED, RIVAL

Array = NDArray[Any]
Values = Callable[[Collection[str]], dict[str, Array]]  # the definition's, by name of the node
SPARE_VALUES = 1 << 22  # a dumped tensor may exceed its node by this: unused rows of a cache
TURNED = 1e-3  # error of a query or key from which on it is another value than the product
LENGTHS = 1e4  # and the lengths of its heads must be so much nearer: it was turned, if wrongly
MOST_TRIED = 2  # layers of one template of names whose values are compared before the words decide
# What a word for a node may also mean, where an architecture has a norm, a scale or experts behind it.
ALSO = {
    "embd": ("inp_scaled",), "ffn_inp": ("sa_out",), "Qcur": ("Qcur_scaled",),
    "attn_out": (
        "kda_out", "linear_attn_out", "mamba_out", "shortconv_out", "time_mix_out", "mla_out", "attn_post_norm",
    ),
    "ffn_out": ("ffn_moe_out", "ffn_post_norm"),
}  # fmt: skip


def match_by_value(
    unknown: list[Observation], model: Model, dump: Dump, truth: Values, named: Collection[str]
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Match unknown names that carry whole values: the one node with these values, or a list of candidates.

    Nodes with the same values in another shape, such as kqv-0 and kqv_out-0, count as one. The first of them that has
    the dumped axes and that the dump does not name itself stands for all.
    """
    matched: list[Observation] = []
    left: list[Observation] = []
    notes: list[str] = []
    roles: dict[str, tuple[str, int, str]] = {}  # by template: the role, the shift of its layer, the evidence
    tried: dict[str, int] = {}
    n = len(dump.tokens)
    for template, number, obs in sorted(((*_numbered(o.foreign), o) for o in unknown), key=lambda row: row[1]):
        taken = {*named, *(o.name for o in matched)}
        if template in roles:
            role, shift, evidence = roles[template]
            name = join(role, number + shift)
            fits = (
                name in model.graph and name not in taken and math.prod(obs.shape or ()) in _sizes(model.graph, name, n)
            )
            if fits:
                matched.append(replace(obs, name=name))
                notes.append(f"{obs.foreign}: {evidence}")
                continue
        if tried.get(template, 0) >= MOST_TRIED:
            left.append(obs)
            continue
        tried[template] = tried.get(template, 0) + (number >= 0)
        scored, plain, same = _score_nodes(obs, model, dump, truth, number)
        rivals = [pair for pair in scored if pair[1] not in same]
        if scored and scored[0][0] < MATCHED and (not rivals or rivals[0][0] > RIVAL * scored[0][0]):
            one = min(same, key=lambda name: (name in taken, not plain[name]))
            if one in named and scored[0][0] > COPY:  # not the same run: the dump has this node under its own name
                left.append(obs)
                notes.append(_evidence(obs, [(scored[0][0], one)], "not used; the dump itself names"))
                continue
            matched.append(replace(obs, name=one))
            notes.append(_evidence(obs, [(scored[0][0], one), *rivals], "taken for", [n for n in same if n != one]))
            role, layer = split(one)
            if number >= 0 and layer is not None:
                roles[template] = role, layer - number, notes[-1].removeprefix(f"{obs.foreign}: ")
        else:
            left.append(obs)
            if scored and scored[0][0] < MATCHED:
                notes.append(_evidence(obs, scored, "not used: it might be"))
    return matched, left, notes


def _numbered(name: str) -> tuple[str, int]:
    """A name with `#` for its first number, and that number; -1 if it has none."""
    m = re.search(r"\d{1,4}", name)
    return (name, -1) if m is None else (f"{name[: m.start()]}#{name[m.end() :]}", int(m[0]))


def after_rotation(
    named: list[Observation], model: Model, n: int, truth: Values
) -> tuple[list[Observation], list[str]]:
    """Arrays that are called `q` or `k` alone: the product, or what RoPE made of it. Layer 0 decides for all."""
    notes: list[str] = []
    for letter, words in (("Q", "q|query|queries"), ("K", "k|key|keys")):
        end = re.compile(rf"(?:.*[^a-zA-Z])?(?:{words})(?:[-_.]?\d{{1,4}})?", re.IGNORECASE)
        mine = [
            o
            for o in named
            if o.kind == "values" and split(o.name)[0] == f"{letter}cur_proj" and end.fullmatch(o.foreign)
        ]
        mine = [o for o in mine if join(f"{letter}cur", split(o.name)[1]) in model.graph]  # others are not rotated
        turned = {o.name: join(f"{letter}cur", split(o.name)[1]) for o in mine}
        taken = {o.name for o in named}
        if not mine or any(name in taken for name in turned.values()):
            continue
        first = mine[0]
        far = [_nearest_order(first, name, model, n, truth) for name in (first.name, turned[first.name])]
        turns = far[0] > TURNED and _length_error(first, model, n, truth) * LENGTHS < far[0]
        if far[1] * RIVAL < far[0] or turns:
            ids = {id(o) for o in mine}
            named = [replace(o, name=turned[o.name]) if id(o) in ids else o for o in named]
            why = "whose heads have its lengths" if turns else f"whose values are nearer than {first.name}'s"
            notes.append(f"{first.foreign}: read as {turned[first.name]}, {why}")
    return named, notes


def _length_error(obs: Observation, model: Model, n: int, truth: Values) -> float:
    """The error of the lengths of the heads, which no rotation changes, not even a wrong one."""
    width, name = model.hparams.n_embd_head, obs.name
    if obs.rows not in (None, (0, n)) or math.prod(shape_of(model.graph, name, 1)) % width:
        return math.inf
    wanted = np.linalg.norm(truth([name])[name].reshape(n, -1, width).astype(np.float64), axis=-1)
    found = layouts.readings(model.graph, name, obs.array(), obs.rows or (0, n), n)
    errors = [
        float(np.sum((np.linalg.norm(reading.array.reshape(n, -1, width), axis=-1) - wanted) ** 2) / np.sum(wanted**2))
        for reading in found
        if reading.array.size == wanted.size * width
    ]
    return min(errors, default=math.inf)


def _nearest_order(obs: Observation, name: str, model: Model, n: int, truth: Values) -> float:
    """The distance to a node, in the nearer order of the heads' elements."""
    small = obs.shape is None or math.prod(obs.shape) <= math.prod(shape_of(model.graph, name, n)) + SPARE_VALUES
    found = layouts.readings(model.graph, name, obs.array(), obs.rows or (0, n), n) if small else []
    value, axis, width = truth([name])[name], token_axis(model.graph, name), model.hparams.n_embd_head
    far = [
        _distance(order, rows_of(value, axis, reading.rows), axis)
        for reading in found
        for order in (
            reading.array,
            from_hf(reading.array.reshape(len(reading.array), -1), width).reshape(reading.array.shape),
        )
        if order.shape == rows_of(value, axis, reading.rows).shape
    ]
    return min(far, default=math.inf)


def match_by_words(
    left: list[Observation], model: Model, n: int, taken: set[str]
) -> tuple[list[Observation], list[Observation], list[str]]:
    """Arrays whose values match no node, because a fault is before them: the words of their names, if the size fits."""
    found, still, notes = [], list[Observation](), list[str]()
    for obs in left:
        said = meaning(re.split(r"[^\w]+", obs.foreign), generic=False) if obs.kind == "values" and obs.shape else None
        layer = "" if said is None or said.layer is None else str(said.layer)
        names = [] if said is None else [node + layer if node.endswith("-") else node for node in said.nodes]
        names += [join(role, number) for name in names for role, number in same_role(name)]
        size = math.prod(obs.shape or ())
        fits = [
            name for name in names if name in model.graph and name not in taken and size in _sizes(model.graph, name, n)
        ]
        if fits:
            taken.add(fits[0])
            found.append(replace(obs, name=fits[0]))
            notes.append(f"{obs.foreign}: taken for {fits[0]} by its words; its values match no node")
        else:
            still.append(obs)
    return found, still, notes


def _sizes(graph: Graph, name: str, n: int) -> set[int]:
    """Values of all rows, and of the last one alone."""
    return {math.prod(shape_of(graph, name, rows)) for rows in (n, 1)}


def _score_nodes(
    obs: Observation, model: Model, dump: Dump, truth: Values, number: int = -1
) -> tuple[list[tuple[float, str]], dict[str, bool], list[str]]:
    """Nodes of the array's size by distance; whether each needs no other layout; the nodes that equal the nearest.

    With the number of a layer, only the nodes around that layer are asked, so that those behind it are not computed.
    Of several steps the first one is compared: a mistake in decode must not hide which node it is in.
    """
    graph, n = model.graph, len(dump.tokens)
    first = dump.steps[0] if len(dump.steps) > 1 and dump.steps[0] > 1 else n
    if obs.kind != "values" or obs.rows not in (None, (0, n)):
        return [], {}, []
    size = obs.array().size if obs.shape is None else math.prod(obs.shape)
    computed = [node.name for node in graph if not node.has(Trait.CACHES | Trait.SHOWS_STATE)]
    if 0 <= number < model.hparams.n_layer:
        computed = [name for name in computed if _near_layer(name, number)]
    fits = [name for name in computed if math.prod(shape_of(graph, name, n)) == size]
    array = obs.array().astype(np.float64) if fits else np.zeros(0)
    if not fits or not is_finite(array, maskable=True).all():
        return [], {}, []
    values = truth(fits)
    scored, plain = list[tuple[float, str]](), dict[str, bool]()
    for name in fits:
        reading = layouts.readings(graph, name, array, (0, n), n)
        if reading:
            best = layouts.nearest(reading, values[name], token_axis(graph, name))
            scored.append((_distance(best.array, values[name], token_axis(graph, name), first), name))
            plain[name] = not best.label
    scored.sort(key=lambda pair: pair[0])
    return scored, plain, [name for _, name in scored if _same_values(values[name], values[scored[0][1]])]


def _near_layer(name: str, number: int) -> bool:
    layer = split(name)[1]
    return not name.startswith("result_") if layer is None else abs(layer - number) <= 1


def _same_values(a: Array, b: Array) -> bool:
    """Whether both hold the same numbers, in any shape."""
    return a is b or (a.size == b.size and np.array_equal(np.sort(a, axis=None), np.sort(b, axis=None)))


def _distance(array: Array, truth: Array, axis: int, rows: int | None = None) -> float:
    """Mean over the first token rows of the nmse, so that one row of large values does not decide alone."""
    a, b = (np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)[:rows] for x in (array, truth))
    return float(np.mean(np.sum((a - b) ** 2, axis=1) / (np.sum(b**2, axis=1) + 1e-30)))


def _evidence(obs: Observation, scored: list[tuple[float, str]], verb: str, same: Sequence[str] = ()) -> str:
    near = ", ".join(f"{name} (nmse {nmse:.1e})" for nmse, name in scored[: 1 if "taken" in verb else 3])
    rest = f"; next {scored[1][1]} (nmse {scored[1][0]:.1e})" if len(scored) > 1 and "taken" in verb else ""
    shared = f", whose values {' and '.join(same)} shares" if same else ""
    return f"{obs.foreign}: matched by value, {verb} {near}{shared}{rest}"


def same_role(name: str) -> list[tuple[str, int | None]]:
    role, layer = split(name)
    return [(other, layer) for other in ALSO.get(role, ())]
