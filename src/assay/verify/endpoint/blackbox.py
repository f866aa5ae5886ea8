"""Black box: what a server's log-probabilities alone tell about the engine behind it.

Probes: a text, scored token by token where the server can (`echo`) and continued greedily; the same request twice;
a chat; many draws. Each gives places where a distribution was seen. The definition predicts them from the ids it
would have fed; if it fails, other ids (no BOS, two, another template), other feeds of the cache and the faults of the
catalogue are tried in its place. A server rounds as it likes, so agreement means: within the noise of any arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.weights import Weights
from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.models import Model
from assay.text import ChatTemplate, Tokenizer, encode_chat
from assay.text.builtin import TEMPLATES
from assay.text.compare import explain as explain_ids
from assay.verify.diagnosis.by_feeds import FEEDS
from assay.verify.diagnosis.candidates import SECOND_NAMES, Cause, Diagnosis, confidence
from assay.verify.diagnosis.lab import Fit, Hypothesis, Lab, Unit
from assay.verify.dumps.observation import Dump, inputs_of
from assay.verify.endpoint.client import Reply, Server, tellable
from assay.verify.faults import FAULTS
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.noise import NoiseRuns
from assay.verify.judge.sweep import sweep
from assay.verify.judge.verdict import Diff

__all__ = ["Server", "diagnose_endpoint"]

Array = NDArray[Any]
Progress = Callable[[str], None]
TEXT = "The capital of France is Paris. The capital of Italy is"
CHAT = "Name the capital of France."
GREEDY = 6
KEPT = (3, 6)  # tokens that a draw may come from, at least and at most
_ALLOWED = 4.0  # times the noise of the coarsest arithmetic
_FLOOR = 0.02  # nats: what nobody calls a fault
_PRINTED = 0.001  # nats: digits that servers print
_CHANCE = 1e-7  # that right draws look wrong
_RARE = 0.08  # share of draws below which a token is too rare to wait for
_SWAPPED = 0.1  # nats


@dataclass(frozen=True)
class Seen:
    """A place in a sequence of known tokens where a distribution was seen: after `row` tokens have been read."""

    row: int
    scores: dict[int, float]


@dataclass(frozen=True)
class Case:
    """A sequence that was fed in steps, and what was seen of it."""

    name: str
    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    seen: tuple[Seen, ...]


class Box:
    """The definition and its faulty relatives, asked for log-probabilities."""

    def __init__(self, model: Model, weights: Weights | None = None) -> None:
        self.model, self.weights = model, weights or Weights(model.file)
        self.everything = tuple(node.name for node in model.graph)
        self._labs: dict[tuple[int, ...], Lab] = {}

    def lab(self, case: Case) -> Lab:
        if case.tokens not in self._labs:
            dump = Dump("", case.tokens, tuple(range(len(case.tokens))), case.steps)
            self._labs[case.tokens] = Lab(self.model, dump, Diff("", "", ARITHMETICS[0], ()), self.weights)
        return self._labs[case.tokens]

    def logits(self, tokens: Sequence[int]) -> Array:
        """The definition's, for all rows."""
        output = self.model.graph.output
        return interpret(self.model.graph, self.weights, inputs_of(tokens, range(len(tokens))), [output])[output]

    def faulty(self, case: Case, h: Hypothesis) -> Array:
        lab, output = self.lab(case), self.model.graph.output
        return lab.predict(h, Unit(output, self.everything))[output]

    def noise(self, tokens: Sequence[int]) -> float:
        """Standard deviation of a logit under the coarsest arithmetic."""
        runs = NoiseRuns(self.model, tokens, range(len(tokens)))
        sweep(self.model, [runs])
        return float(runs.levels[self.model.graph.output].rms.max())


def distance(seen: Sequence[Seen], logits: Array, rows: Sequence[int] | None = None) -> Fit:
    """Root mean square difference of log-probabilities, in nats."""
    errors: list[float] = []
    for place in seen:
        row = place.row - 1 if rows is None else rows[place.row - 1]
        if not 0 <= row < len(logits):
            continue
        z = logits[row].astype(np.float64)
        z = z - z.max()
        z = z - np.log(np.sum(np.exp(z)))
        errors += [float(z[i] - value) for i, value in place.scores.items() if value > -30]
    if not errors or not np.isfinite(errors).all():
        return Fit(np.inf, np.inf, len(errors))
    e = np.array(errors)
    return Fit(float(np.sqrt(np.mean(e**2))), float(np.sum(e**2)), len(e))


