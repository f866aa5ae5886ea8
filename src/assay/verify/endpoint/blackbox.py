"""Black box: a diagnosis of the engine behind a server from its log-probabilities alone.

The probes are a text that is scored token by token where the server can (`echo`) and continued greedily, the same
request twice, a chat, and many draws. Each gives places where a distribution was seen. The definition predicts them
from the right ids. Where it fails, other ids (no BOS, two, another template), other feeds of the cache and the faults
of the catalogue are tried in its place. A server may compute in any arithmetic, so agreement means: within the noise of
the coarsest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.models import Model
from assay.text import Tokenizer
from assay.verify.diagnosis.by_feeds import FEEDS
from assay.verify.diagnosis.candidates import SECOND_NAMES
from assay.verify.diagnosis.fault_trials import EvidenceUnit, Hypothesis, ObservationFit
from assay.verify.diagnosis.result import Answer, Cause, Diagnosis
from assay.verify.endpoint.client import Client, ServerReply
from assay.verify.endpoint.nucleus_draws import sampling
from assay.verify.endpoint.prompt_ids import GREEDY, TEXT, chat_prompt, scored_prompt, text_prompt
from assay.verify.endpoint.simulated import Case, SimulatedServer, case_of, cause_of, distance
from assay.verify.faults import FAULTS, FaultKind, Stage
from assay.verify.thresholds import ALLOWED, FLOOR, PRINTED

Array = NDArray[Any]
Progress = Callable[[str], None]


def diagnose_endpoint(model: Model, client: Client, progress: Progress | None = None) -> Diagnosis:
    """Ask the server, and name the causes that its answers show."""
    with np.errstate(all="ignore"):  # hypotheses that overflow do not match
        return _ask(model, client, progress or (lambda _: None))


def _ask(model: Model, client: Client, say: Progress) -> Diagnosis:
    server, tokenizer = SimulatedServer(model), client.tokenizer
    causes: list[Cause] = []
    notes: list[str] = []
    wrong: list[str] = []
    say("asking for a greedy continuation, twice")
    first = client.complete(TEXT, n=GREEDY)
    second = client.complete(TEXT, n=GREEDY)
    if not first.steps:
        raise AssayError(f"{client.url}: the server gives no log-probabilities; start it with them enabled")
    scored = scored_prompt(client, say, notes)
    allowed = ALLOWED * server.noise(tokenizer.encode(TEXT)) + FLOOR
    prompt, ids = text_prompt(server, tokenizer, first, scored, allowed)
    if prompt is not None:
        wrong.append("inp_tokens")
        causes.append(prompt)
    elif scored is None and first.prompt_tokens not in (None, len(ids)):
        notes.append(f"the server counts {first.prompt_tokens} tokens in a text of {len(ids)}: {TEXT!r}")
        return _answer([], ["inp_tokens"], notes, False)
    case = case_of("a text", ids, first, scored)
    allowed = _as_good_as_its_prompt(server, case, allowed)
    result = _explain_case(server, tokenizer, case, allowed, say)
    if result is not None:
        wrong.append(model.graph.output)
        causes += result
    repeat = _repetition(server, ids, first, second, allowed)
    if repeat is not None:
        wrong.append("second request")
        causes.append(repeat)
    chat = chat_prompt(server, client, allowed, say, notes)
    if chat is not None:
        wrong.append("chat prompt")
        causes += chat
    if not causes and not wrong:
        causes += sampling(server, client, say, notes)
        wrong += ["sampled"] * bool(causes)
    return _answer(causes, wrong, notes, scored is not None)


def _answer(causes: list[Cause], wrong: list[str], notes: list[str], echoed: bool) -> Diagnosis:
    kept = {c.fault: c for c in reversed(causes)}
    ordered = sorted(kept.values(), key=lambda c: -c.confidence)
    if not wrong:
        return Diagnosis("healthy", None, (), (), "", notes=tuple(notes))
    advice = "" if echoed else "a server that scores prompts (echo with logprobs) would show where it goes wrong"
    if not ordered:
        advice = advice or "dump the engine's layer outputs for these tokens and give them to `assay diagnose`"
    verdict: Answer = "fault" if ordered else "unexplained"
    return Diagnosis(
        verdict, wrong[0], tuple(wrong), tuple(ordered), advice, () if ordered else tuple(wrong), notes=tuple(notes)
    )


def _as_good_as_its_prompt(server: SimulatedServer, case: Case, allowed: float) -> float:
    """The error on a scored prompt is the server's own noise; the error on generated tokens must not be much larger."""
    prompt = [s for s in case.seen if s.row < case.steps[0]]
    if not prompt:
        return allowed
    noise = distance(prompt, server.logits(case.tokens)).ratio
    return min(allowed, ALLOWED * noise + PRINTED)


