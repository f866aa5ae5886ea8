"""Finds the node of each print statement by all of its values together: words propose, values decide.

A print statement writes one node in every layer. Its lines in the first printed layers are compared with every node
that has rows: each value that agrees gives as many bits as digits agree. So a statement is recognised although the
statistics over all tokens are off while the first values are right, as where a fault is in the last elements.

A statement without a name is read as the node with most bits, if no other node has nearly as many.

A statement whose words name node A is read as node B, if its values are B's, not A's, and one of these holds:

    B is computed from A: no fault gives A the values of a later node, so the print stands behind B
    the words are printed several times in a layer, so that they cannot mean A each time
    A with the values of B would not give the later prints that are computed from A

The last separates a misread name from a step that was left out. Such a step gives A the values of its input, and shows
in the nodes that are computed from A.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Trait, join, split
from assay.models import Model
from assay.verify.dumps.matching.confirmed_later import Definition
from assay.verify.dumps.naming.phrases import meaning
from assay.verify.dumps.observation import STATISTICS, Observation, measure, rows_of, token_axis

Array = NDArray[Any]
Rows = tuple[int, int] | None
Statement = tuple[str, str, str, int]  # words, role that they name, engine, which one of the layer
_LAYERS = 3  # printed layers that are compared: later ones take seconds to compute in a large model
_STATEMENTS = 128
_NEAR = 0.03  # of a value's scale: a larger error is no agreement
_FINEST = 1e-6  # of a value's scale: agreement beyond it counts no more
_ENOUGH = 18.0  # bits that no node has by chance, over all nodes and rows
_BY_CHANCE = 0.15  # bits a value of a list by which the nearest of all nodes agrees without being the one
_OTHERS = 4  # statements, all of them wrong, before the first one is taken for the embedding
_CLEAR = 12.0  # bits by which the best node is ahead of every other
_OUTPUT = {"out", "output", "outputs", "hidden", "resid", "residual", "stream", "after", "end", "result"}
_VALUES = "whose values they have"
# A number that may be the row's; behind these words it belongs to the name of a node
_ANY_NUMBER = re.compile(r"(?<!\bnorm )(?<!\bln )(?<!\bfc )(?<!\bw )(?<!\d)\d{1,5}(?!\d)")
_NUMBER = re.compile(r": line (\d{1,9})$")
# Nodes in the order of what people print, for nodes with the same values.
_USUAL = ("Vcur", "kqv_out", "attn_out", "ffn_out", "l_out", "ffn_inp", "attn_norm", "ffn_norm", "Qcur", "Kcur")


@dataclass
class _Lines:
    """The observations of a statement, by layer; -1 where it has none."""

    by_layer: dict[int, list[Observation]]

    @property
    def all(self) -> Iterator[Observation]:
        for many in self.by_layer.values():
            yield from many


def assign_nodes(
    named: Sequence[Observation],
    unread: Sequence[Observation],
    model: Model,
    n: int,
    truth: Definition,
    *,
    complete: bool = True,
) -> tuple[list[Observation], set[str], list[str]]:
    """The observations with the nodes of their statements; the places of lines that had no name; notes.

    `complete`: these are all lines of the log, so that the first one may be said to stand before the layers.
    """
    statements = _statements([*named, *(o for o in unread if o.kind != "values")])
    layers = sorted({at for lines in statements.values() for at in lines.by_layer if at >= 0})[:_LAYERS]
    roles = _Nodes(model, n, truth, layers)
    bits = {key: roles.bits(lines, named=bool(key[1])) for key, lines in statements.items()}
    changed: dict[int, Observation] = {}
    places: set[str] = set()
    notes: list[str] = []
    before = _before_the_layers(statements, bits) if unread and complete else None
    for key, lines in statements.items():
        role = _role_of(key, lines, bits, statements, roles) or (
            "embd" if key == before and roles.knows("embd") else ""
        )
        if not role:
            continue
        for obs in lines.all:
            layer = _layer(obs)
            name = join(role, layer if roles.has_layers(role) else None)
            if name not in model.graph:
                continue
            rows = obs.rows if key[1] else _usual_rows(obs, named) if key == before else roles.rows(role, lines, obs)
            changed[id(obs)] = replace(
                obs, name=name, foreign=obs.foreign if obs.name else name, others=(), rows=rows, vague=False,
                unnumbered=False, possible_row=None,
            )  # fmt: skip
            places |= set() if key[1] else {obs.where}
        said = f", not {key[1]}" if key[1] else ""
        why = "the only one before the layers; no line of the layers is right" if key == before else f"{_VALUES}{said}"
        notes.append(f"lines like {key[0]!r}: read as {role}, {why}")
    found = [changed.get(id(o), o) for o in named]
    return [*found, *(changed[id(o)] for o in unread if id(o) in changed)], places, notes


def as_in_prompt(
    seen: Sequence[Observation], printed: Sequence[Observation], read: Sequence[Observation]
) -> list[Observation]:
    """Values of a decode step, at the nodes of the same statements in the prompt: `printed` was read as `read`.

    A print statement writes the same node in every step, and the values of a wrong step would match nothing.
    """
    nodes = {(o.where, o.kind, o.data): o.name for o in read if o.kind != "values"}
    numbered = {split(name)[0] for name in nodes.values() if split(name)[1] is not None}
    roles: dict[Statement, str] = {}
    for key, lines in _statements(printed).items():
        found = {split(name)[0] for o in lines.all if (name := nodes.get((o.where, o.kind, o.data)))}
        if len(found) == 1:
            roles[key] = found.pop()
    alike: dict[Statement, set[str]] = {}
    for key, role in roles.items():
        alike.setdefault(_any_numbers(key), set()).add(role)
    changed: dict[int, Observation] = {}
    for key, lines in _statements(seen).items():
        one = alike.get(_any_numbers(key), set())
        role = roles.get(key) or (next(iter(one)) if len(one) == 1 else "")
        for obs in lines.all if role else ():
            layer = obs.layer if (own := _layer(obs)) is None else own  # modules are named by their paths
            if (layer is not None) or role not in numbered:
                name = join(role, layer if role in numbered else None)
                changed[id(obs)] = replace(
                    obs, name=name, foreign=obs.foreign or name, others=(), vague=False, fallbacks=()
                )
    return [changed.get(id(o), o) for o in seen]


def _any_numbers(key: Statement) -> Statement:
    """The statement with `#` for all numbers of its words: lines of a matrix have rows, a line of one row has none."""
    return _ANY_NUMBER.sub("#", key[0]), *key[1:]


def _role_of(
    key: Statement,
    lines: _Lines,
    bits: dict[Statement, dict[str, float]],
    statements: dict[Statement, _Lines],
    roles: _Nodes,
) -> str:
    """The other role that the values of a statement have; empty where the words stand."""
    mine = bits[key]
    best = max(mine, key=lambda role: mine[role], default="")
    if not best or mine[best] < _ENOUGH:
        return ""
    same = [role for role in mine if roles.alike(role, best, mine)]
    if any(have > mine[best] - _CLEAR for role, have in mine.items() if role not in same):
        return ""
    best = min(same, key=roles.order)
    said = key[1]
    if not said:
        return best
    if said in same or mine.get(said, 0.0) > mine[best] - _ENOUGH or not roles.knows(said):
        return ""
    if any(other[1] in same and bits[other].get(best, 0.0) >= _ENOUGH for other in statements if other != key):
        return ""  # another statement prints that node
    if roles.leads_to(said, best) or any(o[:3] == key[:3] and o[3] != key[3] for o in statements):
        return best  # or words that are printed several times in a layer
    later = [(other, of) for other, of in statements.items() if other[1] and roles.leads_to(said, other[1])]
    if not later or not roles.leads_to(best, said):
        return ""
    return best if not any(roles.follows(said, best, other[1], of) for other, of in later) else ""


def _usual_rows(obs: Observation, named: Sequence[Observation]) -> Rows:
    """The rows that most named lines show, lists or statistics as the observation is."""
    if obs.rows is not None:
        return obs.rows
    many = [o.rows for o in named if (o.kind in STATISTICS) == (obs.kind in STATISTICS)]
    return max(set(many), key=many.count) if many else None


def _before_the_layers(
    statements: dict[Statement, _Lines], bits: dict[Statement, dict[str, float]]
) -> Statement | None:
    """The statement without a name that is printed once before all others, if the values of no other one are right.

    It is the embedding: a right engine's would have its values, or those of the layers would.
    """
    at: dict[Statement, int] = {}
    for key, lines in statements.items():
        places = [int(m[1]) for o in lines.all if (m := _NUMBER.search(o.where))]
        if not places or key[1].startswith("result_"):
            continue
        at[key] = min(places)
    first = min(at, key=lambda key: at[key], default=None)
    layered = sum(-1 not in statements[key].by_layer for key in at)
    if first is None or first[1] or {*statements[first].by_layer} != {-1} or layered < _OTHERS:
        return None
    lists = [o for o in statements[first].all if o.kind == "first"]
    if not lists or len({o.where for o in statements[first].all}) > 1:
        return None
    return first if not any(max(bits[key].values(), default=0.0) >= _ENOUGH for key in at) else None


def _statements(observations: Iterable[Observation]) -> dict[Statement, _Lines]:
    """The lines of each statement. Several lines of one layer are several statements, in the order of the log."""
    found: dict[Statement, _Lines] = {}
    at: dict[tuple[str, str, str, int, Rows], list[tuple[str, int]]] = {}
    columns: dict[tuple[str, str, str, str, Rows], int] = {}
    for obs in observations:
        if obs.kind == "values" or obs.head is not None or (obs.name and not obs.template):
            continue
        role = "" if obs.vague or not obs.name or _is_bare(obs) else split(obs.name)[0]
        layer = _layer(obs)
        number = -1 if layer is None else layer
        words = _ANY_NUMBER.sub("#", obs.template) if obs.rows is not None else obs.template
        words = _PHASE.sub("", words) or words
        seen = at.setdefault((words, role, obs.side, number, obs.rows), [])
        column = words, role, obs.where, obs.kind, obs.rows  # a line with two norms shows two nodes
        columns[column] = columns.get(column, -1) + 1
        if (obs.where, columns[column]) not in seen:
            seen.append((obs.where, columns[column]))
        key = words, role, obs.side, seen.index((obs.where, columns[column]))
        if key in found or len(found) < _STATEMENTS:
            found.setdefault(key, _Lines({})).by_layer.setdefault(number, []).append(obs)
    return found


# A word before a statement that says in which call it was printed, and no node: `prompt layer # q`, `step # layer # q`
_PHASE = re.compile(
    r"^(?:(?:phase|call|pass) )?(?:prompt|prefill|prefilling|step|decode|decoding|gen|generate|generation|generated)\b"
    r"(?: #)?(?: |$)"
)


def _is_bare(obs: Observation) -> bool:
    """Whether the words name only the layer or a variable, as `x`: the layer's output, unless the values say more."""
    return split(obs.name)[0] == "l_out" and not obs.others and _says_no_node(obs.template)


