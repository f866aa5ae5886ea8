"""The mistake in an engine's picture: from its pixels, its tower's nodes or its rows to the mistake.

Pixels are judged first, where the dump has them. The tower is then judged on the dump's own pixels, so that a mistake
before the tower is not blamed on it. Every mistake is tried on the wrong nodes; one that explains them to the noise of
an arithmetic and contradicts no right node is the cause. Behaviours of llama.cpp and of the trained model are both
documented and healthy. Touch this to change the order of the search, or what is called healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.models.vision.tower import Tower
from assay.verify.diagnosis.result import Answer, Cause, Diagnosis
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.pictures.dumped_images import dumped_images, judged_images
from assay.verify.pictures.dumped_pixels import dumped_pixels
from assay.verify.pictures.mistake_search import MistakeSearch
from assay.verify.pictures.picture_dump import PictureDump
from assay.verify.pictures.picture_question import PictureQuestion, Place, place_label
from assay.verify.pictures.pixel_verdict import PixelVerdict
from assay.vision.resize import Bytes

Array = NDArray[Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class PictureDiagnosis:
    """The answer, and what a report draws: the definition's pixels and the dump's."""

    diagnosis: Diagnosis
    diff: Diff
    pixels: PixelVerdict | None
    expected: tuple[Array, ...] = ()
    found: dict[int, Array] = field(default_factory=dict)
    usual: tuple[str, ...] = ()  # mistakes that the trained model makes too: they are no faults here


def diagnose_picture(
    tower: Tower, picture: Bytes, dump: PictureDump, *, seconds: float = np.inf, say: Progress = lambda text: None
) -> PictureDiagnosis:
    """The whole search. `picture` is the decoded picture [row, column, RGB]; a dump may have its own."""
    own = picture if dump.decoded is None else _rgb(dump.decoded, picture)
    with np.errstate(all="ignore"):
        return _diagnosed(PictureQuestion(tower, own, dump, monotonic() + seconds, say))


def _rgb(decoded: Array, picture: Bytes) -> Bytes:
    return decoded if decoded.ndim == 3 and decoded.shape[2] == 3 and decoded.size else picture


def _diagnosed(question: PictureQuestion) -> PictureDiagnosis:
    pixels = dumped_pixels(question)
    notes = [*question.dump.notes, *pixels.notes]
    nodes = [] if pixels.node is None else [pixels.node]
    causes, unexplained = [*pixels.causes], list[str]()
    if pixels.verdict is not None and pixels.node is not None and not (pixels.verdict.right or pixels.verdict.faults):
        unexplained.append(pixels.node.name)
    search = MistakeSearch(question, dumped_images(question, pixels.found, notes))
    arithmetic, wrong = ARITHMETICS[0], list[Place]()
    if search.trials:
        arithmetic, wrong = judged_images(question, search.trials, nodes, notes)
        more, left = search.causes(wrong)
        causes += more
        unexplained += [place_label(place) for place in left]
    usual = (*pixels.usual, *search.usual)
    notes += search.notes
    verdict: Answer = "fault" if causes else "unexplained" if unexplained else "healthy"
    names = [n.name for n in nodes if n.verdict == "wrong" and n.own is not False]
    if verdict == "healthy" and (usual or not names):
        nodes = [replace(n, verdict="noise", own=None) if n.verdict == "wrong" else n for n in nodes]
    if verdict == "healthy" and not usual and arithmetic is not ARITHMETICS[0] and _noisy(nodes):
        notes.append(f"deviations are the noise of {arithmetic.name}")
    if search.cut:
        notes.append("the time was up before every mistake was tried; --seconds gives more")
    diff = Diff(
        f"{question.tower.file.path.name}@definition", question.dump.source, arithmetic, tuple(nodes),
        tuple(question.dump.unmatched), tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    first = None if verdict == "healthy" else (names[0] if names else causes[0].node)
    said = Diagnosis(
        verdict, first, tuple(names) if verdict != "healthy" else (), tuple(causes),
        _next(question.dump, verdict, causes), tuple(unexplained), notes=diff.notes, diff=diff,
    )  # fmt: skip
    right = tuple(image.pixels for image in question.prepared.images)
    return PictureDiagnosis(said, diff, pixels.verdict, right, pixels.found, usual)


def _noisy(nodes: Sequence[NodeVerdict]) -> bool:
    return any(n.verdict == "noise" for n in nodes)


def _next(dump: PictureDump, verdict: str, causes: Sequence[Cause]) -> str:
    sure = bool(causes) and all(not c.equivalent for c in causes)
    if verdict == "healthy" or sure:
        return ""
    if not dump.pixels:
        return "dump pixels_0, the array that the tower reads: it tells mistakes before the tower from those inside"
    return "dump layer_out-N of every layer, or every node: `assay inspect MMPROJ --graph` lists their names"
