"""Pictures of a prompt: the places of their rows in a sequence, and what a chunk of the sequence brings of them.

No token of the vocabulary stands for a row of a picture. In a sequence's ids it has a negative number: a hash of the
picture's digest, plus the number of the row. So everything that compares or names ids also tells pictures apart: the
prefix cache reuses the rows of a picture that it has seen, and two pictures never meet in it.

Positions of a model with M-RoPE (t, y, x): text at p has (p, p, p). The rows of a picture that begins at p have t = p,
y = p + line and x = p + column. The text behind it goes on at p + max(columns, lines).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Engine, PictureRows
from assay.errors import AssayError
from assay.models.pictures import AXES, PictureForm
from assay.vision.rows import ImageRows

_BITS = 128  # of the hash: two pictures never get the same ids by chance or by design


@dataclass(frozen=True)
class PlacedImage:
    """The rows of an image chunk, and the slot of the first."""

    start: int
    image: ImageRows

    @property
    def end(self) -> int:
        return self.start + len(self.image.rows)

    @property
    def skipped(self) -> int:
        """By how much positions fall behind slots after it, where positions have several numbers."""
        return len(self.image.rows) - max(self.image.grid or (len(self.image.rows), 1))


Images = tuple[PlacedImage, ...]


def place_images(pieces: Iterable[Sequence[int] | ImageRows]) -> tuple[tuple[int, ...], Images]:
    """The ids of a prompt and the places of its pictures, from token ids and rows in order."""
    ids: list[int] = []
    images: list[PlacedImage] = []
    for piece in pieces:
        if isinstance(piece, ImageRows):
            images.append(PlacedImage(len(ids), piece))
            ids += row_ids(piece)
        else:
            ids += piece
    return tuple(ids), tuple(images)


def row_ids(image: ImageRows) -> list[int]:
    """The ids that stand for the rows of an image."""
    first = int.from_bytes(blake2b(image.digest, digest_size=_BITS // 8).digest())
    return [-1 - (first + i) % (1 << _BITS) for i in range(len(image.rows))]


def only_tokens(ids: Sequence[int]) -> list[int]:
    """The ids that are tokens of the vocabulary."""
    return [token for token in ids if token >= 0]


def without_rows(ids: Sequence[int], images: Images) -> list[int]:
    """The ids at places that no picture has."""
    taken = {slot for p in images for slot in range(p.start, p.end)}
    return [token for i, token in enumerate(ids) if i not in taken] if taken else list(ids)


def check_images(engine: Engine, images: Images, most: int) -> None:
    """Refuse pictures that the model or the engine cannot take. `most`: tokens that one step can always compute."""
    hparams = engine.model.hparams
    form = PictureForm(hparams.n_deepstack, any(p.image.sees_itself for p in images), hparams.axes)
    if images and (missing := form.needs - set(engine.pictures)):
        raise AssayError(f"picture: engine {engine.name} cannot take {', '.join(sorted(missing))}; use --engine cpu")
    for image in (placed.image for placed in images):
        n, width = image.rows.shape
        wanted = (1 + hparams.n_deepstack) * hparams.n_embd
        if width != wanted:
            raise AssayError(
                f"picture: its rows do not fit the model (found {width} numbers a row, expected {wanted}); use the "
                "mmproj file that was made for this model"
            )
        if hparams.axes and (image.grid is None or image.grid[0] * image.grid[1] != n):
            raise AssayError(
                f"picture: has no grid of {n} rows, which the positions of this model need (found {image.grid}); use "
                "the mmproj file that was made for this model"
            )
        if image.sees_itself and n > most:
            raise AssayError(
                f"picture: its {n} rows see each other and must be computed in one step (found room for {most}); use a "
                "larger --ctx-size"
            )


def rows_in_chunk(images: Images, start: int, n: int, m_rope: bool) -> PictureRows | None:
    """Pictures in the chunk of slots [start, start + n); None if it is plain text."""
    end = start + n
    inside = [p for p in images if p.start < end and p.end > start]
    if not inside and not (m_rope and any(p.end <= start for p in images)):
        return None
    at = [np.arange(max(p.start, start), min(p.end, end), dtype=np.int32) - np.int32(start) for p in inside]
    rows = [p.image.rows[max(start - p.start, 0) : end - p.start] for p in inside]
    last = None
    if any(p.image.sees_itself for p in inside):
        last = np.arange(start, end, dtype=np.int32)
        for places, p in zip(at, inside, strict=True):
            if p.image.sees_itself:
                last[places] = p.end - 1
    return PictureRows(
        np.concatenate([*at, np.empty(0, np.int32)]),
        np.concatenate(rows) if rows else np.empty((0, images[0].image.rows.shape[1]), np.float32),
        last,
        _positions(images, start, end) if m_rope else None,
    )


def _positions(images: Images, start: int, end: int) -> NDArray[np.int32]:
    found = np.arange(start, end, dtype=np.int32)[:, None].repeat(AXES, 1)
    behind = 0
    for p in images:
        if p.start >= end:
            break
        columns, _ = p.image.grid or (len(p.image.rows), 1)
        at = np.arange(max(p.start, start), min(p.end, end), dtype=np.int32)
        line, column = np.divmod(at - p.start, columns)
        found[at - start] = p.start - behind + np.stack([np.zeros_like(line), line, column], 1)
        behind += p.skipped
        found[max(p.end - start, 0) :] -= p.skipped
    return found


def prompt_part(images: Images, n_prompt: int) -> int:
    """How many tokens of a prompt have the arithmetic of a prompt (`Chunk.prompt`): all but the last one. A picture
    whose rows see each other has one arithmetic, so if it ends the prompt, the part ends before the picture."""
    last = n_prompt - 1
    return next((p.start for p in images if p.image.sees_itself and p.start <= last < p.end), last)


def whole_images(images: Images, start: int, n: int) -> int:
    """At most n tokens from slot `start` on, so that no picture whose rows see each other is cut.

    More than n where the next token belongs to such a picture.
    """
    for p in images:
        if p.image.sees_itself and p.start < start + n < p.end:
            return p.start - start if p.start > start else p.end - start
    return n