def diagnose_endpoint(
    file: GGUFFile, model: Model, tokenizer: Tokenizer, server: Server, progress: Progress | None = None
) -> Diagnosis:
    """Ask, and name what the answers betray."""
    with np.errstate(all="ignore"):  # hypotheses that overflow do not match
        return _ask(file, model, tokenizer, server, progress or (lambda _: None))


def _ask(file: GGUFFile, model: Model, tokenizer: Tokenizer, server: Server, say: Progress) -> Diagnosis:
    box = Box(model)
    causes: list[Cause] = []
    notes: list[str] = []
    wrong: list[str] = []
    say("asking for a greedy continuation, twice")
    first = server.complete(tokenizer, TEXT, n=GREEDY)
    second = server.complete(tokenizer, TEXT, n=GREEDY)
    if not first.steps:
        raise AssayError(f"{server.url}: the server gives no log-probabilities; start it with them enabled")
    scored = _scored(server, tokenizer, say, notes)
    allowed = _ALLOWED * box.noise(tokenizer.encode(TEXT)) + _FLOOR
    prompt, ids = _prompt(box, tokenizer, first, scored, allowed)
    if prompt is not None:
        wrong.append("inp_tokens")
        causes.append(prompt)
    case = _case("a text", ids, first, scored)
    allowed = _as_good_as_its_prompt(box, case, allowed)
    result = _explain_case(box, tokenizer, case, allowed, say)
    if result is not None:
        wrong.append(model.graph.output)
        causes += result
    repeat = _repetition(box, ids, first, second, allowed)
    if repeat is not None:
        wrong.append("second request")
        causes.append(repeat)
    chat = _chat(box, file, tokenizer, server, allowed, say, notes)
    if chat is not None:
        wrong.append("chat prompt")
        causes += chat
    if not causes and not wrong:
        causes += _sampling(box, server, tokenizer, say, notes)
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
    verdict = "fault" if ordered else "unexplained"
    return Diagnosis(
        verdict, wrong[0], tuple(wrong), tuple(ordered), advice, () if ordered else tuple(wrong), notes=tuple(notes)
    )


def _scored(server: Server, tokenizer: Tokenizer, say: Progress, notes: list[str]) -> Reply | None:
    """The prompt scored by the server, where it can."""
    say("asking for the prompt's own log-probabilities")
    for n in (0, 1):
        try:
            reply = server.complete(tokenizer, TEXT, n=n, echo=True)
        except AssayError:
            continue
        if reply.n_prompt > 1:
            return reply
    notes.append("the server does not score prompts; only what it generates was seen")
    return None


def _prompt(
    box: Box, tokenizer: Tokenizer, reply: Reply, scored: Reply | None, allowed: float
) -> tuple[Cause | None, list[int]]:
    """Which ids the server made of the text: ours, or others that predict what was seen better."""
    right = tokenizer.encode(TEXT)
    count = scored.n_prompt if scored is not None else reply.prompt_tokens
    given = [s.id for s in scored.steps[: scored.n_prompt]] if scored is not None else []
    if given and None not in given:
        ids = [i for i in given if i is not None]
        findings = explain_ids(tokenizer, right, ids, text=TEXT)
        if findings:
            f = findings[0]
            return _cause(f.fault, "inp_tokens", f.message, Fit(8.0, 1.0, 8), Fit(0.0, 0.0, 8), 1), ids
        return None, right
    before = distance(_case("", right, reply, scored).seen, box.logits(_case("", right, reply, scored).tokens))
    if before.ratio <= allowed:
        return None, right
    for fault, how, ids in _other_ids(tokenizer, right):
        if count is None or count == len(ids):
            case = _case("", ids, reply, scored)
            after = distance(case.seen, box.logits(case.tokens))
            if after.ratio <= allowed:
                return _cause(fault, "inp_tokens", how, before, after, 4, allowed), ids
    return None, right


def _other_ids(tokenizer: Tokenizer, right: list[int]) -> Iterator[tuple[str, str, list[int]]]:
    bos = tokenizer.bos
    if bos is not None and right[:1] == [bos]:
        yield "bos-missing", "no BOS", right[1:]
        yield "bos-double", "BOS twice", [bos, *right]
    elif bos is not None:
        yield "bos-wrong-id", "a BOS that the file does not ask for", [bos, *right]
    yield "spm-space-prefix", "no space before the first word", tokenizer.encode(f"\n{TEXT}")[:1] + right[1:]


