"""Naming the mistake: which operation is wrong, which known mistake gives these very values, what would be right.

`judge` finds the nodes that are wrong on their own inputs. At each, the faults of the catalogue are tried on the dump's
own values. A fault explains a node when the rest is the noise of the engine's arithmetic. A fault that explains the
node is then compared with the other wrong nodes, and with the right ones: a fault that would have shown elsewhere did
not happen. Nodes that are still wrong have another fault, and the search continues with them.

Touch this module to change the order of the searches. The searches themselves are in the modules beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from assay.engines.reference.blas import one_thread
from assay.engines.reference.weights import Weights
from assay.graph import Trait
from assay.models import Model
from assay.system import heap
from assay.system.counting import counted
from assay.system.stages import note
from assay.verify.diagnosis.by_calls import other_calls, right_in_the_prompt
from assay.verify.diagnosis.by_feeds import other_feed
from assay.verify.diagnosis.by_nodes import BENIGN, by_nodes
from assay.verify.diagnosis.by_runs import by_runs
from assay.verify.diagnosis.by_states import by_states, without_states
from assay.verify.diagnosis.candidates import Share
from assay.verify.diagnosis.early_layers import early_part, large
from assay.verify.diagnosis.fault_trials import FaultTrials, Terms
from assay.verify.diagnosis.found_states import left_in_states, settled_by, strange_state
from assay.verify.diagnosis.likelihood import SmallEvidence, small_fault
from assay.verify.diagnosis.native_runs import NEXT, NativeRuns, by_native_runs
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.time_budget import TimeBudget, TimeIsUp
from assay.verify.diagnosis.untold_calls import told as told_of_calls
from assay.verify.diagnosis.untold_calls import with_decode_steps
from assay.verify.dumps.draft_tracing import model_of
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.state_rows import with_states_apart
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.judge.known import told
from assay.verify.judge.misreadings import misreadings
from assay.verify.judge.run_inputs import RunInputs, run_inputs
from assay.verify.judge.state_verdicts import in_order
from assay.verify.judge.verdict import decide, judge
from assay.verify.thresholds import (
    A_GUESS,
    ACCEPT,
    CONTRADICTED,
    CUT_SHORT,
    ENOUGH,
    FEEDS_FIRST,
    LOUD,
    SHORT,
    SMALL_FIRST,
)

Progress = Callable[[str], None]

PROMPT_ONLY = (
    "the dump has one call: faults of the recurrent state between calls show from the second call on; "
    "dump two or more decode steps as well"
)
BENEATH = "a fault that moves nothing by more than float32's noise would not show in what was dumped"
SAY_WHICH = "name the node of each print in the log, as `q-0` or `blk.0.attn_q`, or dump whole arrays under such names"
MISREAD = (
    "nothing that was read is right, so the log may have been misread: compare the lines `read …` with what it prints"
)
CHOSEN = ("kv-quantised", "kv-rounded-twice")  # accepted where the cache ends up as Q8_0


def diagnose(
    model: Model,
    dump: Dump,
    *,
    weights: Weights | None = None,
    progress: Progress | None = None,
    cache: bool = True,
    share: Share | None = None,
    seconds: float = math.inf,
) -> Diagnosis:
    """The whole search on a resolved dump. A hypothesis that overflows does not match, so NumPy's warnings are off.

    `share` tries hypotheses on other machines where each is a run of the model (they call `tried_here`). The search
    ends after about `seconds` of computing; a note then says what was not tried.
    """
    note_of_calls, model, budget = _needs_decode(model, dump), model_of(model, dump), TimeBudget(seconds)
    with np.errstate(all="ignore"), one_thread(model.graph), heap.kept():
        found = _diagnose(model, dump, weights or Weights(model.file), progress or note, cache, share, budget)
    found = _contradicted(_accepted(_unsure(found) if budget.cut else found), dump, model)
    found = _unread(_misread(found, dump), dump)
    return replace(found, notes=(*found.notes, *note_of_calls, *budget.untried()))


def _contradicted(found: Diagnosis, dump: Dump, model: Model) -> Diagnosis:
    """Undecided where nothing explains the wrong nodes, and what is computed from each of them is right."""
    if found.verdict not in ("unexplained", "inconclusive") or found.causes or found.diff is None:
        return found
    doubts = misreadings(model.graph, dump, found.diff)
    if not doubts:
        return found
    first, more = doubts[0], len(doubts) - 1
    because = first.text + (f"; {counted(more, 'other node')} in the same way" if more else "")
    return replace(found, verdict="undecided", because=because, next_observation=first.question)


def _misread(found: Diagnosis, dump: Dump) -> Diagnosis:
    """A note where nothing of a log is right and nothing explains it: its values may have been taken for others."""
    if not dump.log or found.verdict not in ("unexplained", "inconclusive") or found.diff is None:
        return found
    if any(n.verdict != "wrong" for n in found.diff.nodes):
        return found
    return replace(found, notes=(MISREAD, *found.notes))


def _unread(found: Diagnosis, dump: Dump) -> Diagnosis:
    """No answer of "healthy" rests on a log of which much was set aside: a fault may be in those prints."""
    if not found or dump.set_aside < CONTRADICTED:
        return found
    because = (
        f"{dump.set_aside:.0%} of what the log prints was not used, because it contradicts the rest of the log; "
        "what was used is right"
    )
    return replace(found, verdict="undecided", because=because, next_observation=SAY_WHICH)


def _unsure(found: Diagnosis) -> Diagnosis:
    """The answer of a search that was cut short: an alternative that was not tried may fit as well."""
    return replace(found, causes=tuple(replace(c, confidence=min(c.confidence, CUT_SHORT)) for c in found.causes))


def _accepted(found: Diagnosis) -> Diagnosis:
    """The verdict is healthy if an eight-bit cache or shifted positions explain all: both are an engine's choice."""
    if found.causes and all(c.fault in BENIGN for c in found.causes) and not found.unexplained:
        notes = tuple(BENIGN[c.fault] for c in found.causes)
        return replace(found, verdict="healthy", first_wrong=None, wrong_nodes=(), causes=(), notes=notes)
    if (
        found.unexplained
        or not found.causes
        or any(c.fault not in CHOSEN or not c.how.endswith("Q8_0") for c in found.causes)
    ):
        return found
    return replace(
        found, verdict="healthy", first_wrong=None, wrong_nodes=(), notes=(found.causes[0].how, *found.notes)
    )