@lru_cache(maxsize=4096)
def _says_no_node(template: str) -> bool:
    words = template.replace("#", "0").split()
    said = meaning(words, generic=False)
    return bool(words) and not _OUTPUT & {*words} and (said.bare or not said.nodes)


def _layer(obs: Observation) -> int | None:
    return split(obs.name)[1] if obs.name else obs.layer


class _Nodes:
    """The definition's values of all nodes with rows, in some layers."""

    def __init__(self, model: Model, n: int, truth: Definition, layers: Sequence[int]) -> None:
        self._model, self._n, self._truth = model, n, truth
        self._layers = [at for at in layers if at < model.hparams.n_layer]
        graph = model.graph
        self._roles: dict[str, dict[int, str]] = {}  # role: layer: node
        for node in graph:
            role, layer = split(node.name)
            early = layer in self._layers if layer is not None else _is_early(graph, node.name)
            if early and has_rows(graph, node.name):
                self._roles.setdefault(role, {})[-1 if layer is None else layer] = node.name
        self._values: dict[str, Array] = {}
        self._places = {node.name: i for i, node in enumerate(graph)}

    def knows(self, role: str) -> bool:
        return role in self._roles

    def has_layers(self, role: str) -> bool:
        return -1 not in self._roles.get(role, {0: ""})

    def order(self, role: str) -> tuple[int, int]:
        usual = _USUAL.index(role) if role in _USUAL else len(_USUAL)
        return usual, min(self._places[name] for name in self._roles[role].values())

    def _value(self, name: str) -> Array:
        if name not in self._values:
            every = [x for at in self._roles.values() for x in at.values()]
            self._values |= self._truth(every)
        return self._values[name]

    def bits(self, lines: _Lines, named: bool) -> dict[str, float]:
        """For each role, the bits by which the values of the lines agree with its nodes."""
        found: dict[str, float] = {}
        for role in self._roles:
            total = self._total(role, lines, named)
            if total > 0:
                found[role] = total
        return found

    def _total(self, role: str, lines: _Lines, named: bool) -> float:
        total = 0.0
        for layer, many in lines.by_layer.items():
            name = self._roles[role].get(layer)
            if name is None:
                continue
            for several in _by_class(many):
                total += max(
                    sum(self._bits(replace(o, rows=rows), name) for o in several)
                    for rows in (_options(several[0], self._n) if not named else [several[0].rows])
                )
        return total

    def rows(self, role: str, lines: _Lines, obs: Observation) -> Rows:
        """The rows in which the lines of the observation's class agree best with the role."""
        options = _options(obs, self._n)
        if len(options) == 1:
            return options[0]

        def total(rows: Rows) -> float:
            return sum(
                self._bits(replace(o, rows=rows), name)
                for layer, many in lines.by_layer.items()
                if (name := self._roles[role].get(layer)) is not None
                for o in many
                if (o.kind in STATISTICS) == (obs.kind in STATISTICS)
            )

        return max(options, key=total)

    def _bits(self, obs: Observation, name: str) -> float:
        value, axis = self._value(name), token_axis(self._model.graph, name)
        return bits_of(obs, value, axis, self._model.hparams.n_embd_head)

    def alike(self, a: str, b: str, bits: dict[str, float]) -> bool:
        """Whether two roles hold the same values in the first layer compared, and agree with the lines alike."""
        if a == b or abs(bits[a] - bits[b]) > 1e-6:
            return a == b
        x, y = (self._value(next(iter(self._roles[role].values()))) for role in (a, b))
        return x.size == y.size and bool(np.array_equal(np.sort(x, axis=None), np.sort(y, axis=None)))

    def leads_to(self, a: str, b: str) -> bool:
        """Whether the second role is computed from the first within a layer, or in the layers behind it."""
        x, y = self._roles.get(a, {}), self._roles.get(b, {})
        return any(
            self._places[x[i]] < self._places[y[i]] and x[i] in self._model.graph.ancestors([y[i]])
            for i in x.keys() & y.keys()
        )

    def follows(self, said: str, best: str, later: str, lines: _Lines) -> bool:
        """Whether the lines of a later role are what it would be, if `said` had the values of `best`."""
        graph = self._model.graph
        for layer, many in lines.by_layer.items():
            names = [self._roles[role].get(layer, "") for role in (said, best, later)]
            if not all(names):
                continue
            a, b, c = names
            if self._value(a).shape != self._value(b).shape:
                return False
            value = self._truth.after(a, self._value(b), c)
            axis, width = token_axis(graph, c), self._model.hparams.n_embd_head
            return sum(bits_of(o, value, axis, width) for o in many) >= _ENOUGH
        return False


