"""Verdicts on what an engine makes of a picture: its pixels, its vision tower, its rows.

    found = diagnose_image("mmproj.gguf", "dump.npz", "cat.png")
    print(found); found.save_html("report.html")
    diagnose_image_prompt("model.gguf", "logits.npz", ["cat.png"], "<__media__> What is it?")

`found.result` is a `Diagnosis`, as for a language model. The second judges the language model's run of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.verdicts import Finding, ModelLike, opened, read_values
from assay.models.vision import Tower, is_tower, load_tower
from assay.runtime.hub import resolve
from assay.runtime.opening import Opened
from assay.runtime.pictured_prompt import picture_bytes, projector_beside
from assay.system.stages import note
from assay.verify.diagnosis import answer
from assay.verify.dumps.observation import Dump
from assay.verify.judge import text as judged
from assay.verify.pictures.diagnose_picture import PictureDiagnosis, diagnose_picture
from assay.verify.pictures.diagnose_prompt import diagnose_prompt, judge_prompt
from assay.verify.pictures.picture_dump import of_picture, rows_of_images, sort_arrays
from assay.verify.pictures.picture_report import page as picture_page
from assay.verify.pictures.prompt_trials import Placed, placed_by
from assay.verify.pictures.tower_trials import tower_model
from assay.verify.thresholds import SECONDS
from assay.vision.encode import encode_pictures
from assay.vision.picture import decode_boxed
from assay.vision.projector import open_projector
from assay.vision.resize import Bytes
from assay.vision.rows import ImagePrompt, ImageRows


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


# --- the prompt


@dataclass(frozen=True)
class _PromptDump:
    """A dump of a prompt with pictures: the language model's part, and where the prompt has the pictures' rows."""

    on: Opened
    placed: Placed
    text: Dump


def diagnose_image_prompt(
    model: ModelLike,
    values: str | Path | Mapping[str, Any] | Dump,
    images: Sequence[str | Path | bytes],
    prompt: str,
    *,
    mmproj: str | Path | None = None,
    chat: bool = False,
    system: str | None = None,
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    side: str = "",
    seconds: float = SECONDS,
) -> Finding:
    """Judge the language model's run of a prompt with pictures, and name the mistake: of the prompt or of the model.

    `values` has logits, layers or any node of the run, or is a printed log. `<__media__>` in `prompt` says where each
    picture goes; without it they go before the text. Rows that the values have (`embd_0`, …) are taken for the
    pictures', else the definition's.
    """
    fed = _fed(model, values, images, prompt, mmproj, chat, system, patterns)
    said, judged_run = diagnose_prompt(
        fed.on.model, fed.placed, fed.text, names=names, side=side, seconds=seconds, say=note
    )
    words = lambda _: answer.text(said, judged_run.model)  # noqa: E731
    return Finding(said.verdict, said.first_wrong, said, bool(said), words, judged_run.dump, judged_run.model)


def diff_image_prompt(
    model: ModelLike,
    values: str | Path | Mapping[str, Any] | Dump,
    images: Sequence[str | Path | bytes],
    prompt: str,
    *,
    mmproj: str | Path | None = None,
    chat: bool = False,
    system: str | None = None,
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    side: str = "",
) -> Finding:
    """The same as a comparison: a verdict for every dumped node of the run."""
    fed = _fed(model, values, images, prompt, mmproj, chat, system, patterns)
    found = judge_prompt(fed.on.model, fed.placed, fed.text, names=names, side=side)
    result = found.diff
    words = lambda rows: judged.text(result, found.model, rows)  # noqa: E731
    return Finding(result.verdict, result.first_name, result, bool(result), words, found.dump, found.model)


def _fed(
    model: ModelLike,
    values: str | Path | Mapping[str, Any] | Dump,
    images: Sequence[str | Path | bytes],
    prompt: str,
    mmproj: str | Path | None,
    chat: bool,
    system: str | None,
    patterns: Sequence[str],
) -> _PromptDump:
    on = opened(model)
    read = read_values(values, patterns, lenient=True)
    pictures = _with_their_rows(image_prompts(on, images, mmproj), read)
    text = tuple(obs for obs in read.observations if not of_picture(obs.foreign or obs.name))
    if chat or system is not None:
        turns = [{"role": "system", "content": system}] if system is not None else []
        said: str | list[dict[str, Any]] = [*turns, {"role": "user", "content": prompt}]
    else:
        said = prompt
    return _PromptDump(on, placed_by(on.tokenizer, said, pictures, on.template), replace(read, observations=text))


def image_prompts(
    on: Opened, images: Sequence[str | Path | bytes], mmproj: str | Path | None = None
) -> list[ImagePrompt]:
    """The definition's rows and markers of pictures, by the tower beside the model."""
    path = Path(mmproj) if mmproj is not None else on.options.mmproj or projector_beside(on.file.path)
    if not Path(path).is_file():
        raise AssayError(f"{path}: no such file; name the mmproj file with --mmproj FILE")
    projector = open_projector(path, "reference")
    wanted = (1 + on.model.hparams.n_deepstack) * on.model.hparams.n_embd
    if projector.tower.width != wanted:
        raise AssayError(
            f"{path}: does not fit the model (found rows of {projector.tower.width} numbers, expected {wanted}); use "
            "the mmproj file that was made for it"
        )
    return encode_pictures(projector, [picture_bytes(image) for image in images])


def _with_their_rows(pictures: Sequence[ImagePrompt], dump: Dump) -> list[ImagePrompt]:
    """The pictures with the rows of a dump, where it has them: what went wrong before them is judged without -p."""
    theirs = rows_of_images(dump)
    right = [piece.rows for picture in pictures for piece in picture.pieces if isinstance(piece, ImageRows)]
    for j, rows in theirs.items():
        if j < len(right) and rows.shape != right[j].shape:
            raise AssayError(
                f"{dump.source}: embd_{j}: not the rows of image {j} (found shape {list(rows.shape)}, "
                f"expected {list(right[j].shape)}); leave out -p to judge what the engine made of the picture"
            )
    return with_rows(pictures, [theirs.get(j, rows) for j, rows in enumerate(right)])


def with_rows(pictures: Sequence[ImagePrompt], rows: Iterable[NDArray[Any]]) -> list[ImagePrompt]:
    """The same pictures with other rows, one array for each image in order."""
    rest = iter(rows)
    return [
        ImagePrompt(
            tuple(
                replace(piece, rows=next(rest).astype(np.float32)) if isinstance(piece, ImageRows) else piece
                for piece in picture.pieces
            )
        )
        for picture in pictures
    ]
