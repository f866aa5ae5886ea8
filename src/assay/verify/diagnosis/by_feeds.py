"""Right mathematics on other tokens: a prompt fed twice, a doubled token, a cache that still holds the last request.

The ids of the dump may be right (`by_tokens` compares them); the engine computed another sequence than these ids. Such
a run is no edit of the graph. It is the definition on another sequence, of which the dump shows some rows. So each
feed names the sequence that was really computed and, for every row of the dump, the row of that run which it shows.
Touch this module to add another way of feeding tokens wrongly: a row of `FEEDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.engines.reference import interpret
from assay.verify.diagnosis.candidates import confidence
from assay.verify.diagnosis.fault_trials import NEVER, FaultTrials, ObservationFit
from assay.verify.diagnosis.result import Cause
from assay.verify.dumps.observation import inputs_of, token_axis
from assay.verify.judge.compare_nodes import Diff, NodeVerdict

Fed = tuple[list[int], list[int]]  # tokens that were computed, and the row shown for each row of the dump


@dataclass(frozen=True)
class Feed:
    """`make` gives the sequence from (tokens, tokens in the prompt), or None where it would change nothing."""

    fault: str
    label: str
    make: Callable[[list[int], int], Fed | None]


def _last_again(tokens: list[int], prompt: int) -> Fed | None:
    if prompt >= len(tokens):
        return None
    rows = [*range(prompt), *range(prompt + 1, len(tokens) + 1)]
    return [*tokens[:prompt], tokens[prompt - 1], *tokens[prompt:]], rows


def _all_again(tokens: list[int], prompt: int) -> Fed | None:
    if prompt >= len(tokens):
        return None
    return [*tokens[:prompt], *tokens], [*range(prompt), *range(2 * prompt, len(tokens) + prompt)]


def _first_again(tokens: list[int], prompt: int) -> Fed | None:
    if prompt + 1 >= len(tokens):
        return None
    rows = [*range(prompt + 1), *range(prompt + 2, len(tokens) + 1)]
    return [*tokens[: prompt + 1], *tokens[prompt:]], rows


def _after_itself(tokens: list[int], prompt: int) -> Fed | None:
    return [*tokens, *tokens], list(range(len(tokens), 2 * len(tokens)))


def _doubled_start(tokens: list[int], prompt: int) -> Fed | None:
    return [tokens[0], *tokens], list(range(1, len(tokens) + 1))


def _without_start(tokens: list[int], prompt: int) -> Fed | None:
    return (tokens[1:], [0, *range(len(tokens) - 1)]) if len(tokens) > 2 else None


FEEDS = (
    Feed("kv-refeed", "the prompt's last token is fed again", _last_again),
    Feed("kv-refeed", "the whole prompt is fed again", _all_again),
    Feed("gen-double-first", "the first generated token is fed twice", _first_again),
    Feed("kv-stale-request", "the cache still holds the same request", _after_itself),
    Feed("bos-double", "the first token is fed twice", _doubled_start),
    Feed("bos-missing", "the first token is not fed", _without_start),
)


def other_feed(trials: FaultTrials, diff: Diff, say: Callable[[str], None]) -> Cause | None:
    """The feed that explains everything observed, if one does."""
    tokens, prompt = list(trials.dump.tokens), (trials.dump.steps or (len(trials.dump.tokens),))[0]
    names = comparable(trials, diff)
    wrong = [n for n in diff.nodes if n.verdict == "wrong" and n.name in names]
    if not wrong:
        return None
    say("trying other feeds of the same tokens")
    trials = trials.on(replace(trials.terms, carried=True))
    plain = compare_feed(trials, names, tokens, range(len(tokens)))
    for feed in trials.budget.each(FEEDS, "trying other feeds of the same tokens", "feeds"):
        made = feed.make(tokens, prompt)
        if made is None:
            continue
        fits = compare_feed(trials, names, *made, skip=1 if feed.fault == "bos-missing" else 0)
        cause = cause_of(trials, feed.fault, feed.label, plain, fits, wrong, len(FEEDS))
        if cause is not None:
            return cause
    return None


def comparable(trials: FaultTrials, diff: Diff) -> list[str]:
    """The observed nodes with rows of another run. An axis of keys is wider in a longer run; a state has no rows."""
    shapes = trials.graph.shapes
    rows = [n.name for n in diff.nodes if "T" in shapes[n.name] or shapes[n.name][0] == 1]  # 1: pooled
    return [name for name in rows if "S" not in shapes[name]]


def cause_of(
    trials: FaultTrials,
    fault: str,
    label: str,
    plain: Mapping[str, ObservationFit],
    fits: Mapping[str, ObservationFit],
    wrong: Sequence[NodeVerdict],
    tried: int,
    same: Sequence[str] = (),
) -> Cause | None:
    """The fault as a cause, if its run (`fits`) explains nearly every node that the definition (`plain`) does not."""
    deviation = sum(plain[n.name].residual for n in wrong)
    share = np.mean([fits[n.name].explained for n in wrong])
    left = sum(fits[n.name].residual for n in wrong)
    first = wrong[0]
    after = fits[first.name]
    if share < 0.9 or left >= 0.1 * deviation or not after.explained:
        return None
    before = ObservationFit(float(first.evidence.carried[trials.terms.arithmetic]), first.evidence.nmse, after.count)
    return Cause(
        fault=fault,
        node=first.name,
        how=label,
        nodes=tuple(n.name for n in wrong if fits[n.name].explained),
        confidence=confidence(before, after, tried, False, rivals=len(same)),
        explains=float(share),
        equivalent=tuple(same),
        before=before.ratio,
        after=after.ratio,
    )


def compare_feed(
    trials: FaultTrials, names: Sequence[str], tokens: Sequence[int], rows: Sequence[int], skip: int = 0
) -> dict[str, ObservationFit]:
    """Observations against the definition's run on other tokens; the first `skip` rows are not judged."""
    values = interpret(trials.graph, trials.weights, inputs_of(tokens, range(len(tokens))), names)
    fits = {}
    for name in names:
        axis = token_axis(trials.graph, name)
        pooled = trials.graph.shapes[name][0] == 1  # one row of all tokens
        shown = values[name] if pooled else np.take(values[name], rows, axis=axis)
        if skip and not pooled:
            whole = trials.dump.values(name)
            if whole is None:
                fits[name] = NEVER
                continue
            head = [slice(None)] * shown.ndim
            head[axis] = slice(0, skip)
            shown[tuple(head)] = whole[tuple(head)]
        fits[name] = trials.compare(name, shown, own=shown)
    return fits
