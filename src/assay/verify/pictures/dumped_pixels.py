"""The pixels of a dump: laid out, judged, and the mistakes that they show.

Pixels come before the tower, so their mistakes are named on their own (`pixel_verdict`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.models.vision.picture_inputs import picture_inputs
from assay.verify.diagnosis.posterior import gained, posterior
from assay.verify.diagnosis.result import Cause
from assay.verify.judge.compare_nodes import NodeVerdict
from assay.verify.pictures.direct_evidence import direct_evidence
from assay.verify.pictures.picture_dump import PictureDump, any_planes, planes
from assay.verify.pictures.picture_question import PictureQuestion, usual_note
from assay.verify.pictures.pixel_verdict import PixelVerdict, judge_pixels

Array = NDArray[Any]


@dataclass(frozen=True)
class DumpedPixels:
    """The pixels of each image as [channel, row, column], the verdict, and what follows from it."""

    found: dict[int, Array]
    verdict: PixelVerdict | None = None
    node: NodeVerdict | None = None
    causes: tuple[Cause, ...] = ()
    usual: tuple[str, ...] = ()  # faults that the trained model has, too
    notes: tuple[str, ...] = ()


def dumped_pixels(question: PictureQuestion) -> DumpedPixels:
    """Everything that the pixels of a dump tell."""
    notes: list[str] = []
    found = _found(question, notes)
    if not found:
        return DumpedPixels({}, notes=tuple(notes))
    question.say("judging the pixels")
    verdict = judge_pixels(question.tower, question.picture, found)
    node = _node(question, verdict, found, notes)
    causes, usual = _causes(question, verdict, notes)
    return DumpedPixels(found, verdict, node, tuple(causes), tuple(usual), tuple(notes))


def _found(question: PictureQuestion, notes: list[str]) -> dict[int, Array]:
    """The arrays that are pixels, by image."""
    found: dict[int, Array] = {}
    keys, prepared = question.tower.keys, question.prepared
    for j, value in _images(question.dump):
        image = prepared.images[j] if j < len(prepared.images) else None
        size = image.image.size if image is not None else (0, 0)
        laid = None
        if image is not None:
            laid = planes(value, keys, size, picture_inputs(keys, size, question.tower.table_rows))
        laid = any_planes(np.asarray(value)) if laid is None else laid
        if laid is None:
            notes.append(f"pixels_{j}: not pixels of an image (found shape {list(np.shape(value))})")
        else:
            found[j] = laid
    if found and keys.projector == "gemma4v" and found[min(found)].dtype != np.uint8:
        found = {j: _before_doubling(question, j, x) for j, x in found.items()}
    return found


def _images(dump: PictureDump) -> Iterator[tuple[int, Array]]:
    """The dumped pixels by image; several images may be stacked in one array."""
    for j, value in dump.pixels.items():
        value = np.asarray(value)
        if value.ndim == 4 and len(value) > 1:
            yield from enumerate(value, j)
        else:
            yield j, value


def _before_doubling(question: PictureQuestion, j: int, found: Array) -> Array:
    """gemma4v: an engine may dump 2v − 1, which the graph makes of v."""
    right = question.prepared.images[j].pixels if j < len(question.prepared.images) else None
    if right is None or right.shape != found.shape:
        return found
    plain = (found + 1) / 2
    nearer = np.abs(plain - right).mean() < 0.5 * np.abs(found - right).mean()
    return plain.astype(np.float32) if nearer else found


def _node(question: PictureQuestion, verdict: PixelVerdict, found: dict[int, Array], notes: list[str]) -> NodeVerdict:
    j = verdict.worst
    made = found[j]
    right: Array = question.prepared.images[j].pixels if j < len(question.prepared.images) else np.zeros((3, 1, 1))
    name = f"pixels_{j}"
    state: Any = "same" if verdict.distance.same else "noise" if verdict.right else "wrong"
    if made.dtype == np.uint8 and j < len(question.prepared.images):
        right = question.prepared.images[j].padded.transpose(2, 0, 1)
    evidence = direct_evidence(name, made.astype(np.float64), right.astype(np.float64))
    if state == "noise":
        notes.append(
            "the pixels differ by at most one step of a byte: the resize rounds in another way, which is no fault"
        )
    return NodeVerdict(
        name, state, True if state == "wrong" else None, "resize in floats" if state == "noise" else None, evidence
    )


def _causes(question: PictureQuestion, verdict: PixelVerdict, notes: list[str]) -> tuple[list[Cause], list[str]]:
    if not verdict.faults:
        return [], []
    best = verdict.faults[0]
    causes, usual = list[Cause](), list[str]()
    for fault, variant in best.mistakes:
        if question.usual(variant):
            usual += [fault] if fault else []
            notes.append(usual_note(fault, variant))
            continue
        bits = 64 * np.log2(max(verdict.distance.rms, 1.0) / max(best.left.rms, 0.01) + 1) / 2
        rivals = len(best.tied)
        sure = posterior(gained(float(bits), verdict.tried, False), rivals=rivals)
        node = f"pixels_{verdict.worst}"
        causes.append(
            Cause(
                fault, node, variant.label, (node,), sure, 1 - (best.left.rms / verdict.distance.rms) ** 2,
                best.tied, verdict.distance.largest, best.left.largest, facts=question.facts,
            )
        )  # fmt: skip
    return causes, usual
