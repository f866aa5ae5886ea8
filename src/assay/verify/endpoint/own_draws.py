"""Are tokens drawn as they were asked for? The server's own log-probabilities are the distribution to draw from.

If a token with the stated probability p is drawn from p, the mean of q/p is 1 for every other distribution q. So the
product of q/p over all draws is the capital of a gambler who believes in q (`wagers`). The q are the settings that
servers apply without being asked: another temperature, top-k, top-p, min-p, a repetition penalty, or one token for
every seed. No model is needed, and no noise has to be allowed for: both sides are the server's own words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.endpoint.audit_findings import AuditFinding
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.dialects import FILTERS_STAY, NO_FILTER
from assay.verify.endpoint.served_text import ServedText
from assay.verify.endpoint.standings import LIKELY
from assay.verify.endpoint.wagers import log_mean
from assay.verify.endpoint.wire import Unanswered

Array = NDArray[Any]
TEXTS, TOKENS = 4, 24  # texts that are continued, and tokens of each
SLACK = 0.5  # nats, by which an honest server's log-probability of a token may be above the claim's
SLACK_FILTERED = 1.9  # the same where its own filter could not be switched off: it leaves a quarter of the mass
REPEAT_STAKE = 0.9  # share of the capital on the token of the first seed
AS_GOOD = 0.2  # nats below the best token that rounding explains, where a server always takes the best
DOUBT = 0.02  # share of the stated distribution in every other one, so that one token does not end a bet
Shape = Callable[[Array, Array, Sequence[int]], Array]  # ids, log-probabilities and earlier ids -> weights


@dataclass(frozen=True)
class DrawnToken:
    """A token drawn at temperature 1, the server's log-probabilities at its place, and the ids before it."""

    token: int
    scores: Mapping[int, float]
    before: tuple[int, ...]
    top: int  # how many of the likeliest tokens the server lists; the drawn one may be listed beside them


@dataclass(frozen=True)
class DrawSetting:
    """A way to draw that was not asked for."""

    name: str
    shape: Shape
    spreads: bool = False  # gives unlikely tokens more than was asked: no filter of a server's own looks like it


def _temperature(t: float) -> DrawSetting:
    return DrawSetting(f"temperature {t:g}", lambda ids, logp, before: np.exp(logp / t), spreads=t > 1)


def _top_k(k: int) -> DrawSetting:
    return DrawSetting(f"top-k {k}", lambda ids, logp, before: np.where(np.arange(len(ids)) < k, np.exp(logp), 0.0))


def _top_p(p: float) -> DrawSetting:
    def shape(ids: Array, logp: Array, before: Sequence[int]) -> Array:
        mass = np.cumsum(np.exp(logp))
        return np.where(mass - np.exp(logp) < p, np.exp(logp), 0.0)

    return DrawSetting(f"top-p {p:g}", shape)


def _min_p(p: float) -> DrawSetting:
    return DrawSetting(
        f"min-p {p:g}", lambda ids, logp, before: np.where(logp >= logp[0] + math.log(p), np.exp(logp), 0)
    )


def _penalty(r: float) -> DrawSetting:
    def shape(ids: Array, logp: Array, before: Sequence[int]) -> Array:
        return np.where(np.isin(ids, before[-64:]), np.exp(logp * r), np.exp(logp))

    return DrawSetting(f"repetition penalty {r:g}", shape)


SETTINGS: tuple[DrawSetting, ...] = (
    *(_temperature(t) for t in (0.01, 0.3, 0.5, 0.7, 0.8, 1.3, 1.7)),
    *(_top_k(k) for k in (1, 2, 5, 10)),
    *(_top_p(p) for p in (0.5, 0.8, 0.9)),
    *(_min_p(p) for p in (0.05, 0.1)),
    _penalty(1.1),
    _penalty(1.3),
)


def payoff(setting: DrawSetting, drawn: DrawnToken) -> float:
    """q/p of a draw. All tokens that the server did not list count as one, shaped as the least of those listed."""
    order = sorted(drawn.scores, key=lambda i: -drawn.scores[i])[: drawn.top]
    ids, logp = np.array(order), np.array([drawn.scores[i] for i in order])
    stated = np.exp(logp)
    rest = max(0.0, 1 - float(stated.sum()))
    weights = setting.shape(ids, logp, drawn.before)
    unlisted = rest * float(weights[-1]) / max(float(stated[-1]), 1e-30)
    total = float(weights.sum()) + unlisted
    at = np.flatnonzero(ids == drawn.token)
    p, q = (float(stated[at[0]]), float(weights[at[0]])) if len(at) else (rest, unlisted)
    return DOUBT + (1 - DOUBT) * q / max(total, 1e-30) / max(p, 1e-12)


def capitals(draws: Sequence[DrawnToken], settings: Sequence[DrawSetting] = SETTINGS) -> dict[str, float]:
    """ln of the capital of every setting after all draws."""
    return {s.name: sum(math.log(max(payoff(s, d), 1e-12)) for d in draws) for s in settings}