def _as_good_as_its_prompt(box: Box, case: Case, allowed: float) -> float:
    """Where the prompt was scored, its error is the server's own noise: what it generates may not be much worse."""
    prompt = [s for s in case.seen if s.row < case.steps[0]]
    if not prompt:
        return allowed
    noise = distance(prompt, box.logits(case.tokens)).ratio
    return min(allowed, _ALLOWED * noise + _PRINTED)


def _case(name: str, ids: Sequence[int], reply: Reply, scored: Reply | None) -> Case:
    """The prompt and what followed, with everything seen of both."""
    seen = []
    if scored is not None:
        seen = [Seen(i, dict(s.scores)) for i, s in enumerate(scored.steps[: scored.n_prompt]) if i and s.scores]
    tokens = list(ids)
    for step in reply.steps[reply.n_prompt :]:
        if step.scores:
            seen.append(Seen(len(tokens), dict(step.scores)))
        if step.id is None:
            break
        tokens.append(step.id)
    steps = (len(ids), *(1,) * (len(tokens) - len(ids)))
    return Case(name, tuple(tokens), steps, tuple(seen))


def _explain_case(box: Box, tokenizer: Tokenizer, case: Case, allowed: float, say: Progress) -> list[Cause] | None:
    """None where the definition agrees; else the causes found, perhaps none."""
    before = distance(case.seen, box.logits(case.tokens))
    if before.ratio <= allowed:
        return None
    say(f"{case.name}: log-probabilities are off by {before.ratio:.3g} nats (noise {allowed:.3g}); trying faults")
    found: list[tuple[Cause, float]] = []
    for tried, (fault, how, logits, rows) in enumerate(_others(box, tokenizer, case), 1):
        fit = distance(case.seen, logits, rows)
        if fit.ratio <= allowed and fit.ratio < 0.3 * before.ratio:
            found.append((_cause(fault, box.model.graph.output, how, before, fit, tried, allowed), fit.ratio))
    if not found:
        return []
    best, least = min(found, key=lambda pair: pair[1])
    best = next((c for c, r in found if r <= 1.5 * least and c.fault not in SECOND_NAMES), best)
    close = {c.fault for c, r in found if r <= max(3 * least, allowed / 4)} - {best.fault}
    return [
        replace(best, equivalent=tuple(sorted(close)), confidence=best.confidence / (1 + len(close - SECOND_NAMES)))
    ]


def _others(box: Box, tokenizer: Tokenizer, case: Case) -> Iterator[tuple[str, str, Array, Sequence[int] | None]]:
    """Other things that may have been computed: other feeds first, then the catalogue."""
    tokens, prompt = list(case.tokens), case.steps[0]
    for feed in FEEDS:
        made = feed.make(tokens, prompt)
        if made is not None:
            yield feed.fault, feed.label, box.logits(made[0]), made[1]
    if tokenizer.bos is not None and tokens[0] != tokenizer.bos:
        yield (
            "bos-wrong-id",
            "a BOS that the file does not ask for",
            box.logits([tokenizer.bos, *tokens]),
            range(1, len(tokens) + 1),
        )
    lab = box.lab(case)
    unit = Unit(box.model.graph.output, box.everything)
    for fault in FAULTS.values():
        if "b" in fault.kind and fault.stage not in ("weight layout", "output head"):
            continue
        for variant in fault.variants:
            for p in variant.search.common if variant.search else (0.0,):
                if not lab.touches(variant, unit, p):
                    continue
                h = Hypothesis(fault.id, variant, p)
                try:
                    yield fault.id, str(h), box.faulty(case, h), None
                except (ValueError, IndexError, KeyError):
                    continue


def _repetition(box: Box, ids: Sequence[int], first: Reply, second: Reply, allowed: float) -> Cause | None:
    """The same request twice must give the same; if not, does the second see the first's cache?"""
    pairs = list(zip(first.steps, second.steps, strict=False))
    gaps = [abs(a.scores[i] - b.scores[i]) for a, b in pairs for i in a.scores if i in b.scores and a.text == b.text]
    same_text = all(a.text == b.text for a, b in pairs)
    if same_text and (not gaps or max(gaps) <= 1e-3):
        return None
    before = Fit(max(gaps, default=1.0) / 1e-3, 1.0, len(gaps) or 1)
    stale = [*ids, *(s.id for s in first.steps if s.id is not None), *ids]
    case = _case("again", stale, second, None)
    fit = distance(case.seen[:1], box.logits(case.tokens))
    if fit.ratio <= allowed:
        return _cause(
            "kv-stale-request",
            "second request",
            "the second request reads the first one's keys",
            before,
            fit,
            1,
            allowed,
        )
    same = ("kv-prefix-mutated", "kv-full-hit-logits", "kv-overwrites-weights", "race", "uninit", "v-stale-stride")
    cause = _cause("kv-stale-request", "second request", "two equal requests give different answers", before, before, 1)
    return replace(cause, equivalent=same, confidence=0.9 / (1 + len(same)))


