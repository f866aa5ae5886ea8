"""The mistake in a run of a prompt with its pictures: in the placement of the rows, or in the language model.

The dump is of the language model's run: logits, layers, any node, or a printed log. The definition is run on the same
rows. Mistakes of the prompt are tried first, each as a run from the rows on; one that explains the wrong nodes is the
cause. Otherwise the search is that of a prompt without pictures. Touch this to change which of them comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.models import Model
from assay.runtime.image_places import Images, without_rows
from assay.verify.diagnosis import diagnose_dump
from assay.verify.diagnosis.by_feeds import cause_of, comparable
from assay.verify.diagnosis.fault_trials import FaultTrials, ObservationFit, Terms
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.dumps.observation import Dump, token_axis
from assay.verify.dumps.resolve import resolve
from assay.verify.faults.vision.prompt_edits import PROMPT_PLANTS, RIGHT_PROMPT, PromptHabits
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.judge.run_inputs import run_inputs
from assay.verify.judge.verdict import decide, judge
from assay.verify.pictures.prompt_trials import FedPrompt, Placed, fed_prompt
from assay.verify.thresholds import GAIN, TIE

Array = NDArray[Any]
Fits = Mapping[str, ObservationFit]
BARE = PromptHabits(no_markers=True)
LOGITS_ALONE = "the logits alone do not tell where: dump l_out-N of every layer, or embd, what the first layer reads"


@dataclass(frozen=True)
class JudgedPrompt:
    """A dump of a prompt with pictures: its values by node, the model whose graph takes the rows, the verdicts."""

    model: Model
    dump: Dump
    diff: Diff
    bare: bool  # the dump has the rows of a prompt without markers


def judge_prompt(
    model: Model,
    placed: Placed,
    dump: Dump,
    *,
    names: Mapping[str, str] | None = None,
    side: str = "",
) -> JudgedPrompt:
    """Compare a dump, as it was read, with the definition's run of the prompt."""
    right, bare = fed_prompt(model, placed), fed_prompt(model, placed, BARE)
    assert right is not None
    is_bare = bare is not None and _is_bare(dump, placed, right, bare)
    fed = bare if is_bare and bare is not None else right
    here = replace(model, graph=fed.graph)
    _check_ids(dump, placed(not is_bare))
    n = len(fed.tokens)
    steps = dump.steps if sum(dump.steps) == n else (n,)
    whole = replace(dump, tokens=fed.tokens, positions=tuple(range(n)), steps=steps, given=fed.rows, later=())
    if dump.later:
        whole = replace(whole, notes=(*whole.notes, "the steps behind a prompt with pictures are not read"))
    found = resolve(whole, here, names, side=side)
    return JudgedPrompt(here, found, judge(here, found, cache=False), is_bare)


def _is_bare(dump: Dump, placed: Placed, right: FedPrompt, bare: FedPrompt) -> bool:
    """Is the dump of the prompt without markers? Its ids say so, else the rows of its arrays."""
    if dump.tokens:
        ids, images = placed(False)
        return len(dump.tokens) != len(right.tokens) and _agrees(dump.tokens, ids, images)
    counts = {size for obs in dump.observations if obs.kind == "values" for size in np.shape(obs.array())[:-1]}
    return len(bare.tokens) in counts and len(right.tokens) not in counts


def _agrees(found: Sequence[int], ids: Sequence[int], images: Images) -> bool:
    """Whether ids of a dump are those of the prompt; at the rows of pictures they may be any, or none."""
    if len(found) == len(ids):
        return without_rows(found, images) == without_rows(ids, images)
    return list(found) == without_rows(ids, images)


def _check_ids(dump: Dump, prompt: tuple[tuple[int, ...], Images]) -> None:
    ids, images = prompt
    if dump.tokens and not _agrees(dump.tokens, ids, images):
        rows = sum(p.end - p.start for p in images)
        raise AssayError(
            f"{dump.source}: other tokens than those of -p (found {len(dump.tokens)}: {list(dump.tokens)[:12]}, "
            f"expected {without_rows(ids, images)[:12]} and {rows} rows of pictures); give the text that the engine "
            "was given, with <__media__> where the picture goes"
        )


def diagnose_prompt(
    model: Model,
    placed: Placed,
    dump: Dump,
    *,
    names: Mapping[str, str] | None = None,
    side: str = "",
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Diagnosis, JudgedPrompt]:
    """The mistake of the prompt or of the language model that gives the dump's values."""
    judged = judge_prompt(model, placed, dump, names=names, side=side)
    with np.errstate(all="ignore"):
        cause = _by_markers(judged) or _by_prompt(model, placed, judged, say)
    if cause is not None:
        wrong = tuple(n.name for n in judged.diff.nodes if n.verdict == "wrong" and n.own is not False) or (cause.node,)
        found = Diagnosis("fault", wrong[0], wrong, (cause,), "", notes=judged.diff.notes, diff=judged.diff)
        return found, judged
    found = diagnose_dump.diagnose(judged.model, judged.dump, seconds=seconds, progress=say, cache=False)
    if found.verdict == "unexplained" and not found.next_observation:
        found = replace(found, next_observation=LOGITS_ALONE)
    return found, judged


