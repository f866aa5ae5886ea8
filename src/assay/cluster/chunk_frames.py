"""Chunks of a batch as frames: the head of a frame has the fields that are JSON, its arrays have tokens and rows.

`split.py` sends chunks to the first stage and `stage.py` sends them on; both use this encoding.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from assay.cluster.frames import Array
from assay.engines.contract import Chunk


def pack_chunks(chunks: list[Chunk]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """The heads and the arrays of chunks."""
    heads: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for i, chunk in enumerate(chunks):
        heads.append(
            {"start": chunk.start, "outputs": chunk.outputs, "moved": chunk.positions is not None,
             "state_slot": chunk.state_slot, "prompt": chunk.prompt}
        )  # fmt: skip
        arrays |= {f"{i}/tokens": chunk.tokens, f"{i}/pages": chunk.pages}
        if chunk.positions is not None:
            arrays[f"{i}/positions"] = chunk.positions
        arrays |= {f"{i}/rows/{name}": rows for name, rows in chunk.rows.items()}
    return heads, arrays


def unpack_chunks(heads: list[Mapping[str, Any]], arrays: Mapping[str, Array]) -> list[Chunk]:
    """The chunks that `pack_chunks` has packed."""
    rows: list[dict[str, Array]] = [{} for _ in heads]
    for key, value in arrays.items():
        place, kind, *name = key.split("/", 2)
        if kind == "rows":
            rows[int(place)][name[0]] = value
    return [
        Chunk(arrays[f"{i}/tokens"], head["start"], arrays[f"{i}/pages"], head["outputs"],
              arrays.get(f"{i}/positions"), rows[i], state_slot=operator.index(head["state_slot"]),
              prompt=operator.index(head["prompt"]))
        for i, head in enumerate(heads)
    ]  # fmt: skip