def bits_of(obs: Observation, value: Array, axis: int, width: int) -> float:
    """The bits by which the values agree with a node's: of each the binary digits that are right, beyond the first."""
    part = rows_of(value, axis, obs.rows)
    if not part.size:  # rows behind the tokens that are known
        return 0.0
    expected = measure(obs, value, axis, width).reshape(-1)
    target = obs.target().reshape(-1)
    if obs.shape is not None and math.prod(obs.shape) not in (part.size, value.size, value.size // value.shape[axis]):
        return 0.0
    if len(expected) != len(target) or not len(target) or not np.isfinite(target).all():
        return 0.0
    size = float(np.sqrt(np.mean(np.square(part, dtype=np.float64)))) + 1e-30
    if obs.kind in ("mean", "sum"):  # near zero by chance: their spread is that of a sum of so many values
        scale = size / part.size**0.5 if obs.kind == "mean" else size * part.size**0.5
        scale = max(scale, abs(float(expected[0])))
    elif obs.kind in STATISTICS:
        scale = abs(float(expected[0])) + 1e-30
    else:
        scale = float(np.sqrt(np.mean(np.square(expected, dtype=np.float64)))) + 1e-30
    half = np.asarray(obs.printed if len(obs.printed) == len(target) else (0.0,) * len(target), np.float64)
    error = np.maximum(np.maximum(np.abs(target - expected) - half, half), _FINEST * scale)
    bits = np.log2(np.maximum(_NEAR * scale / error, 1.0))
    if obs.kind not in STATISTICS and len(set(target)) < len(target):
        bits = np.minimum(bits, _surprise(target, half, part))
    by_chance = 0.0 if obs.kind in STATISTICS else _BY_CHANCE * len(target)
    return float(np.sum(bits)) - by_chance


def _surprise(target: Array, half: Array, part: Array) -> Array:
    """The most bits that a value counts: one that a list repeats may be frequent, as a clamp's limit or a zero is."""
    values, counts = np.unique(target, return_counts=True)
    most = np.full(len(target), np.inf)
    for value in values[counts > 1]:
        at = target == value
        often = np.count_nonzero(np.abs(part - value) <= half[at].max() + 1e-6 * abs(value))
        if often > 1:
            most[at] = math.log2(part.size / often)
    return most


def _by_class(observations: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Lists, and statistics: they often show different rows."""
    for of_statistics in (False, True):
        many = [o for o in observations if (o.kind in STATISTICS) == of_statistics]
        rows = {o.rows for o in many}
        for one in rows:
            yield [o for o in many if o.rows == one]


def _options(obs: Observation, n: int) -> list[Rows]:
    if obs.rows is not None:
        start = obs.rows[0] % n
        return [(start, start + 1)] if obs.rows[0] < 0 else [obs.rows]
    if n == 1:
        return [None]
    more = [(obs.possible_row % n, obs.possible_row % n + 1)] if obs.possible_row is not None else []
    return [None, (n - 1, n), (0, 1), *more]


def _is_early(graph: Graph, name: str) -> bool:
    """A node before the layers: the embedding, its scale, its norm."""
    return not any(split(other)[1] is not None for other in graph.ancestors([name]))


def has_rows(graph: Graph, name: str) -> bool:
    shape = graph.shapes[name]
    return "T" in shape and "S" not in shape and not graph[name].has(Trait.INDICES | Trait.CACHES | Trait.SHOWS_STATE)
