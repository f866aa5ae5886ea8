"""The images of a dump on the tower: each on the dump's own pixels, judged node by node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.models.vision.picture_inputs import picture_inputs
from assay.models.vision.tower import Tower
from assay.verify.faults.vision import plant_tower
from assay.verify.judge.arithmetic import ARITHMETICS, SimulatedArithmetic
from assay.verify.judge.compare_nodes import NodeVerdict
from assay.verify.pictures.direct_evidence import misshapen
from assay.verify.pictures.picture_dump import in_layout
from assay.verify.pictures.picture_question import PictureQuestion, Place, place_label
from assay.verify.pictures.tower_trials import ImageTrials

Array = NDArray[Any]


def dumped_images(question: PictureQuestion, found: dict[int, Array], notes: list[str]) -> dict[int, ImageTrials]:
    """The images whose nodes were dumped, on the dump's own pixels where it has them."""
    trials: dict[int, ImageTrials] = {}
    tower, prepared = question.tower, question.prepared
    keys = tower.keys
    for j, nodes in sorted(question.dump.nodes.items()):
        if j >= len(prepared.images):
            notes.append(f"image {j}: this picture makes {len(prepared.images)} images; it is left out")
            continue
        image = prepared.images[j]
        size, own = image.image.size, found.get(j)
        used = image.pixels
        if own is not None and own.shape == used.shape and own.dtype != np.uint8:
            used = own.astype(np.float32)
        elif own is not None and own.shape != used.shape:
            size, used = (own.shape[2], own.shape[1]), own.astype(np.float32)
            if own.dtype == np.uint8 or size[0] % keys.patch or size[1] % keys.patch:
                continue
        base = plant_tower(tower, size, used)
        assert base is not None
        wanted = [name for name in nodes if name in tower.graph]
        deep = [n.name for n in tower.graph if n.name.startswith("deepstack_")]
        values = interpret(tower.graph, question.weights, base.given, {*wanted, *deep})
        shapes = {name: value.shape for name, value in values.items()}
        laid = in_layout(
            {name: nodes[name] for name in wanted},
            shapes,
            keys,
            picture_inputs(keys, size, tower.table_rows).order,
        )
        kept = _in_windows(tower, laid.values, values, size, notes)
        trials[j] = ImageTrials(tower, question.weights, size, used, base, kept, laid.misshapen, question.dump.source)
    return trials


def _in_windows(
    tower: Tower, found: dict[str, Array], right: dict[str, Array], size: tuple[int, int], notes: list[str]
) -> dict[str, Array]:
    """qwen2.5vl: an engine may leave the patches in the order of blocks and only mask between windows."""
    inputs = picture_inputs(tower.keys, size, tower.table_rows)
    raster = inputs.values.get("inp_raster")
    if raster is None:
        return found
    tokens = np.argsort(raster[:, 0])  # the tokens in the order of windows
    orders = {4 * len(tokens): (tokens[:, None] * 4 + np.arange(4)).reshape(-1), len(tokens): tokens}
    moved = {}
    votes = 0.0
    for name, value in found.items():
        order = orders.get(len(value)) if name != tower.graph.output else None
        if order is None:
            continue
        moved[name] = np.ascontiguousarray(value[order])
        a, b = (float(np.mean((x.astype(np.float64) - right[name]) ** 2)) for x in (value, moved[name]))
        votes += np.sign(a - b) if np.isfinite(a + b) else 0
    if votes <= 0 or len(moved) < 2:
        return found
    notes.append("the patches are in the order of 2×2 blocks and not of windows, which is no fault")
    return {**found, **moved}


def judged_images(
    question: PictureQuestion, trials: dict[int, ImageTrials], nodes: list[NodeVerdict], notes: list[str]
) -> tuple[SimulatedArithmetic, list[Place]]:
    """The judge's verdicts of all images, the coarsest arithmetic among them, and the nodes that are wrong."""
    arithmetic, wrong = 0, list[Place]()
    for j, trial in trials.items():
        question.say(f"image {j}: comparing with the definition")
        for name, value in trial.misshapen.items():
            nodes.append(misshapen(place_label((j, name)), value))
            wrong.append((j, name))
        if trial.diff is None:
            continue
        arithmetic = max(arithmetic, ARITHMETICS.index(trial.diff.arithmetic))
        for n in trial.diff.nodes:
            nodes.append(
                replace(n, name=place_label((j, n.name)), evidence=replace(n.evidence, name=place_label((j, n.name))))
            )
            if n.verdict == "wrong" and n.own is not False:
                wrong.append((j, n.name))
        notes.extend(note for note in trial.diff.notes if note not in notes)
    order = question.tower.graph.order
    wrong.sort(key=lambda place: (place[0], order[place[1]]))
    return ARITHMETICS[arithmetic], wrong