def _chat(
    box: Box, file: GGUFFile, tokenizer: Tokenizer, server: Server, allowed: float, say: Progress, notes: list[str]
) -> list[Cause] | None:
    """The prompt that the server made of a conversation."""
    template = ChatTemplate.from_gguf(file, tokenizer)
    if template is None:
        return None
    say("asking for an answer to a chat")
    messages = [{"role": "user", "content": CHAT}]
    try:
        reply = server.chat(tokenizer, messages, n=GREEDY)
    except AssayError as error:
        notes.append(f"chat was not tried: {error}")
        return None
    if not reply.steps or not reply.steps[0].scores:
        return None
    seen = (Seen(1, dict(reply.steps[0].scores)),)

    def fit(ids: Sequence[int]) -> Fit:
        return distance(seen, box.logits(ids)[-1:])

    right = encode_chat(tokenizer, template, messages)
    before = fit(right)
    if before.ratio <= allowed:
        return _stopping(tokenizer, reply)
    found = []
    for fault, how, ids in _other_prompts(tokenizer, template, messages, right):
        if ids != right and (reply.prompt_tokens is None or reply.prompt_tokens == len(ids)):
            after = fit(ids)
            if after.ratio <= allowed:
                found.append(_cause(fault, "chat prompt", how, before, after, 12, allowed))
    return found[:1]


def _other_prompts(
    tokenizer: Tokenizer, template: ChatTemplate, messages: list[dict[str, str]], right: list[int]
) -> Iterator[tuple[str, str, list[int]]]:
    text = template.render(messages)
    yield "tmpl-missing", "the bare text without a template", tokenizer.encode(CHAT)
    yield (
        "tmpl-genprompt",
        "without the assistant's header",
        encode_chat(tokenizer, template, messages, add_generation_prompt=False),
    )
    if tokenizer.bos is not None:
        yield "bos-double", "BOS twice", [tokenizer.bos, *right]
        if right[:1] == [tokenizer.bos]:
            yield "bos-missing", "no BOS", right[1:]
    yield "special-as-text", "markers split like text", tokenizer.encode(text, parse_special=False)
    for name in TEMPLATES:
        try:
            other = encode_chat(tokenizer, ChatTemplate.named(name, tokenizer), messages)
        except AssayError:
            continue
        yield "tmpl-wrong-family", f"the template of {name}", other


def _stopping(tokenizer: Tokenizer, reply: Reply) -> list[Cause] | None:
    """Tokens after one that ends the answer."""
    ids = [s.id for s in reply.steps]
    ends = [i for i, token in enumerate(ids) if token in tokenizer.eog]
    if ends and ends[0] + 1 < len(ids):
        how = f"went on after {tokenizer.show(ids[ends[0]] or 0)}"
        return [_cause("gen-eos-set", "sampled", how, Fit(100, 1, 8), Fit(0, 0, 8), 1)]
    return None


@dataclass(frozen=True)
class Draw:
    """A prompt and a top-p under which a few tokens may come, none of them rarely."""

    prompt: str
    top_p: float
    kept: tuple[int, ...]  # the smallest set of tokens whose mass reaches top-p, the likeliest first
    shares: tuple[float, ...]  # their probabilities among themselves
    logits: Array
    draws: int


