"""Observations: the facts that a dump states about the nodes of a run, and the dump that holds them.

An observation is a whole tensor, some of its rows, its first ten values, its rms, or its best five logits. `target`
gives the observed numbers. `measure` computes the same numbers from a node's whole value. Every comparison of a dump,
with the definition or with a hypothesis about a fault, compares `target` with `measure`.

A sequence fed in several steps (a prompt, then tokens one by one through the cache) is one dump: row t of a node
is the token at index t of the whole sequence. The step that computed it does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import INPUTS, Graph

Array = NDArray[Any]

STATISTICS: dict[str, Callable[[Array], float]] = {
    "rms": lambda x: float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))),
    "mean": lambda x: float(np.mean(x, dtype=np.float64)),
    "min": lambda x: float(np.min(x)),
    "max": lambda x: float(np.max(x)),
    "sum": lambda x: float(np.sum(x, dtype=np.float64)),
    "std": lambda x: float(np.std(x, dtype=np.float64)),
    "norm": lambda x: float(np.sqrt(np.sum(np.square(x, dtype=np.float64)))),
    "absmax": lambda x: float(np.max(np.abs(x))),
    "absmean": lambda x: float(np.mean(np.abs(x), dtype=np.float64)),
    "abssum": lambda x: float(np.sum(np.abs(x), dtype=np.float64)),
}
KINDS = ("values", "first", "last", "at", *STATISTICS, "top")


@dataclass(frozen=True)
class Observation:
    """One thing known about one node.

    `rows` is the half-open range of token rows it describes, None for all of them. `data` is
      values      an array in the graph's axis order, or a function that reads it
      first last  the values at the beginning or end of the described rows, flattened
      at top      pairs (index, value); the index counts within the described rows, flattened. `top` are the largest
      rms mean min max sum    one number
    `order` is "hf" where the index runs over Hugging Face's order of a rotary head (halves) instead of GGUF's (pairs).
    `printed` is half a unit of the last printed digit of each value; empty where nothing was rounded for print.
    """

    name: str
    kind: str
    data: Any
    rows: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None
    order: str = "gguf"
    printed: tuple[float, ...] = ()
    foreign: str = ""  # The name as the dump has it.
    op: str = ""  # ggml's operation, if the dump gives it.
    side: str = ""  # The engine, in a log that shows several.
    where: str = ""  # Line or member of the dump, for messages.
    others: tuple[str, ...] = ()  # Further nodes that the words may mean.
    possible_row: int | None = None  # A row it may describe: "token 3" is the fourth row, or the id 3.
    fallbacks: tuple[str, ...] = ()  # Nodes that the words mean, if `name` is unknown to the model.
    # Of a printed line: its words with `#` for whole numbers, those numbers, the layer it stands in.
    template: str = ""
    integers: tuple[int, ...] = ()
    layer: int | None = None
    vague: bool = False  # The text names the layer, but no node of it.
    alternatives: tuple[Observation, ...] = ()  # Of a printed line: the observations of its second reading.
    head: int | None = None  # Of a printed line: the attention head whose values it gives.
    outer: int | None = None  # Of an array with three axes: the first index, a head or a token; `rows` is the second.
    unnumbered: bool = False  # A node of a layer whose number is not printed.
    of_each_token: str = ""  # Of a printed list: the statistic of each token that its words or its heading say it is.

    @property
    def row(self) -> int | None:
        """The token row, where it describes exactly one."""
        return self.rows[0] if self.rows is not None and self.rows[1] - self.rows[0] == 1 else None

    def array(self) -> Array:
        """The tensor of a `values` observation; read now if it was not yet."""
        return np.asarray(self.data() if callable(self.data) else self.data)

    @property
    def summary(self) -> str:
        """One line of text: nodes, kind, values, and the row where it is known (`row? 3` where it may be that row)."""
        data = self.data if isinstance(self.data, tuple) else (self.data,)
        values = [f"{v[0]}:{v[1]:g}" if isinstance(v, tuple) else f"{v:g}" for v in data]
        row = [] if self.rows is None else [f"row {self.rows[0]}"]
        row += [] if self.outer is None else [f"of {self.outer}"]
        maybe = [f"row? {self.possible_row}"] if self.possible_row is not None and self.rows is None else []
        side = [f"by {self.side}"] if self.side else []
        numbers = [f"numbers {' '.join(map(str, self.integers))}"] if self.integers and self.layer is None else []
        nodes = "|".join((self.name or "?", *self.others))
        return " ".join([nodes, self.kind, *values, *row, *maybe, *side, *numbers])

    def target(self) -> Array:
        """The observed numbers, to be compared with `measure`."""
        if self.kind == "values":
            return self.array()
        if self.kind in ("at", "top"):
            return np.array([value for _, value in self.data], np.float64)
        return np.atleast_1d(np.asarray(self.data, np.float64))


def number_in_words(obs: Observation, at: int) -> str:
    """Name of a printed number: `the rms of row 3`, `value 1 of the first 2 of row 7`."""
    rows = obs.rows
    where = (
        "all rows" if rows is None else f"row {rows[0]}" if obs.row is not None else f"rows {rows[0]} to {rows[1] - 1}"
    )
    if obs.kind in ("at", "top"):
        return f"element {obs.data[at][0]} of {where}"
    if obs.kind in ("first", "last"):
        return f"value {at} of the {obs.kind} {len(obs.data)} of {where}"
    return f"the {obs.kind} of {where}"


@dataclass(frozen=True)
class NotFinite:
    """The first node, in the order of computation, whose dumped values are not all finite."""

    node: str
    what: str  # NaN, Inf or -Inf.
    count: int
    size: int
    at: tuple[int, ...]  # Index of the first one, in the dump's layout.
    row: int | None  # Its token row, if the layout gives one.
    left: int  # Observed nodes from there on; they are not judged.
    masked: int | None = None  # A row of earlier scores in which every key is masked.
    place: str = ""  # name of the first one, where it is no element of a tensor: `the rms of row 3`


@dataclass(frozen=True)
class Claims:
    """The kind of a text (`other_evidence.py`), and the sizes of the model that it states."""

    kind: str = ""  # A loader's log, a benchmark, …; empty for values.
    widths: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()  # Numbers of layers.
    vocabularies: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()  # Last axes of printed shapes.
    numbered: tuple[int, ...] = ()  # Indices of layers that lines name.


@dataclass(frozen=True, repr=False)
class Dump:
    """A run: the tokens, the steps in which they were fed, and the observations."""

    engine: str
    tokens: tuple[int, ...] = ()  # Of the whole sequence; empty if the dump has none.
    positions: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()  # tokens of each step: (5,) is a prefill, (3, 1, 1) a prefill and two decode steps
    observations: tuple[Observation, ...] = ()
    source: str = ""
    unmatched: tuple[str, ...] = ()  # Foreign names that denote no node of the model.
    notes: tuple[str, ...] = ()  # Assumptions of the reader: layouts, names matched by value.
    log: bool = False  # Read from printed text.
    unexplained: tuple[str, ...] = ()  # Lines with numbers that name no node.
    unexplained_at: tuple[str, ...] = ()  # Their places.
    unread: tuple[Observation, ...] = ()  # Their values, as observations without a node.
    reading: tuple[str, ...] = ()  # One line for each kind of node that was read.
    provenance: Mapping[str, str] = field(default_factory=dict)
    not_finite: NotFinite | None = None  # The first value that is not finite; later nodes are left out.
    states: tuple[Observation, ...] = ()  # Of recurrent layers; their rows count calls (`state_rows.py`).
    prompt: str = ""  # The text of the run, if a log quotes it.
    claims: Claims | None = None  # Of a printed text.
    fed: Mapping[int, int] = field(default_factory=dict)  # Of a log: ids that it gives beside positions.
    decoded: tuple[int, ...] = ()  # Of a log: ids behind the prompt, in order.
    later: tuple[tuple[int, tuple[Observation, ...]], ...] = ()  # Of a log: each decode step's token and what it shows.
    given: Mapping[str, Array] = field(default_factory=dict)  # Further inputs of the graph: the rows of pictures.
    set_aside: float = 0.0  # Of a log: the share of its prints that later values or other prints contradict.

    def __repr__(self) -> str:
        names = list(self.by_name)
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        left = f", {len(self.unmatched)} unmatched" if self.unmatched else ""
        return f"<Dump {self.source}: {len(self.tokens)} tokens, {len(self.observations)} observations ({shown}){left}>"

    def to_dict(self) -> dict[str, Any]:
        """The tokens and the observations, with values as lists."""
        return {
            "engine": self.engine,
            "source": self.source,
            "tokens": list(self.tokens),
            "positions": list(self.positions),
            "steps": list(self.steps),
            "observations": [
                {"name": o.name, "kind": o.kind, "shape": list(o.shape or ()), "values": o.target().tolist()}
                for o in (*self.observations, *self.states)
            ],
            "unmatched": list(self.unmatched),
            "notes": list(self.notes),
        }

    @property
    def phase(self) -> str:
        return "decode" if len(self.steps) > 1 else "prefill"

    @property
    def inputs(self) -> dict[str, Array]:
        """The graph's inputs for the whole sequence."""
        return {**inputs_of(self.tokens, self.positions), **self.given}

    @cached_property
    def by_name(self) -> dict[str, tuple[Observation, ...]]:
        found: dict[str, list[Observation]] = {}
        for obs in self.observations:
            found.setdefault(obs.name, []).append(obs)
        return {name: tuple(many) for name, many in found.items()}

    def values(self, name: str) -> Array | None:
        """The whole tensor of a node in the graph's axis order, or None if it was not dumped whole."""
        for obs in self.by_name.get(name, ()):
            if obs.kind == "values" and obs.rows is None:
                return obs.array()
        return None