def _by_markers(judged: JudgedPrompt) -> Cause | None:
    """The number of rows shows that the markers are missing."""
    if not judged.bare:
        return None
    label, node = PROMPT_PLANTS["vis-lm-markers"][0][0], "inp_tokens"
    return Cause("vis-lm-markers", node, label, (node,), 0.99, 1.0, (), np.inf, 0.0)


def _by_prompt(model: Model, placed: Placed, judged: JudgedPrompt, say: Callable[[str], None]) -> Cause | None:
    """The mistake of the prompt that explains the nodes which are wrong, or louder than float32's noise."""
    diff = judged.diff
    wrong = [n for n in diff.nodes if n.verdict == "wrong"]
    if not wrong:  # what a coarse arithmetic would excuse must be explained to float32's noise
        exact = ARITHMETICS[0]
        dump = judged.dump
        inputs = run_inputs(judged.model, dump.tokens, dump.positions, dump.given)
        nodes = tuple(decide(inputs, dump, [n.evidence for n in diff.nodes], exact))
        diff = replace(diff, arithmetic=exact, nodes=nodes)
        wrong = [n for n in diff.nodes if n.verdict == "wrong"]
    strict = diff is not judged.diff
    weights = Weights(model.file)
    terms = replace(Terms.of(diff, subtle=strict), carried=True)
    trials = FaultTrials(judged.model, judged.dump, diff, weights, terms)
    names = comparable(trials, diff)
    wrong = [n for n in wrong if n.name in names]
    if not wrong:
        return None
    say("trying mistakes of the prompt")
    return _best(trials, list(_tries(model, placed, trials, names, weights)), wrong)


def _tries(
    model: Model, placed: Placed, trials: FaultTrials, names: Sequence[str], weights: Weights
) -> list[tuple[str, str, Fits]]:
    """Every way to feed the prompt, the right one first, and how it fits the observations."""
    found: list[tuple[str, str, Fits]] = []
    right = interpret(trials.graph, weights, trials.given, names)
    plants = [("", "", RIGHT_PROMPT), *((f, label, h) for f, rows in PROMPT_PLANTS.items() for label, h in rows)]
    for fault, label, habits in plants:
        made = fed_prompt(model, placed, habits)
        if made is None:
            continue
        values = right
        if fault:
            values = interpret(made.graph, weights, made.given, [name for name in names if name in made.graph])
        fits = {
            name: trials.compare(name, _ends_alike(value, right[name], token_axis(trials.graph, name)), own=right[name])
            for name, value in values.items()
        }
        found.append((fault, label, fits))
    return found


def _ends_alike(value: Array, right: Array, axis: int) -> Array:
    """A shorter run's rows as the last ones of the right run; the rows before them are the right run's."""
    missing = right.shape[axis] - value.shape[axis]
    if missing <= 0 or right.ndim != 2:
        return value
    return np.concatenate([right[:missing], value])


def _best(trials: FaultTrials, tried: Sequence[tuple[str, str, Fits]], wrong: Sequence[NodeVerdict]) -> Cause | None:
    """The mistake that leaves least, under the strictest arithmetic that lets one explain the wrong nodes."""
    (_, _, plain), *others = tried
    first = wrong[0].name
    for kind in range(len(ARITHMETICS)) if trials.terms.open else [trials.terms.arithmetic]:
        good = []
        for fault, label, every in others:
            fits = {name: _under(fit, kind, trials.terms) for name, fit in every.items()}
            if all(n.name in fits for n in wrong) and fits[first].residual <= GAIN * plain[first].residual:
                cause = cause_of(trials, fault, label, plain, fits, wrong, len(others))
                if cause is not None:
                    good.append((fits[first].residual, fits[first].ratio, fault, label, fits))
        if good:
            good.sort(key=lambda row: row[0])
            _, ratio, fault, label, fits = good[0]
            limit = max(1.0, TIE * ratio)
            same = tuple(dict.fromkeys(row[2] for row in good if row[2] != fault and row[1] <= limit))
            return cause_of(trials, fault, label, plain, fits, wrong, len(others), same)
    return None


def _under(fit: ObservationFit, kind: int, terms: Terms) -> ObservationFit:
    """The fit under another arithmetic, where the arithmetic is open."""
    return replace(fit, ratio=fit.every[kind]) if terms.open and fit.every else fit
