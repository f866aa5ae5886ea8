"""Prompts with pictures: llama.cpp's goldens without the pixels, as ids and rows in order.

tests/data/vision/prompts.npz has for each golden the tokens, the exact rows of its image chunks and the exact logits.
Four of the language models lie beside it; the others are in the reference data.
"""

from __future__ import annotations

import os
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import Chunk, pages_for
from assay.gguf import open_file
from assay.models import Model, load
from assay.runtime.image_places import Images, place_images, rows_in_chunk
from assay.vision.rows import ImageRows

FOLDER = Path(__file__).parent / "data" / "vision"
HERE = ("gemma3", "gemma4", "qwen2vl", "qwen3vl")
ALL = (*HERE, "qwen25vl", "idefics3", "idefics3-old", "lfm2", "lfm2-tiles", "pixtral", "internvl", "llava")


def path_of(name: str) -> Path:
    shared = Path(os.environ.get("ASSAY_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    for folder in (FOLDER, shared / "data" / "vision"):
        if (path := folder / f"{name}-text.gguf").exists():
            return path
    pytest.skip(f"no golden model {name}; set ASSAY_SHARED to the reference data")


@cache
def model_of(name: str) -> Model:
    return load(open_file(path_of(name)))


@cache
def golden(name: str) -> tuple[tuple[list[int] | ImageRows, ...], np.ndarray]:
    """The pieces of a prompt, and its exact logits."""
    with np.load(FOLDER / "prompts.npz") as file:
        found = {key.split("/")[1]: file[key] for key in file.files if key.split("/")[0] == name}
    text, pieces, j = found["text_tokens"].tolist(), list[list[int] | ImageRows](), 0
    for is_image, n, _ in found["chunks"].tolist():
        if is_image:
            rows, at = found[f"exact_embd_{j}"], found[f"pos_{j}"]
            wide = at[:, 2] - at[0, 2]  # columns, where positions have several numbers
            columns = int(wide.max()) + 1
            grid = (columns, n // columns) if (at[:, 0] == at[0, 0]).all() else None
            pieces.append(ImageRows(rows, grid, blake2b(rows.tobytes()).digest(), bool(found["non_causal"])))
            j += 1
        else:
            pieces.append(text[:n])
            del text[:n]
    return tuple(pieces), found["exact_logits"].astype(np.float64)


def prompt(name: str) -> tuple[tuple[int, ...], Images]:
    return place_images(golden(name)[0])


def chunk(
    model: Model, ids: tuple[int, ...], images: Images, start: int = 0, end: int | None = None, *, page: int = 0,
    outputs: str = "last",
) -> Chunk:  # fmt: skip
    """Tokens [start, end) of a prompt, in pages from `page` on."""
    end = len(ids) if end is None else end
    pages = np.arange(page, page + pages_for(len(ids)), dtype=np.int32)
    tokens = np.array([max(token, 0) for token in ids[start:end]], np.int32)
    given = rows_in_chunk(images, start, end - start, bool(model.hparams.axes))
    return Chunk(tokens, start, pages, outputs, pictures=given)


def nmse(found: np.ndarray, exact: np.ndarray) -> float:
    return float(((found.astype(np.float64) - exact) ** 2).sum() / (exact**2).sum())