def inputs_of(tokens: Sequence[int], positions: Sequence[int]) -> dict[str, Array]:
    """The graph's inputs for a sequence that starts with these tokens."""
    at = np.asarray(positions, np.int64)
    assert set(INPUTS) == {"inp_tokens", "inp_pos", "inp_kpos"}
    return {"inp_tokens": np.asarray(tokens, np.int64), "inp_pos": at, "inp_kpos": at}


def token_axis(graph: Graph, name: str) -> int:
    """The axis that counts tokens: 1 for scores and weighted values `[head, token, …]`, else 0."""
    shape = graph.shapes[name]
    return shape.index("T") if "T" in shape else 0


def rows_of(value: Array, axis: int, rows: tuple[int, int] | None) -> Array:
    """The described rows, a view."""
    if rows is None:
        return value
    return value[rows[0] : rows[1]] if axis == 0 else value[:, rows[0] : rows[1]]


def patch(observations: Sequence[Observation], value: Array, axis: int) -> Array:
    """`value` with every dumped row put in its place: the best estimate of the other engine's value."""
    parts = [o for o in observations if o.kind == "values"]
    if parts and parts[0].rows is None:
        return parts[0].array().astype(value.dtype, copy=False)
    if parts:
        value = value.copy()
    for obs in parts:
        data = obs.array()
        rows_of(value, axis, obs.rows)[tuple(slice(0, n) for n in data.shape)] = data
    return value


