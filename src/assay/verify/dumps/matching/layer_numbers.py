"""The numbers of layers in a log: counted from 1, or not printed at all and told by the order of the lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from assay.graph import join, split
from assay.verify.dumps.observation import Observation


def numbered(
    observations: Sequence[Observation], unread: Sequence[Observation], n_layer: int
) -> tuple[list[Observation], list[Observation], list[str]]:
    """The observations, and those of unknown nodes, with layers counted from 0; and what was assumed."""
    notes: list[str] = []
    found, rest = list(observations), list(unread)
    if counted_from_one([*found, *rest], n_layer):
        found, rest = [_one_less(o) for o in found], [_one_less(o) for o in rest]
        notes.append("layers are counted from 1 there")
    found, note = _by_turn(_by_name(found, n_layer), n_layer)
    return found, rest, notes + note


def counted_from_one(observations: Iterable[Observation], n_layer: int) -> bool:
    """Whether the layers of a log run from 1 to n_layer."""
    layers = {
        int(layer)
        for o in observations
        if not o.unnumbered
        for layer in [o.layer if not o.name or _IN_PATH.search(o.name) else split(o.name)[1]]
        if layer is not None
    }
    return bool(layers) and max(layers) == n_layer and not {0, 1} <= layers  # "the first layer", "layer 2 of 3"


def _one_less(obs: Observation) -> Observation:
    def less(name: str) -> str:
        role, layer = split(name)
        if layer is None:
            return _IN_PATH.sub(lambda m: f".{int(m[1]) - 1}.", name, count=1)
        return join(role, max(layer - 1, 0))

    layer = None if obs.layer is None else max(obs.layer - 1, 0)
    others, otherwise = tuple(map(less, obs.others)), tuple(map(less, obs.otherwise))
    return replace(obs, name=less(obs.name), others=others, otherwise=otherwise, layer=layer)


_IN_PATH = re.compile(r"\.(\d{1,4})\.")  # model.layers.1.mlp
_LAST = re.compile(r"(?<!\d)(\d{1,4})(?=\D*$)")


def _by_name(observations: list[Observation], n_layer: int) -> list[Observation]:
    """A number in the name, `q_proj_0`, `q_proj_1`: of the layer, where the same name has all from 0 on."""
    groups: dict[tuple[str, str], dict[int, list[int]]] = {}
    for i, obs in enumerate(observations):
        if obs.unnumbered and len(obs.integers) == 1 and not _LAST.search(obs.template):
            groups.setdefault((obs.name, obs.template), {}).setdefault(obs.integers[0], []).append(i)
        elif obs.unnumbered and (m := _LAST.search(obs.template)):
            key = (obs.name, obs.template[: m.start()] + obs.template[m.end() :])
            groups.setdefault(key, {}).setdefault(int(m[1]), []).append(i)
    found = list(observations)
    for numbers in groups.values():
        if len(numbers) < 2 or sorted(numbers) != list(range(len(numbers))) or len(numbers) > n_layer:
            continue
        for layer, places in numbers.items():
            for i in places:
                found[i] = _of_layer(found[i], layer)
    return found


def _of_layer(obs: Observation, layer: int) -> Observation:
    names = [join(split(x)[0], layer) if split(x)[1] == 0 else x for x in (obs.name, *obs.others)]
    return replace(obs, name=names[0], others=tuple(names[1:]), layer=layer, unnumbered=False)


def _by_turn(observations: list[Observation], n_layer: int) -> tuple[list[Observation], list[str]]:
    """A line printed once for every layer without its number: the first is layer 0."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, obs in enumerate(observations):
        if obs.unnumbered:
            groups.setdefault((obs.name, obs.kind, obs.rows, obs.side, obs.template), []).append(i)
    found, notes = list(observations), list[str]()
    for (name, *_), places in groups.items():
        if len(places) != n_layer or n_layer < 2:
            continue
        for layer, i in enumerate(places):
            found[i] = _of_layer(found[i], layer)
        notes.append(f"{split(name)[0]}: printed {n_layer} times without a number, read as the layers in order")
    return found, notes
