"""Fill the tables of a step on the host: tokens, positions, slots, page tables, tiles of query rows.

Programs read a batch from these tables only (shapes.py, Shape.tables). `key_positions` [page, slot] holds the position
of every cached key; filling a step records the positions of its tokens there. Touch this module when a kernel reads
another table, or another word of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, Chunk, pages_for
from assay.engines.cuda.abi.enumerations import CHUNK_WORDS, STATE_WORDS, TILE_WORDS, TileWord
from assay.engines.cuda.shapes import Shape
from assay.engines.plan.batching import Step

Tables = Mapping[str, NDArray[np.int32]]  # by name


def fill_decode_step(
    at: Tables, key_positions: NDArray[np.int32], chunks: Sequence[Chunk], follow: Sequence[int]
) -> None:
    """The tables of a decode step, with pages for the `follow` tokens that each sequence decodes after it."""
    if len(chunks) == 1 == at["slots"].size and not any(follow):  # fast path of a single stream
        c = chunks[0]
        last, position = c.start // PAGE, c.start if c.positions is None else int(c.positions[0])
        at["positions"][0], at["slots"][0], at["tables"][0], at["left"][0] = position, c.start, 0, 0
        at["tokens"][0] = c.tokens[0] if c.tokens.size else 0
        at["pages"][: last + 1] = c.pages[: last + 1]
        key_positions[c.pages[last], c.start % PAGE] = position
        return
    n, slots = len(chunks), [c.start for c in chunks]
    later = list(follow) or [0] * n
    used = [pages_for(c.end + m) for c, m in zip(chunks, later, strict=True)]
    first = [0, *accumulate(used)]
    positions = [c.start if c.positions is None else int(c.positions[0]) for c in chunks]
    rows = {"positions": positions, "tables": first[:n], "slots": slots, "left": later}
    rows["tokens"] = [int(c.tokens[0]) if c.tokens.size else 0 for c in chunks]  # 0: the caller gives rows instead
    for name, values in rows.items():
        at[name][:n] = values
        at[name][n:] = -1 if name == "slots" else 0  # rows of padding
    pages = [c.pages[:count] for c, count in zip(chunks, used, strict=True)]
    at["pages"][: first[n]] = np.concatenate(pages)
    key_positions[[c.pages[c.start // PAGE] for c in chunks], np.mod(slots, PAGE)] = positions
    for c, position, m in zip(chunks, positions, later, strict=True):
        if m:
            at_slots = np.arange(c.end, c.end + m)
            key_positions[c.pages[at_slots // PAGE], at_slots % PAGE] = position - c.start + at_slots


def fill_states(at: Tables, rows: Sequence[tuple[int, int, int, int]]) -> None:
    """The states of a step: first row, tokens, place before (-1: none) and place after, of each part of a sequence."""
    table = at["states"].reshape(-1, STATE_WORDS)
    table[: len(rows)] = rows
    table[len(rows) :] = 0  # padding has no tokens


def fill_step(
    at: Tables, key_positions: NDArray[np.int32], step: Step, shape: Shape, cuts: Sequence[tuple[int, int]]
) -> None:
    """The tables of any other step. `cuts`: ways to cut query rows into tiles (shapes.py, tile_cuts)."""
    for name, words in at.items():
        words[:] = -1 if name == "slots" else 0
    row = output = page = tile = output_tile = key = score = 0
    for i, p in enumerate(step.pieces):
        n, start, end = p.end - p.begin, p.chunk.start + p.begin, p.chunk.start + p.end
        positions, slots = p.chunk.all_positions()[p.begin : p.end], np.arange(start, end)
        at["tokens"][row : row + n] = p.chunk.tokens[p.begin : p.end] if p.chunk.tokens.size else 0
        at["positions"][row : row + n] = positions
        at["slots"][row : row + n] = slots
        at["tables"][row : row + n] = page
        key_positions[p.chunk.pages[slots // PAGE], slots % PAGE] = positions
        outs = np.arange(row + n - p.n_outputs, row + n)
        at["outputs"][output : output + len(outs)] = outs
        at["output_positions"][output : output + len(outs)] = positions[n - len(outs) :]
        table = p.chunk.pages[: pages_for(end)]
        at["pages"][page : page + len(table)] = table
        tile += _cut(at["tiles"], shape, cuts, tile, row, n, end, score)
        output_tile += _cut(at["output_tiles"], shape, cuts, output_tile, output, len(outs), end, score)
        if shape.chunks:
            words = np.array((row, n, key, end, score & 0xFFFFFFFF, score >> 32), np.int64)
            at["chunks"].reshape(-1, CHUNK_WORDS)[i] = words.astype(np.uint32).view(np.int32)
        if shape.keys:
            of_keys = np.arange(end)
            pages = p.chunk.pages[of_keys // PAGE]
            at["keys"].reshape(-1, 2)[key : key + end] = np.stack([pages, of_keys % PAGE], 1)
            at["key_positions"][key : key + end] = key_positions[pages, of_keys % PAGE]
        row, output, page, key, score = row + n, output + len(outs), page + len(table), key + end, score + n * end


def _cut(
    words: NDArray[np.int32],
    shape: Shape,
    cuts: Sequence[tuple[int, int]],
    at: int,
    first: int,
    tokens: int,
    keys: int,
    score: int,
) -> int:
    """Write a piece's tiles of query rows, 8 words each (attention.h, AttentionArgs::tiles), from index `at` of
    every cut; return the most tiles that a cut has."""
    most = 0
    for (group, size), table in zip(cuts, words.reshape(shape.cuts, -1, TILE_WORDS), strict=False):
        rows = tokens * group
        begins = np.arange(0, rows, size)
        tiles = np.zeros((len(begins), TILE_WORDS), np.int64)
        tiles[:, TileWord.TILE_TOKEN] = tiles[:, TileWord.TILE_CHUNK_TOKEN] = first
        tiles[:, TileWord.TILE_ROW], tiles[:, TileWord.TILE_ROWS] = begins, np.minimum(size, rows - begins)
        tiles[:, TileWord.TILE_KEYS], tiles[:, TileWord.TILE_TOKENS] = keys, tokens
        tiles[:, TileWord.TILE_SCORES], tiles[:, TileWord.TILE_SCORES_HIGH] = score & 0xFFFFFFFF, score >> 32
        table[at : at + len(tiles)] = tiles.astype(np.uint32).view(np.int32)
        most = max(most, len(tiles))
    return most
