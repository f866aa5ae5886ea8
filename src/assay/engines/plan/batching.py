"""Batching: a batch cut into steps, the arrays that describe a step, and the memory for its results.

A step computes the rows of its pieces together. The cut changes no bit of the results, so an engine may cut to fit its
buffers. Touch this when a step must carry more from a chunk to the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Output
from assay.graph import Graph, Trait

Array = NDArray[Any]
STEP = 512  # most tokens in one step
MEMORY = 512 << 20  # most bytes of kept nodes held at a time when the caller takes them one by one


@dataclass(frozen=True)
class Piece:
    """Tokens [begin, end) of a chunk, run in one step."""

    chunk: Chunk
    begin: int
    end: int

    @cached_property
    def n_outputs(self) -> int:
        """How many of its tokens give a row of the output. They are the last ones."""
        return min(self.end - self.begin, max(0, self.end - self.chunk.n_tokens + self.chunk.n_outputs))

    @cached_property
    def alone(self) -> Chunk:
        """Its tokens as a chunk of their own, for which no drafts are kept unless it is the whole chunk."""
        c, mine = self.chunk, slice(self.begin, self.end)
        if self.end - self.begin == c.n_tokens:
            return c
        return replace(
            c,
            tokens=c.tokens[mine],
            start=c.start + self.begin,
            outputs=c.outputs if self.end == c.n_tokens or c.outputs == "all" else "none",
            positions=None if c.positions is None else c.positions[mine],
            rows={name: rows[mine] for name, rows in c.rows.items()},
            drafted=0,
            prompt=max(0, min(c.prompt, self.end) - self.begin),
        )


@dataclass(frozen=True)
class Step:
    """Pieces computed together."""

    pieces: tuple[Piece, ...]

    @cached_property
    def n_tokens(self) -> int:
        return sum(p.end - p.begin for p in self.pieces)

    @cached_property
    def n_outputs(self) -> int:
        return sum(p.n_outputs for p in self.pieces)

    def tokens(self) -> NDArray[np.int32]:
        """The token ids; zeros where a chunk brings rows instead."""
        return _joined(
            p.chunk.tokens[p.begin : p.end] if p.chunk.tokens.size else np.zeros(p.end - p.begin, np.int32)
            for p in self.pieces
        )

    def positions(self) -> NDArray[np.int32]:
        return _joined(p.chunk.all_positions()[p.begin : p.end] for p in self.pieces)

    def pages(self, windows: Collection[int] = ()) -> NDArray[np.int32]:
        """The page tables of all pieces; each piece's own table is followed by those of its windows."""
        return _joined(
            table
            for p in self.pieces
            for table in (p.chunk.pages, *(p.chunk.windows.get(w, p.chunk.pages) for w in windows))
        )

    def table(self, tables: int = 1) -> NDArray[np.int32]:
        """For each piece: number of tokens, first slot, start and length of its page tables, number of outputs."""
        lengths = [len(p.chunk.pages) for p in self.pieces]
        begins = [0, *accumulate(tables * n for n in lengths)]
        return np.array(
            [
                (p.end - p.begin, p.chunk.start + p.begin, at, length, p.n_outputs)
                for p, at, length in zip(self.pieces, begins, lengths, strict=False)
            ],
            np.int32,
        )


def _joined(rows: Iterator[Array]) -> NDArray[np.int32]:
    found = list(rows)
    return np.ascontiguousarray(found[0] if len(found) == 1 else np.concatenate(found), np.int32)


def pieces_of(batch: Sequence[Chunk]) -> list[Piece]:
    """Each chunk as one piece."""
    return [Piece(c, 0, c.n_tokens) for c in batch]


def by_prompt(batch: Sequence[Chunk]) -> tuple[list[Piece], list[Piece]]:
    """The tokens of each chunk that are prompt, and all others. A chunk without such tokens has no such piece."""
    heads = [Piece(c, 0, c.prompt) for c in batch if c.prompt]
    return heads, [Piece(c, c.prompt, c.n_tokens) for c in batch if c.prompt < c.n_tokens]


def whole(batch: Sequence[Chunk]) -> list[Step]:
    """The batch as one step."""
    return [Step(tuple(pieces_of(batch)))]


def steps(batch: Sequence[Chunk], limit: int = STEP, cut: bool = True) -> list[Step]:
    """The batch in steps of at most `limit` tokens, in order. With `cut` false, a longer chunk is a step by itself."""
    return steps_of(pieces_of(batch), limit, cut)


def steps_of(pieces: Sequence[Piece], limit: int, cut: bool = True) -> list[Step]:
    """The pieces in steps of at most `limit` tokens, as `steps`."""
    found: list[list[Piece]] = [[]]
    room = limit
    for piece in pieces:
        begin, whole, size = piece.begin, not cut or not piece.chunk.ascending, piece.end - piece.begin
        while begin < piece.end:
            if not room or (whole and size > room and found[-1]):
                found.append([])
                room = limit
            end = piece.end if whole else piece.chunk.cut(begin, min(piece.end, begin + room))
            if end - begin > room and found[-1]:  # a picture that needs more room
                found.append([])
                room = limit
                continue
            found[-1].append(Piece(piece.chunk, begin, end))
            room = max(0, room - (end - begin))
            begin = end
    return [Step(tuple(pieces)) for pieces in found]


