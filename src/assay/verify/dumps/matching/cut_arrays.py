"""Arrays that hold the first columns of a node's rows: [10, 16] where every node is 192 or wider.

They become lists of first values, one for each token, so that they are compared like printed lists. A name that says
nothing is matched by the values of all layers (`statement_nodes.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.graph import Trait, split
from assay.models import Model
from assay.verify.dumps.naming.phrases import meaning
from assay.verify.dumps.observation import Observation
from assay.verify.dumps.tracing import shape_of

_LEAST = 3  # columns
_MOST_ROWS = 4096
_FIRST_NUMBER = re.compile(r"(?<![A-Za-z]_)(\d{1,4})")


def cut_columns(
    named: Sequence[Observation], unknown: Sequence[Observation], model: Model, n: int
) -> tuple[list[Observation], list[Observation], list[Observation], list[str]]:
    """Both kinds without such arrays, those with a name as lists; lists without a name; and notes."""
    kept, left, lists, nameless = list[Observation](), list[Observation](), list[Observation](), list[Observation]()
    notes = []
    for obs, known in (*((o, True) for o in named), *((o, False) for o in unknown)):
        name = obs.name if known else _end_of_the_model(obs, model)
        if not _is_cut(obs, name, model, n):
            (kept if known else left).append(obs)
            continue
        (lists if name else nameless).extend(_rows(obs, name, n))
        notes.append(f"{obs.foreign}: read as the first columns of its rows")
    return [*kept, *lists], left, nameless, notes


def _end_of_the_model(obs: Observation, model: Model) -> str:
    """The logits or the final norm, if the words of a name mean one of these: both are behind every fault."""
    nodes = meaning(re.split(r"[^\w]+", obs.foreign), generic=False).nodes
    return next((node for node in nodes[:1] if node in ("result_output", "result_norm") and node in model.graph), "")


def _is_cut(obs: Observation, name: str, model: Model, n: int) -> bool:
    """Whether the array has a row for each token, or one row, and fewer columns than its node, or than any node."""
    shape: tuple[int, ...] = obs.shape or ()
    if obs.kind != "values" or obs.rows is not None or not 1 <= len(shape) <= 2 or n > _MOST_ROWS:
        return False
    columns = shape[-1]
    if columns < _LEAST or math.prod(shape[:-1]) not in (n, 1) or (len(shape) == 1 and name == ""):
        return False
    graph = model.graph
    if name:
        wide = not graph[name].has(Trait.INDICES | Trait.CACHES | Trait.SHOWS_STATE) and "S" not in graph.shapes[name]
        few = 2 * columns <= shape_of(graph, name, 1)[-1]  # nearly all columns are a wrong shape
        other = columns in {n, *(shape_of(graph, node.name, 1)[-1] for node in graph)}  # a whole row of another node
        return wide and graph.shapes[name][0] == "T" and few and not other
    sizes = {math.prod(shape_of(graph, node.name, rows)) for node in graph for rows in (1, n)}
    return math.prod(shape) not in sizes


def _rows(obs: Observation, name: str, n: int) -> list[Observation]:
    """A list of first values for each row."""
    shape: tuple[int, ...] = obs.shape or (1,)
    array = np.asarray(obs.array(), np.float64).reshape(-1, shape[-1])
    m = None if name else _FIRST_NUMBER.search(obs.foreign)
    template = obs.foreign if m is None else f"{obs.foreign[: m.start()]}#{obs.foreign[m.end() :]}"
    layer = split(name)[1] if name else None if m is None else int(m[1])
    first = n - len(array)
    return [
        replace(
            obs, name=name, kind="first", data=tuple(map(float, row)), rows=(first + i, first + i + 1), shape=None,
            template=template, layer=layer, others=(), alternatives=(), where=obs.where or obs.foreign,
        )
        for i, row in enumerate(array)
    ]  # fmt: skip
