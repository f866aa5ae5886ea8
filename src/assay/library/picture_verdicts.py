"""Verdicts on what an engine makes of a picture: its pixels, its vision tower, its rows.

    found = diagnose_image("mmproj.gguf", "dump.npz", "cat.png")
    print(found); found.save_html("report.html")

`found.result` is a `Diagnosis`, as for a language model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.verdicts import Finding, read_values
from assay.models.vision import Tower, is_tower, load_tower
from assay.runtime.hub import resolve
from assay.runtime.pictured_prompt import picture_bytes, projector_beside
from assay.system.stages import note
from assay.verify.diagnosis import answer
from assay.verify.dumps.observation import Dump
from assay.verify.judge import text as judged
from assay.verify.pictures.diagnose_picture import PictureDiagnosis, diagnose_picture
from assay.verify.pictures.picture_dump import sort_arrays
from assay.verify.pictures.picture_report import page as picture_page
from assay.verify.pictures.tower_trials import tower_model
from assay.verify.thresholds import SECONDS
from assay.vision.picture import decode_boxed
from assay.vision.resize import Bytes


@dataclass(frozen=True, repr=False)
class PictureFinding(Finding):
    """A verdict on a picture. Its page shows the pixels beside each other."""

    picture: PictureDiagnosis | None = None
    tower: Tower | None = None

    def page(self) -> str | None:
        return None if self.picture is None or self.tower is None else picture_page(self.picture, self.tower)

    def to_dict(self) -> dict[str, Any]:
        found = super().to_dict()
        return found if self.picture is None else {**found, "usual": list(self.picture.usual)}


def tower_of(model: str | Path | None, mmproj: str | Path | None) -> Tower:
    """The tower of an mmproj file: `mmproj`, or `model` itself, or the file beside it."""
    if mmproj is None:
        path = resolve(None if model is None else str(model))
        if not is_tower(open_file(path)):
            path = projector_beside(path)
    else:
        path = Path(mmproj)
    if not path.is_file():
        raise AssayError(f"{path}: no such file; name the mmproj file with --mmproj FILE")
    return load_tower(open_file(path))


def diagnose_image(
    mmproj: str | Path | Tower,
    values: str | Path | Mapping[str, Any] | Dump,
    image: str | Path | bytes | Bytes,
    *,
    seconds: float = SECONDS,
) -> PictureFinding:
    """Judge an engine's values for a picture against the mmproj file, and name the mistake that gives them.

    `values` has `pixels_0` (the array that the tower reads), `embd_0` (the rows for the language model) or nodes of the
    tower; any of them is enough. `image` is the picture's file or its pixels [row, column, RGB].
    """
    picture, tower = _judged(mmproj, values, image, seconds)
    said = picture.diagnosis
    words = lambda _: answer.text(said, tower_model(tower))  # noqa: E731
    return PictureFinding(said.verdict, said.first_wrong, said, bool(said), words, picture=picture, tower=tower)


def diff_image(
    mmproj: str | Path | Tower, values: str | Path | Mapping[str, Any] | Dump, image: str | Path | bytes | Bytes
) -> PictureFinding:
    """The same as a comparison: a verdict for the pixels and for every dumped node."""
    picture, tower = _judged(mmproj, values, image, SECONDS)
    result = picture.diff
    words = lambda rows: judged.text(result, tower_model(tower), rows)  # noqa: E731
    return PictureFinding(result.verdict, result.first_name, result, bool(result), words, picture=picture, tower=tower)


def _judged(
    mmproj: str | Path | Tower,
    values: str | Path | Mapping[str, Any] | Dump,
    image: str | Path | bytes | Bytes,
    seconds: float,
) -> tuple[PictureDiagnosis, Tower]:
    tower = mmproj if isinstance(mmproj, Tower) else tower_of(None, mmproj)
    pixels = image if isinstance(image, np.ndarray) else decode_boxed(picture_bytes(image))
    dump = sort_arrays(read_values(values), [node.name for node in tower.graph], tower.graph.output)
    return diagnose_picture(tower, pixels, dump, seconds=seconds, say=note), tower
