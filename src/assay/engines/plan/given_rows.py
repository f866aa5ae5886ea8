"""Batches with pictures: which graph they need, and the rows that it is given (`models/pictures.py`).

An engine with the capability `pictures` calls both functions after `check_batch`; compiled ones through
`picture_graph.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.contract import Chunk, Engine
from assay.models.pictures import AXES, IS_TEXT, LAST, POSITIONS, ROWS, PictureForm, deepstack_name


def picture_form(engine: Engine, batch: Sequence[Chunk]) -> PictureForm | None:
    """Inputs of the graph for the pictures in the chunks of a batch; None without pictures."""
    found = [chunk.pictures for chunk in batch if chunk.pictures]
    if not found:
        return None
    hparams = engine.model.hparams
    return PictureForm(hparams.n_deepstack, any(p.last is not None for p in found), hparams.axes)


def with_pictures(chunk: Chunk, form: PictureForm, width: int, dtype: np.dtype[Any]) -> Chunk:
    """The chunk with the rows that a graph in this form is given. A token's own are -0.0, which changes no bit."""
    n, given = chunk.n_tokens, chunk.pictures
    at = given.at if given else np.empty(0, np.int32)
    rows = dict(chunk.rows)
    for name, i in [(ROWS, 0), *((deepstack_name(i), i + 1) for i in range(form.parts))]:
        rows[name] = np.full((n, width), -0.0, dtype)
        if given:
            rows[name][at] = given.rows[:, i * width : (i + 1) * width]
    rows[IS_TEXT] = np.ones((n, 1), dtype)
    rows[IS_TEXT][at] = 0.0
    if form.last:
        own = np.arange(chunk.start, chunk.end)
        rows[LAST] = (own if given is None or given.last is None else given.last).astype(dtype)[:, None]
    if form.axes:
        turned = chunk.all_positions()[:, None].repeat(AXES, 1) if given is None else given.positions
        assert turned is not None  # `check_batch` has seen to it
        rows[POSITIONS] = turned.astype(dtype)
    return replace(chunk, rows=rows)