def against_stated(
    draws: Sequence[DrawnToken], settings: Sequence[DrawSetting] = SETTINGS
) -> tuple[float, list[tuple[str, float]]]:
    """ln of the capital against the stated distribution, and the settings by their own capital, the best first."""
    found = capitals(draws, settings)
    return log_mean(found.values()), sorted(found.items(), key=lambda item: -item[1])


def share_of_best(capitals_found: Sequence[float]) -> float:
    """The posterior probability of the best setting: a capital is its likelihood over that of the stated distribution.

    All settings and the stated distribution are equally likely at first.
    """
    return math.exp(max(capitals_found) - log_mean([0.0, *capitals_found])) / (1 + len(capitals_found))


# --- asking and judging


def judged_draws(client: Client, texts: Sequence[str], top: int, alpha: float, notes: list[str]) -> list[AuditFinding]:
    """Continue two texts with two seeds each, at temperature 1 without a filter, and judge the tokens."""
    draws: list[DrawnToken] = []
    made: list[tuple[int, ...]] = []
    alone: dict[str, Any] = dict(NO_FILTER)
    for seed in range(TEXTS):
        text = texts[seed % min(2, len(texts))]
        ask = partial(client.complete, text, n=TOKENS, top=top, temperature=1.0, top_p=1.0, seed=1000 + seed)
        try:
            try:
                reply = ask(**alone)
            except Unanswered:
                raise
            except AssayError:
                if not alone:
                    raise
                alone = {}
                reply = ask()
                notes.append(FILTERS_STAY)
        except AssayError as error:
            notes.append(f"drawing was not tried: {error}")
            return []
        ids = list(client.tokenizer.encode(text))
        steps = reply.steps[reply.n_prompt :]
        if any(len(step.scores) < top for step in steps):
            # Which ids are missing may depend on the token drawn, and that would look like a filter.
            notes.append("draws were not judged: some of the listed tokens cannot be told by their text")
            return []
        made.append(())
        for step in steps:
            # A token of unknown id counts as one that was not listed. To leave it out would look like a filter.
            draws.append(DrawnToken(-1 if step.id is None else step.id, dict(step.scores), tuple(ids), top))
            if step.id is None:
                break
            ids.append(step.id)
            made[-1] += (step.id,)
    settings = SETTINGS if alone else tuple(s for s in SETTINGS if s.spreads)
    return _judged(draws, made, alpha, settings) if draws else []


def _judged(
    draws: Sequence[DrawnToken], texts: Sequence[tuple[int, ...]], alpha: float, settings: Sequence[DrawSetting]
) -> list[AuditFinding]:
    capital, ranked = against_stated(draws, settings)
    if capital >= -math.log(alpha):
        tied = tuple(name for name, value in ranked[1:] if value > ranked[0][1] + math.log(LIKELY))
        words = f"tokens are not drawn as asked (temperature 1, no filter): most like {ranked[0][0]}"
        confidence = share_of_best([value for _, value in ranked])
        return [AuditFinding("sampling", words, confidence, "", capital, tied)]
    chance = sum(d.scores.get(d.token, 0.0) for d in draws) / 2
    same = len(texts) == TEXTS and len(set(texts[0::2])) == 1 and len(set(texts[1::2])) == 1
    if same and chance < math.log(alpha):
        words = "different seeds draw the same tokens"
        return [AuditFinding("sampling", words, 1 - math.exp(chance), "samp-rng", -chance)]
    return []


# --- without log-probabilities


@dataclass(frozen=True)
class Repeat:
    """Whether a second seed drew what the first one did, and ln of the probability that the claim gives to this."""

    same: bool
    chance: float
    below: float  # nats below the claim's likeliest token


def repeats(first: ServedText, second: ServedText, claimed: ClaimedModel) -> list[Repeat]:
    """Of a text that two seeds continued, up to the first token that differs: from there on the texts part."""
    found: list[Repeat] = []
    for a, b, row in zip(first.places, second.places, claimed.rows(first), strict=False):
        if a.token is None:
            break
        found.append(Repeat(a.token == b.token, float(row[a.token]), float(row.max() - row[a.token])))
        if not found[-1].same:
            break
    return found


def judged_repeats(pairs: Sequence[Sequence[Repeat]], alpha: float, *, filtered: bool = False) -> list[AuditFinding]:
    """Texts that two seeds continued. A bet that the second draw is the first one's pays 1/p if it is.

    `filtered`: the server may have left out unlikely tokens, which makes the others likelier than the claim says.
    """
    capital, greedy, slack = 0.0, True, SLACK_FILTERED if filtered else SLACK
    for repeat in (repeat for pair in pairs for repeat in pair):
        p = math.exp(min(0.0, repeat.chance + slack))
        capital += math.log(1 - REPEAT_STAKE + (REPEAT_STAKE / p if repeat.same else 0.0))
        greedy = greedy and (repeat.below < AS_GOOD or not repeat.same)
    if capital < -math.log(alpha):
        return []
    words = "different seeds draw the same tokens"
    if greedy:
        words += ", the best ones: most like top-k 1 or temperature 0"
    return [AuditFinding("sampling", words, 1 - math.exp(-capital), "samp-rng", capital)]