def in_turns(graph: Graph, keep: Collection[str], batch: Sequence[Chunk]) -> Iterator[list[str]]:
    """The kept nodes in the order of the graph, in runs whose values fit in memory together.

    The engine repeats the step for each run. That is possible where the last tokens can be taken back: the repeated
    step writes the same rows again. A graph with other state is run once, and all kept nodes are held together.
    """
    if not graph.state.cuttable:
        yield sorted(keep, key=graph.order.__getitem__)
        return
    run: list[str] = []
    held = 0
    for name in sorted(keep, key=graph.order.__getitem__):
        size = 4 * sum(int(np.prod(shape_in(graph, name, chunk))) for chunk in batch)
        if run and held + size > MEMORY:
            yield run
            run, held = [], 0
        run.append(name)
        held += size
    yield run


def shape_in(graph: Graph, name: str, chunk: Chunk) -> tuple[int, ...]:
    """The shape of a value for this chunk."""
    sizes = {"T": chunk.n_tokens, "S": chunk.end}
    return tuple(sizes[d] if isinstance(d, str) else d for d in graph.shapes[name])


@dataclass(frozen=True)
class External:
    """An array of the caller: `width` floats for each row of `domain`. Programs read it if `given`, else write it."""

    node: str
    domain: str  # one of fuse.DOMAINS
    width: int
    given: bool = False


def joined(graph: Graph, first: Output, second: Output) -> Output:
    """The output of a chunk from those of its first and its other tokens."""
    nodes = {
        name: np.concatenate([value, second.nodes[name]], axis=graph.shapes[name].index("T"))
        for name, value in first.nodes.items()
    }
    return Output(np.concatenate([first.logits, second.logits]), nodes)


class Results:
    """The arrays of a forward pass: rows that the caller gives, and results that each step writes.

    `memory` gives the array of so many numbers for the i-th external; by default a new one.
    """

    def __init__(
        self, externals: Sequence[External], batch: Sequence[Chunk],
        memory: Callable[[int, int], NDArray[np.float32]] = lambda i, n: np.empty(n, np.float32),
    ) -> None:  # fmt: skip
        self.batch, self.externals = batch, externals
        counts = {
            "tokens": [c.n_tokens for c in batch],
            "outputs": [c.n_outputs for c in batch],
            "keys": [c.end for c in batch],
            "scores": [c.n_tokens * c.end for c in batch],
            "sequences": [1] * len(batch),
        }
        self._ends = {domain: [0, *accumulate(rows)] for domain, rows in counts.items()}
        self._flat = [
            _given(batch, e.node) if e.given else memory(i, e.width * self._ends[e.domain][-1])
            for i, e in enumerate(externals)
        ]
        self._done = {"tokens": 0, "outputs": 0, "sequences": 0}

    def take(self, step: Step) -> list[NDArray[np.float32]]:
        """Each array from the first row of this step on."""
        left = [f[self._done.get(e.domain, 0) * e.width :] for e, f in zip(self.externals, self._flat, strict=True)]
        self._done["tokens"] += step.n_tokens
        self._done["outputs"] += step.n_outputs
        self._done["sequences"] += len(step.pieces)
        return left

    def outputs(self, graph: Graph, keep: Collection[str], aliases: Mapping[str, str]) -> list[Output]:
        """Results in the order of the batch. `aliases` maps a kept node to the node whose values it shares."""
        index = {e.node: i for i, e in enumerate(self.externals)}

        def rows(name: str, i: int) -> Array:
            at = index[aliases.get(name, name)]
            e = self.externals[at]
            first, last = self._ends[e.domain][i : i + 2]
            return self._flat[at][first * e.width : last * e.width].reshape(-1, e.width)

        found = []
        names = sorted(keep, key=graph.order.__getitem__)
        for i, chunk in enumerate(self.batch):
            logits = rows(graph.output, i)
            nodes = {name: _shaped(graph, name, rows(name, i), chunk) for name in names}
            found.append(Output(logits[max(0, len(logits) - chunk.n_outputs) :], nodes))
        return found


def _given(batch: Sequence[Chunk], name: str) -> NDArray[np.float32]:
    """The rows of all chunks; those of a single one are not copied, unless kernels cannot take them.

    Rows from another process are read-only and begin anywhere in a frame.
    """
    found = [np.require(c.rows[name], np.float32, ("C", "A", "W")).ravel() for c in batch]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _shaped(graph: Graph, name: str, rows: Array, chunk: Chunk) -> Array:
    """A node's rows in the shape that the graph declares."""
    shape = shape_in(graph, name, chunk)
    if len(shape) == 3 and graph.shapes[name][1:] == (
        "T",
        shape[2],
    ):  # heads first in the graph, token by token in memory
        heads, tokens, width = shape
        return rows.reshape(tokens, heads, width).transpose(1, 0, 2)
    value = rows.reshape(shape)
    return value.astype(np.int64) if graph[name].has(Trait.INDICES) else value
