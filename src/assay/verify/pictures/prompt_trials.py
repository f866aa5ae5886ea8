"""A prompt with pictures, judged by its logits: the definition's run, and the mistakes of the prompt tried one by one.

The graph that takes given rows (`models/pictures.py`) reads all that a mistake can change as values: rows, which
slots are text, the last slot that each token sees, positions t, y, x. Touch this when a prompt is fed in a new way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, PictureRows, pages_for
from assay.engines.plan.given_rows import with_pictures
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Graph
from assay.models import Model
from assay.models.arch_keys import ArchKeys
from assay.models.pictures import PictureForm, pictured, rope_axes
from assay.runtime.image_places import Images, rows_in_chunk
from assay.verify.diagnosis.candidates import described
from assay.verify.diagnosis.fault_trials import ObservationFit, grown_noise
from assay.verify.diagnosis.posterior import gained, posterior
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.faults.vision.prompt_edits import PROMPT_PLANTS, RIGHT_PROMPT, PromptHabits
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.evidence import deviation, ratios
from assay.verify.judge.noise import Level
from assay.verify.judge.run_inputs import RunInputs
from assay.verify.judge.verdict import judge
from assay.verify.thresholds import ACCEPT, GAIN, RUN, TIE

Array = NDArray[Any]
Placed = Callable[[bool], tuple[tuple[int, ...], Images]]  # the prompt's ids and pictures, with or without markers
ROPE = "inp_rope_pos"
_UNITS = np.array([a.unit for a in ARITHMETICS])


@dataclass(frozen=True)
class FedPrompt:
    """A prompt as the graph reads it."""

    graph: Graph
    given: dict[str, Array]
    tokens: tuple[int, ...]


def fed_prompt(model: Model, placed: Placed, habits: PromptHabits = RIGHT_PROMPT) -> FedPrompt | None:
    """The run of a prompt with these habits; None where they change nothing for this model."""
    ids, images = placed(not habits.no_markers)
    if habits.no_markers and ids == placed(True)[0]:
        return None
    hp, n = model.hparams, len(ids)
    rows = rows_in_chunk(images, 0, n, bool(hp.axes))
    turning = habits.one_number or habits.exchanged or habits.other_sections or habits.advance == "tokens"
    if rows is None or (turning and not hp.axes) or (habits.late and not hp.n_deepstack):
        return None
    axes, parts = hp.axes, hp.n_deepstack
    if habits.other_sections:
        axes = _other_axes(model)
        if axes == hp.axes:
            return None
    if habits.scaled:
        whole = rows.rows.copy()
        whole[:, : hp.n_embd] *= np.float32(np.sqrt(hp.n_embd))
        rows = replace(rows, rows=whole)
    if habits.other_mask:
        rows = replace(rows, last=_other_last(images, rows, n))
    if habits.late:
        zeros = np.zeros((len(rows.rows), hp.n_embd), rows.rows.dtype)
        rows = replace(rows, rows=np.concatenate([rows.rows[:, : hp.n_embd], zeros, rows.rows[:, hp.n_embd :]], 1))
        parts += 1
        if parts >= hp.n_layer + 1:
            return None
    if rows.positions is not None:
        rows = replace(rows, positions=_positions(rows.positions, images, habits))
    form = PictureForm(parts, rows.last is not None, axes)
    tokens = np.array([max(token, 0) for token in ids], np.int32)
    pages = np.arange(pages_for(n), dtype=np.int32)
    chunk = with_pictures(Chunk(tokens, 0, pages, "all", pictures=rows), form, hp.n_embd, np.dtype(np.float64))
    graph, at = pictured(model.graph, form), np.arange(n)
    given = {"inp_tokens": tokens.astype(np.int64), "inp_pos": at, "inp_kpos": at, **chunk.rows}
    if habits.advance == "one" and not hp.axes:
        moved = _after_one(at, images)
        if habits.masked:
            given |= {"inp_pos": moved, "inp_kpos": moved}
        else:
            graph = _with_other_rope(graph)
            given[ROPE] = moved
    elif habits.masked:
        return None
    return FedPrompt(graph, given, tuple(int(t) for t in tokens))


def _with_other_rope(graph: Graph) -> Graph:
    """The graph whose rotations read positions of their own."""
    found = graph.rewrite(
        lambda node: (
            replace(node, inputs=tuple(ROPE if i == "inp_pos" else i for i in node.inputs))
            if node.op == "rope"
            else None
        )
    )
    return replace(found, given={**graph.given, ROPE: ("T",)})


def _other_axes(model: Model) -> tuple[int, ...]:
    hp = model.hparams
    meta = ArchKeys(model.file.metadata, hp.arch, str(model.file.path))
    both = [rope_axes(meta, len(hp.axes), interleaved)[0] for interleaved in (False, True)]
    return next((axes for axes in both if axes != hp.axes), hp.axes)


def _other_last(images: Images, rows: PictureRows, n: int) -> NDArray[np.int32] | None:
    if rows.last is not None:
        return None
    last = np.arange(n, dtype=np.int32)
    for p in images:
        last[p.start : p.end] = p.end - 1
    return last


def _positions(right: Array, images: Images, habits: PromptHabits) -> NDArray[np.int32]:
    found = right.astype(np.int32).copy()
    for p in images:
        start, n = int(found[p.start, 0]), p.end - p.start
        steps = {"tokens": n, "one": 1}.get(habits.advance)
        if steps is not None and p.end < len(found):
            found[p.end :] += start + steps - found[p.end, 0]
        if habits.one_number:
            found[p.start : p.end] = (start + np.arange(n))[:, None]
        if habits.exchanged:
            found[p.start : p.end] = found[p.start : p.end][:, [0, 2, 1]]
    return found


def _after_one(at: Array, images: Images) -> NDArray[np.int64]:
    found = at.astype(np.int64).copy()
    for p in images:
        found[p.end :] -= p.end - p.start - 1
    return found


def diagnose_prompt(model: Model, placed: Placed, logits: Array, source: str) -> tuple[Diff, list[Cause], bool]:
    """The verdict on the logits of a prompt's last token, the mistakes that give them, and whether they are open."""
    right = fed_prompt(model, placed)
    assert right is not None
    n, weights = len(right.tokens), Weights(model.file)
    here = replace(model, graph=right.graph)
    seen = np.asarray(logits).reshape(-1, int(right.graph.shapes[right.graph.output][-1]))[-1:]
    obs = Observation(right.graph.output, "values", seen, rows=(n - 1, n), shape=seen.shape, foreign="logits")
    dump = Dump("", right.tokens, tuple(range(n)), (n,), (obs,), source)
    inputs = RunInputs(here, right.tokens, tuple(range(n)), right.given, np.zeros((n, n), bool))
    diff = judge(here, dump, cache=False, inputs=inputs)
    node = diff.nodes[0]
    e = node.evidence
    level = Level(e.noise_local.rms[:, -1:], e.noise_local.top[:, -1:])
    whole = replace(obs, rows=None)
    base = interpret(right.graph, weights, right.given, [right.graph.output])[right.graph.output][-1:]

    def fit(value: Array) -> tuple[Array, float]:
        with np.errstate(all="ignore"):
            error, expected = deviation(whole, value, 0, 0, None)
            noise = grown_noise(value, base, 0, level, _UNITS)
            found = ratios(whole, error, expected, value, 0, noise, RUN)
        return found, float(np.sum(error**2) / (np.sum(seen.astype(np.float64) ** 2) + 1e-300))

    before = fit(base)
    if before[0][0] <= 1:
        return diff, [], False
    tried = []
    for fault, variants in PROMPT_PLANTS.items():
        for label, habits in variants:
            made = fed_prompt(model, placed, habits)
            if made is not None:
                value = interpret(made.graph, weights, made.given, [made.graph.output])[made.graph.output][-1:]
                tried.append((fault, label, *fit(value)))
    wrong = node.verdict == "wrong"
    kinds: Sequence[int] = range(len(ARITHMETICS)) if wrong else [0]  # noise: only what is exact to float32 counts
    for kind in kinds:
        good = [t for t in tried if t[2][kind] <= (ACCEPT if wrong else 1) and t[3] <= GAIN * before[1]]
        if good:
            good.sort(key=lambda t: t[3])
            best = good[0]
            limit = max(1.0, TIE * float(best[2][kind]))
            tied = tuple(dict.fromkeys(t[0] for t in good if t[0] != best[0] and t[2][kind] <= limit))
            a, b = (ObservationFit(float(x[0][kind]), x[1], seen.size) for x in (before, (best[2], best[3])))
            sure = posterior(gained(described(a, b), len(tried), False), rivals=len(tied))
            cause = Cause(best[0], "result_output", best[1], ("result_output",), sure, 1 - b.residual / a.residual,
                          tied, a.ratio, b.ratio)  # fmt: skip
            return diff, [cause], False
    return diff, [], wrong
