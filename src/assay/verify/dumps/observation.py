"""What is known about somebody's run: a dump is a set of observations, each of one node.

An observation is a whole tensor, some of its rows, its first ten values, its rms, its best five logits. All kinds
answer one question: *what would this have been, had the node had that value?* (`measure`). Comparing a dump with the
definition, or with a hypothesis about a fault, is comparing `target` with `measure` and nothing else.

A sequence fed in several steps (a prompt, then tokens one by one through the cache) is one dump: row t of a node
is the token at index t of the whole sequence, whichever step computed it.
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
    foreign: str = ""  # the name as the stranger wrote it
    op: str = ""  # ggml's operation, where the dump tells it
    side: str = ""  # whose values, where one log shows several engines'
    where: str = ""  # line or member of the dump, for messages
    others: tuple[str, ...] = ()  # further nodes it may be, where words left it open
    perhaps: int | None = None  # a row it may describe: "token 3" is the fourth row, or the id 3
    otherwise: tuple[str, ...] = ()  # what its words mean, where its name is none that is known
    # Of a printed line: its words with `#` for whole numbers, those numbers, the layer it stands in.
    template: str = ""
    integers: tuple[int, ...] = ()
    layer: int | None = None
    vague: bool = False  # nothing in the text says this node rather than another of the layer
    unnumbered: bool = False  # a node of a layer, and nothing says of which

    @property
    def row(self) -> int | None:
        """The token row, where it describes exactly one."""
        return self.rows[0] if self.rows is not None and self.rows[1] - self.rows[0] == 1 else None

    def array(self) -> Array:
        """The tensor of a `values` observation; read now if it was not yet."""
        return np.asarray(self.data() if callable(self.data) else self.data)

    def target(self) -> Array:
        """What was observed, as numbers: what `measure` must be compared with."""
        if self.kind == "values":
            return self.array()
        if self.kind in ("at", "top"):
            return np.array([value for _, value in self.data], np.float64)
        return np.atleast_1d(np.asarray(self.data, np.float64))


@dataclass(frozen=True)
class NotFinite:
    """The first node, in the order of computation, whose dumped values are not all finite."""

    node: str
    what: str  # NaN, Inf or -Inf: the first of them
    count: int
    size: int
    at: tuple[int, ...]  # place of the first, among the values as they were dumped
    row: int | None  # the token it belongs to, where the layout tells
    left: int  # observed nodes from there on, which are not judged
    masked: int | None = None  # a row of the scores before it in which every key is masked


@dataclass(frozen=True, repr=False)
class Dump:
    """Somebody's run: which tokens were fed how, and what was observed."""

    engine: str
    tokens: tuple[int, ...] = ()  # of the whole sequence; empty where the dump does not say
    positions: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()  # tokens of each step: (5,) is a prefill, (3, 1, 1) a prefill and two decode steps
    observations: tuple[Observation, ...] = ()
    source: str = ""
    unmatched: tuple[str, ...] = ()  # foreign names that denote no node of the model
    notes: tuple[str, ...] = ()  # what was assumed while reading: layouts, names matched by value
    log: bool = False  # read from printed text
    aside: tuple[str, ...] = ()  # its lines with numbers that speak of no node
    aside_at: tuple[str, ...] = ()  # where those are
    unread: tuple[Observation, ...] = ()  # what they say, of nodes without a name
    reading: tuple[str, ...] = ()  # what its lines were understood as
    provenance: Mapping[str, str] = field(default_factory=dict)
    not_finite: NotFinite | None = None  # the first value that is none; what was computed from there on is left out

    def __repr__(self) -> str:
        names = list(self.by_name)
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        left = f", {len(self.unmatched)} unmatched" if self.unmatched else ""
        return f"<Dump {self.source}: {len(self.tokens)} tokens, {len(self.observations)} observations ({shown}){left}>"

    def to_dict(self) -> dict[str, Any]:
        """What was fed and what was observed, values as lists."""
        return {
            "engine": self.engine,
            "source": self.source,
            "tokens": list(self.tokens),
            "positions": list(self.positions),
            "steps": list(self.steps),
            "observations": [
                {"name": o.name, "kind": o.kind, "shape": list(o.shape or ()), "values": o.target().tolist()}
                for o in self.observations
            ],
            "unmatched": list(self.unmatched),
            "notes": list(self.notes),
        }

    @property
    def phase(self) -> str:
        return "decode" if len(self.steps) > 1 else "prefill"

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
    """What a run that begins its sequence is given."""
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
    """`value` with every dumped row put in its place: the best guess at what the stranger had there."""
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
    """What the observation would have been, had the node had this (whole) value."""
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
    return np.array([STATISTICS[obs.kind](flat)])