def _explain_case(
    server: SimulatedServer, tokenizer: Tokenizer, case: Case, allowed: float, say: Progress
) -> list[Cause] | None:
    """None where the definition agrees; otherwise the causes, or an empty list."""
    before = distance(case.seen, server.logits(case.tokens))
    if before.ratio <= allowed:
        return None
    say(f"{case.name}: log-probabilities are off by {before.ratio:.3g} nats (noise {allowed:.3g}); trying faults")
    found: list[tuple[Cause, float]] = []
    for tried, (fault, how, logits, rows) in enumerate(_others(server, tokenizer, case), 1):
        fit = distance(case.seen, logits, rows)
        if fit.ratio <= allowed and fit.ratio < 0.3 * before.ratio:
            found.append((cause_of(fault, server.model.graph.output, how, before, fit, tried, allowed), fit.ratio))
    if not found:
        return []
    best, least = min(found, key=lambda pair: pair[1])
    best = next((c for c, r in found if r <= 1.5 * least and c.fault not in SECOND_NAMES), best)
    close = {c.fault for c, r in found if r <= max(3 * least, allowed / 4)} - {best.fault}
    return [
        replace(best, equivalent=tuple(sorted(close)), confidence=best.confidence / (1 + len(close - SECOND_NAMES)))
    ]


def _others(
    server: SimulatedServer, tokenizer: Tokenizer, case: Case
) -> Iterator[tuple[str, str, Array, Sequence[int] | None]]:
    """Other computations to try: other feeds first, then the catalogue."""
    tokens, prompt = list(case.tokens), case.steps[0]
    for feed in FEEDS:
        made = feed.make(tokens, prompt)
        if made is not None:
            yield feed.fault, feed.label, server.logits(made[0]), made[1]
    if tokenizer.bos is not None and tokens[0] != tokenizer.bos:
        yield (
            "bos-wrong-id",
            "a BOS that the file does not ask for",
            server.logits([tokenizer.bos, *tokens]),
            range(1, len(tokens) + 1),
        )
    trials = server.trials(case)
    unit = EvidenceUnit(server.model.graph.output, server.everything)
    for fault in FAULTS.values():
        if FaultKind.WEIGHTS in fault.kinds and fault.stage not in (Stage.LAYOUT, Stage.HEAD):
            continue
        for variant in fault.variants:
            for p in variant.search.common if variant.search else (0.0,):
                if not trials.touches(variant, unit, p):
                    continue
                h = Hypothesis(fault.id, variant, p)
                logits = server.faulty(case, h)
                if logits is not None:
                    yield fault.id, str(h), logits, None


def _repetition(
    server: SimulatedServer, ids: Sequence[int], first: ServerReply, second: ServerReply, allowed: float
) -> Cause | None:
    """The same request twice must give the same; if it does not, does the second read the first's cache?"""
    pairs = list(zip(first.steps, second.steps, strict=False))
    gaps = [abs(a.scores[i] - b.scores[i]) for a, b in pairs for i in a.scores if i in b.scores and a.text == b.text]
    same_text = all(a.text == b.text for a, b in pairs)
    if same_text and (not gaps or max(gaps) <= 1e-3):
        return None
    before = ObservationFit(max(gaps, default=1.0) / 1e-3, 1.0, len(gaps) or 1)
    stale = [*ids, *(s.id for s in first.steps if s.id is not None), *ids]
    case = case_of("again", stale, second, None)
    fit = distance(case.seen[:1], server.logits(case.tokens))
    if fit.ratio <= allowed:
        return cause_of(
            "kv-stale-request",
            "second request",
            "the second request reads the first one's keys",
            before,
            fit,
            1,
            allowed,
        )
    same = ("kv-prefix-mutated", "kv-full-hit-logits", "kv-overwrites-weights", "race", "uninit", "v-stale-stride")
    cause = cause_of(
        "kv-stale-request", "second request", "two equal requests give different answers", before, before, 1
    )
    return replace(cause, equivalent=same, confidence=0.9 / (1 + len(same)))