def _needs_decode(model: Model, dump: Dump) -> tuple[str, ...]:
    """A note for a dump of a prompt alone: what a call leaves to the next one is not in it."""
    return (PROMPT_ONLY,) if model.graph.state.per_sequence and len(dump.steps) < 2 else ()


def _diagnose(
    model: Model,
    dump: Dump,
    weights: Weights,
    say: Progress,
    cache: bool,
    share: Share | None,
    budget: TimeBudget,
) -> Diagnosis:
    early = early_part(model, dump) if budget.seconds < math.inf else None
    if early is not None:
        first, part, count = early
        inputs = run_inputs(first, part.tokens, part.positions, part.given)
        diff = judge(first, part, cache=False, inputs=inputs)  # noise is kept on disk for whole models
        shown = f"layers 0 to {count - 1}" if count > 1 else "layer 0"
        if diff.first_wrong is not None:
            found = _by_nodes_alone(inputs, part, diff, weights, say, share, budget)
            if found.causes or found.verdict == "unexplained":
                alone = f"judged on {shown} alone; later layers were not compared: mend this, run again, diagnose again"
                return replace(found, notes=(*found.notes, alone))
        else:
            say(f"{shown}: {len(diff.nodes)} nodes are right; judging the other layers")
    elif large(model):
        say("nothing of the first layers was dumped, so the whole model is run; l_out-0 would give an answer sooner")
        runs = None if dump.given else NativeRuns.of(model, dump, budget)
        answered = by_native_runs(runs, budget, say) if runs is not None else None
        if answered is not None:
            return answered
    inputs = run_inputs(model, dump.tokens, dump.positions, dump.given)
    dump = with_states_apart(dump, model.graph)
    try:
        with budget.stopping() if large(model) else nullcontext():
            judged = judge(model, dump, cache=cache, inputs=inputs)
    except TimeIsUp:
        return Diagnosis("undecided", None, (), (), NEXT)
    if (told_by_states := by_states(judged, dump, model.graph)) is not None:
        return told_by_states
    found = _by_nodes_alone(inputs, dump, without_states(judged, model.graph), weights, say, share, budget)
    states = tuple(n for n in judged.nodes if model.graph[n.name].has(Trait.SHOWS_STATE))
    if states and found.diff is not None:
        found = replace(found, diff=replace(found.diff, nodes=in_order(model.graph, (*found.diff.nodes, *states))))
    return found


