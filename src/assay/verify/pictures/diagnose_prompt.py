"""The mistake in a run of a prompt with its pictures: in the placement of the rows, or in the language model.

The dump is of the language model's run: logits, layers, any node, or a printed log. The definition is run on the same
rows. Mistakes of the prompt are tried first, each as a run from the rows on; one that explains the wrong nodes is the
cause. Otherwise the search is that of a prompt without pictures. Touch this to change which of them comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

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
from assay.verify.pictures.dumped_answer import AnsweredDump, with_answer
from assay.verify.pictures.prompt_trials import Placed, fed_prompt
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
    read: AnsweredDump


def judge_prompt(
    model: Model,
    placed: Placed,
    dump: Dump,
    *,
    names: Mapping[str, str] | None = None,
    side: str = "",
) -> JudgedPrompt:
    """Compare a dump, as it was read, with the definition's run of the prompt and of the answer behind it."""
    read, is_bare = _read(model, placed, dump)
    fed = fed_prompt(model, read.placed, BARE if is_bare else RIGHT_PROMPT, read.answered)
    assert fed is not None
    here = replace(model, graph=fed.graph)
    total, dump = len(fed.tokens), read.dump
    n = total - read.answered
    steps = dump.steps if sum(dump.steps) == total else (n, *(1 for _ in range(read.answered)))
    if dump.later:  # `resolve` reads the prompt first, then each step
        total, steps = n, (n,)
    whole = replace(dump, tokens=fed.tokens[:total], positions=tuple(range(total)), steps=steps, given=fed.rows)
    found = resolve(whole, here, names, side=side)
    return JudgedPrompt(here, found, judge(here, found, cache=False), is_bare, read)


def _read(model: Model, placed: Placed, dump: Dump) -> tuple[AnsweredDump, bool]:
    """The dump with the answer behind its prompt, and whether it is of the prompt without markers."""
    right, bare = with_answer(dump, placed, markers=True), with_answer(dump, placed, markers=False)
    if right is None and bare is None:
        _refuse_ids(dump, *placed(True))
    if right is None or bare is None or fed_prompt(model, placed, BARE) is None:
        found = right or bare
        assert found is not None
        return found, right is None
    if dump.tokens:
        return right, False
    counts = {size for obs in dump.observations if obs.kind == "values" for size in np.shape(obs.array())[:-1]}
    is_bare = len(placed(False)[0]) in counts and len(placed(True)[0]) not in counts
    return (bare if is_bare else right), is_bare


def _refuse_ids(dump: Dump, ids: Sequence[int], images: Images) -> NoReturn:
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
        cause = _by_markers(judged) or _by_prompt(model, judged, say)
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


def _by_prompt(model: Model, judged: JudgedPrompt, say: Callable[[str], None]) -> Cause | None:
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
    return _best(trials, list(_tries(model, judged.read, trials, names, weights)), wrong)


def _tries(
    model: Model, read: AnsweredDump, trials: FaultTrials, names: Sequence[str], weights: Weights
) -> list[tuple[str, str, Fits]]:
    """Every way to feed the prompt, the right one first, and how it fits the observations."""
    found: list[tuple[str, str, Fits]] = []
    right = interpret(trials.graph, weights, trials.given, names)
    plants = [("", "", RIGHT_PROMPT), *((f, label, h) for f, rows in PROMPT_PLANTS.items() for label, h in rows)]
    for fault, label, habits in plants:
        made = fed_prompt(model, read.placed, habits, read.answered)
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