def hf_order(width: int) -> NDArray[np.int64]:
    """For a rotary head: GGUF's index of each element in Hugging Face's order. Pairs (2i, 2i+1) become halves."""
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


def to_hf(value: Array, width: int) -> Array:
    """A query or key tensor in Hugging Face's order."""
    heads = value.reshape(*value.shape[:-1], -1, width)
    return heads[..., hf_order(width)].reshape(value.shape)


def from_hf(value: Array, width: int) -> Array:
    """The inverse of `to_hf`."""
    heads = value.reshape(*value.shape[:-1], -1, width)
    return heads[..., np.argsort(hf_order(width))].reshape(value.shape)


def measure(obs: Observation, value: Array, axis: int, head_width: int = 0) -> Array:
    """The numbers that the observation would hold if the node had this whole value."""
    part = rows_of(value, axis, obs.rows)
    if obs.order == "hf":
        part = to_hf(part, head_width)
    shape = obs.array().shape if obs.kind == "values" else obs.shape or ()
    if len(shape) == part.ndim:  # scores of an early step see fewer keys
        part = part[tuple(slice(0, n) for n in shape)]
    if obs.kind == "values":
        return part
    flat = part.reshape(-1)
    if obs.kind == "first":
        return flat[: len(obs.data)]
    if obs.kind == "last":
        return flat[max(0, flat.size - len(obs.data)) :]
    if obs.kind in ("at", "top"):
        return flat[[index for index, _ in obs.data if index < flat.size]]
    return np.array([statistic_near(obs.kind, flat, obs.data)])


def statistic_near(kind: str, values: Array, printed: float) -> float:
    """The statistic that was printed. NumPy's standard deviation divides by n, that of torch and pandas by n - 1."""
    found = STATISTICS[kind](values)
    if kind != "std" or values.size < 2:
        return found
    sample = found * float(np.sqrt(values.size / (values.size - 1)))
    return min(found, sample, key=lambda x: abs(x - printed))