def _by_nodes_alone(
    inputs: RunInputs,
    dump: Dump,
    diff: Diff,
    weights: Weights,
    say: Progress,
    share: Share | None,
    budget: TimeBudget,
) -> Diagnosis:
    """The search over the nodes of a dump, whose states were looked at before."""
    model, small = inputs.model, _SmallFaults(inputs, dump, diff, weights, budget)
    if diff.first_wrong is None:
        if diff.nodes:
            say(f"{counted(len(diff.nodes), 'node')}: {diff.summary}; does a small fault hide in it?")
        hidden = small.search(say)
        return _healthy(diff, hidden) if hidden is None or hidden else hidden
    trials = FaultTrials(model, dump, diff, weights, inputs=inputs, budget=budget)
    wrong = _clearly_wrong(diff) or [diff.first_wrong]
    say(told(diff.nodes))
    long = (
        len(wrong[0].evidence.segment) > FEEDS_FIRST
    )  # every hypothesis is a run, so the six other feeds are the cheapest
    left = left_in_states(trials, diff) if dump.states else None
    result = _found(left, wrong) if left else _by_feed(trials, diff, wrong, say) if long else None
    searched = hurried = False  # small faults were searched for without a result; with too little time
    # The search for small faults runs every layer many times. It has little time, and in a large model it waits, if
    # this deviation is larger than the noise of any arithmetic.
    loud = min(wrong[0].evidence.local) > ACCEPT
    if result is None and trials.terms.guessed and not (large(model) and loud):
        with budget.part(SMALL_FIRST if loud else 1.0) as cut:
            result = small.search(say, ruled=True)
        searched = result is not None and result.verdict == "unexplained"
        if searched and result is not None and result.rounds:  # the noise is not larger than this rule's
            known = [a.name for a in ARITHMETICS].index(result.rounds)
            trials = trials.on(replace(trials.terms, arithmetic=known, guessed=False))
        if hurried := cut():  # it is repeated at the end, if nothing else explains the deviation
            result, searched = None, False
    if result is None or searched:
        result = (
            by_nodes(trials, diff, wrong, say)
            if wrong[0].evidence.whole
            else by_runs(trials, diff, wrong[0], say, share)
        )
        # Tokens that entered a state explain every node at once; an edit explains one of them.
        vague = result.unexplained or any(c.confidence <= A_GUESS for c in result.causes)
        partly = bool(vague) and bool(model.graph.state.per_sequence)
        if not long and (partly or result.verdict in ("unexplained", "inconclusive")):
            fed = _by_feed(trials, diff, wrong, say)
            result = result if fed is None else fed
    coarse = diff.arithmetic != ARITHMETICS[0]
    # The noise of a guessed arithmetic covers much, but not a fault that explains nearly all of the deviation.
    rough = trials.terms.guessed and any(not c.exact and c.explains < 1 - ENOUGH for c in result.causes)
    if not searched and (
        rough or (result.verdict in ("unexplained", "inconclusive") and (trials.terms.guessed or coarse or hurried))
    ):
        hidden = small.search(say)
        result = result if hidden is None or hidden.verdict == "unexplained" else hidden
    if result.verdict in ("unexplained", "inconclusive") and coarse and not budget.cut:
        exact = _as_float32(small.strict, diff, inputs, dump, weights, say, share, budget)
        result = result if exact is None else exact
    if result.verdict in ("unexplained", "inconclusive") and not result.causes and not budget.cut:
        called = with_decode_steps(trials, wrong[0])
        again = _by_nodes_alone(inputs, called, diff, weights, say, share, budget) if called is not None else result
        if called is not None and again.verdict == "fault" and not again.unexplained:
            return told_of_calls(again, called)
    shown = _excused(diff) if result and result.diff is not None else diff
    notes = (*_other_tokens(trials, diff, result), *result.notes, *diff.notes, *diff.contradictions)
    return replace(result, notes=notes, diff=shown)


def _as_float32(
    strict: Diff,
    diff: Diff,
    inputs: RunInputs,
    dump: Dump,
    weights: Weights,
    say: Progress,
    share: Share | None,
    budget: TimeBudget,
) -> Diagnosis | None:
    """The answer from the first node that is wrong for an engine that computes in float32, if it leaves no more noise.

    A mistake may move the first values that show it by less than the noise of a coarse arithmetic. That noise then
    excuses them, and the search looks behind them.
    """
    first = strict.first_wrong
    if first is None or diff.first_wrong is None or first.name == diff.first_wrong.name:
        return None
    say(f"nothing explains {diff.first_wrong.name}; in float32 {first.name} is wrong")
    trials = FaultTrials(inputs.model, dump, strict, weights, inputs=inputs, budget=budget)
    wrong = _clearly_wrong(strict) or [first]
    found = by_nodes(trials, strict, wrong, say) if first.evidence.whole else by_runs(trials, strict, first, say, share)
    sure = found.verdict == "fault" and not found.unexplained and all(c.exact for c in found.causes)
    return found if sure else None