def _telling(box: Box, tokenizer: Tokenizer) -> Draw | None:
    """The draw of which the token that crosses p comes most often: it settles the most with the fewest requests.

    At temperature 1, so that it does not matter whether the server filters before or after it. Prompts are the
    beginnings of the text, and top-p lies where the last token's mass is half spent, away from what noise moves. Three
    tokens at least: two that remain without the last tell a wrong filter from a generator that does not move.
    """
    ids, found = tokenizer.encode(TEXT), list[tuple[float, Draw]]()
    logits, known = box.logits(ids).astype(np.float64), tellable(tokenizer)
    for end in [i for i, c in enumerate(TEXT) if c == " "] + [len(TEXT)]:
        head = tokenizer.encode(TEXT[:end])
        if not head or head != ids[: len(head)]:
            continue
        z = logits[len(head) - 1]
        p = np.exp(z - z.max())
        p /= p.sum()
        order = np.argsort(-p, kind="stable")[: KEPT[1]]
        for n in range(KEPT[0], len(order) + 1):
            shares = p[order[:n]] / p[order[:n]].sum()
            draws = _needed(float(shares[-1]), float(shares[0]))
            top_p = float(f"{p[order[: n - 1]].sum() + p[order[n - 1]] / 2:.4g}")
            kept = tuple(map(int, order[:n]))
            if not known.issuperset(kept):
                break
            found.append((float(shares[-1]), Draw(TEXT[:end], top_p, kept, tuple(map(float, shares)), z, draws)))
    share, best = max(found, key=lambda f: f[0], default=(0.0, None))
    return best if share >= _RARE else None


def _needed(rarest: float, likeliest: float) -> int:
    """Draws after which neither the absence of the rarest nor the likeliest alone is chance."""
    return int(np.ceil(np.log(_CHANCE) / np.log(max(1 - 0.8 * rarest, min(1.1 * likeliest, 0.99)))))


def _sampling(box: Box, server: Server, tokenizer: Tokenizer, say: Progress, notes: list[str]) -> list[Cause]:
    """Draws under top-p: do they come from the smallest set of tokens whose mass reaches p?"""
    plan = _telling(box, tokenizer)
    if plan is None:
        notes.append("sampling was not tried: after every beginning of the probe's text one token takes it all")
        return []
    say(f"drawing {plan.draws} tokens at top-p {plan.top_p:g}: {len(plan.kept)} may come")
    drawn: list[int] = []
    for seed in range(plan.draws):
        try:
            reply = server.complete(tokenizer, plan.prompt, n=1, temperature=1.0, top_p=plan.top_p, seed=seed)
        except AssayError as error:
            notes.append(f"sampling was not tried: {error}")
            return []
        if not reply.steps:
            notes.append("sampling was not judged: no log-probabilities come with a drawn token")
            return []
        token = reply.steps[0].id
        drawn.append(-1 if token is None else token)  # those that may come are told by their text
    return _judge_draws(plan, drawn)


def _judge_draws(plan: Draw, drawn: Sequence[int]) -> list[Cause]:
    def named(fault: str, how: str, certainty: float) -> list[Cause]:
        cause = _cause(fault, "sampled", how, Fit(100.0, 1.0, len(drawn)), Fit(0.5, 0, 1), 1)
        return [replace(cause, confidence=certainty)]

    outside = [i for i in drawn if i not in plan.kept]
    if len(outside) > 0.05 * len(drawn):
        tail = np.argsort(plan.logits)[: len(plan.logits) // 2]
        rare = bool(np.isin(drawn, tail).sum() > 0.3 * len(drawn))
        how = f"{len(outside)} of {len(drawn)} draws lie outside the nucleus of {len(plan.kept)}"
        found = named("samp-topp-order", how, 0.7)
        return found if rare else [replace(found[0], equivalent=("samp-filter-order",))]
    if len(set(drawn)) == 1:
        return named("samp-rng", f"{len(drawn)} seeds gave one and the same token", 0.9)
    last = plan.kept[-1]
    near = [i for i in plan.kept if plan.logits[i] - plan.logits[last] < _SWAPPED]  # a server's noise may swap these
    missing = [i for i in near if i not in drawn]
    if len(missing) == 1 and set(drawn) == set(plan.kept) - set(missing):
        chance = (1 - plan.shares[-1]) ** len(drawn)
        how = f"the token that crosses p was never drawn in {len(drawn)} (chance {chance:.0e})"
        return named("samp-topp-boundary", how, 0.95)
    return []


def _cause(fault: str, node: str, how: str, before: Fit, after: Fit, tried: int, allowed: float = 1.0) -> Cause:
    scaled = (Fit(f.ratio / allowed, f.residual, f.count) for f in (before, after))
    b, a = scaled
    return Cause(
        fault=fault,
        node=node,
        how=how,
        nodes=(node,),
        confidence=confidence(b, a, tried, False),
        explains=max(0.0, 1 - after.residual / max(before.residual, 1e-30)),
        equivalent=(),
        before=b.ratio,
        after=a.ratio,
    )