def _excused(diff: Diff) -> Diff:
    """The verdicts, after wrong nodes turned out to be noise of a rounding rule outside `ARITHMETICS`."""
    return replace(
        diff, nodes=tuple(replace(n, verdict="noise", own=None) if n.verdict == "wrong" else n for n in diff.nodes)
    )


def _by_feed(trials: FaultTrials, diff: Diff, wrong: list[NodeVerdict], say: Progress) -> Diagnosis | None:
    if trials.dump.given:  # the rows of a picture: other feeds of such a prompt are `verify/pictures/prompt_trials`
        return None
    cause = other_feed(trials, diff, say) or other_calls(trials, diff, say) or strange_state(trials, diff)
    cause = cause or left_in_states(trials, diff, between=True)
    return None if cause is None else _found(cause, wrong)


def _found(cause: Cause, wrong: list[NodeVerdict]) -> Diagnosis:
    names = tuple(n.name for n in wrong)
    return Diagnosis("fault", names[0], names, (cause,), "")


def _other_tokens(trials: FaultTrials, diff: Diff, found: Diagnosis) -> tuple[str, ...]:
    """A note where nothing explains values that a state left by other tokens could have given."""
    keepers = {kept.node for kept in trials.graph.state.per_sequence}
    if found.verdict != "unexplained" or keepers.isdisjoint({*found.segment, found.first_wrong}):
        return ()
    wrong = [n for n in diff.nodes if n.name == found.first_wrong]
    return (settled_by(trials.graph, trials.dump, right_in_the_prompt(trials, wrong)),)


def _clearly_wrong(diff: Diff) -> list[NodeVerdict]:
    """Nodes wrong on their own inputs. Where some are far out, those barely above the noise are its tail."""
    i = ARITHMETICS.index(diff.arithmetic)
    wrong = [n for n in diff.nodes if n.own]
    return [n for n in wrong if n.evidence.local[i] > ACCEPT] or wrong


def _healthy(diff: Diff, open_question: Diagnosis | None) -> Diagnosis:
    notes = [f"deviations are the noise of {diff.arithmetic.name}"] if diff.verdict == "noise" else []
    found = open_question or Diagnosis("healthy", None, (), (), "")
    notes += [note for note in found.notes if note not in diff.notes]
    if found.verdict == "healthy" and _from_afar(diff):
        notes.append(BENEATH)
    return replace(found, notes=(*notes, *diff.notes), diff=diff)


def _from_afar(diff: Diff) -> bool:
    """Was a node judged through many steps? Then float32's noise has grown over all of them."""
    return any(not n.evidence.whole or len(n.evidence.segment) > SHORT for n in diff.nodes)


@dataclass
class _SmallFaults:
    """The search for a small fault that a coarse arithmetic would excuse or hide, but that predicts the deviations."""

    inputs: RunInputs
    dump: Dump
    diff: Diff
    weights: Weights
    budget: TimeBudget

    @cached_property
    def strict(self) -> Diff:
        """The verdicts of an engine that computes in float32."""
        exact = ARITHMETICS[0]
        seen = [n.evidence for n in self.diff.nodes]
        return replace(self.diff, arithmetic=exact, nodes=tuple(decide(self.inputs, self.dump, seen, exact)))

    @cached_property
    def evidence(self) -> SmallEvidence:
        terms = Terms.of(self.strict, subtle=True)
        trials = FaultTrials(
            self.inputs.model, self.dump, self.strict, self.weights, terms, inputs=self.inputs, budget=self.budget
        )
        return SmallEvidence(trials, self.diff)

    def search(self, say: Progress, *, ruled: bool = False) -> Diagnosis | None:
        seen = [n.evidence for n in self.diff.nodes]
        same = self.diff.verdict == "same"
        if same and all(e.whole and len(e.segment) <= FEEDS_FIRST and e.local[0] <= LOUD for e in seen):
            return None  # every step or layer matches to float32's noise
        if self.budget.over("mistakes smaller than noise"):
            return None
        found = small_fault(self.evidence, say, ruled=ruled)
        return None if found is None else replace(found, notes=(*found.notes, *self.diff.notes), diff=self.strict)
