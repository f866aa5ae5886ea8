"""Are tokens drawn as they were asked for? The server's own log-probabilities are the distribution to draw from.

If a token with the stated probability p is drawn from p, the mean of q/p is 1 for every other distribution q. So the
product of q/p over all draws is the capital of a gambler who believes in q (`wagers`). The q are the settings that
servers apply without being asked (`draw_settings`), or one token for every seed. No model is needed, and no noise has
to be allowed for: both sides are the server's own words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.errors import AssayError
from assay.verify.endpoint.audit_findings import AuditFinding
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.dialects import FILTERS_STAY, NO_FILTER
from assay.verify.endpoint.draw_settings import (
    SETTINGS,
    DrawnToken,
    DrawSetting,
    LikelyFamily,
    capitals,
    likely_families,
)
from assay.verify.endpoint.served_text import ServedText
from assay.verify.endpoint.standings import LIKELY
from assay.verify.endpoint.wagers import log_mean
from assay.verify.endpoint.wire import Unanswered

TEXTS, TOKENS = 4, 24  # texts that are continued, and tokens of each
MOST_TEXTS, SUSPICIOUS = 16, 3.0  # more texts are continued while the capital is above this
SLACK = 0.5  # nats, by which an honest server's log-probability of a token may be above the claim's
SLACK_FILTERED = 1.9  # the same where its own filter could not be switched off: it leaves a quarter of the mass
REPEAT_STAKE = 0.9  # share of the capital on the token of the first seed
AS_GOOD = 0.2  # nats below the best token that rounding explains, where a server always takes the best
SAME_TOKENS = "different seeds draw the same tokens: one seed for all, or an answer that was kept from before"


def against_stated(
    draws: Sequence[DrawnToken], settings: Sequence[DrawSetting] = SETTINGS
) -> tuple[float, list[LikelyFamily]]:
    """ln of the capital against the stated distribution, and the families of settings, the likeliest first."""
    found = capitals(draws, settings)
    return log_mean(found.values()), likely_families(found, settings)


# --- asking and judging


def judged_draws(client: Client, texts: Sequence[str], top: int, alpha: float, notes: list[str]) -> list[AuditFinding]:
    """Continue two texts with two seeds each, at temperature 1 without a filter, and judge the tokens.

    The bets may go on for as long as one likes. So other texts follow while the capital has grown and decides nothing.
    """
    draws: list[DrawnToken] = []
    made: list[tuple[int, ...]] = []
    alone: dict[str, Any] = dict(NO_FILTER)
    for seed in range(MOST_TEXTS):
        if seed >= TEXTS and not _is_open(draws, made, alpha, _settings(alone)):
            break
        text = texts[seed % min(2, len(texts)) if seed < TEXTS else seed % len(texts)]
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
    return _judged(draws, made, alpha, _settings(alone)) if draws else []


def _settings(alone: Mapping[str, Any]) -> tuple[DrawSetting, ...]:
    """Those that may be held against a server: without the switches of `alone`, a filter of its own is no offence."""
    return SETTINGS if alone else tuple(s for s in SETTINGS if s.spreads)


def _is_open(
    draws: Sequence[DrawnToken], texts: Sequence[tuple[int, ...]], alpha: float, settings: Sequence[DrawSetting]
) -> bool:
    """Would more draws decide?"""
    if not draws or _judged(draws, texts, alpha, settings):
        return False
    return against_stated(draws, settings)[0] >= math.log(SUSPICIOUS)


def _judged(
    draws: Sequence[DrawnToken], texts: Sequence[tuple[int, ...]], alpha: float, settings: Sequence[DrawSetting]
) -> list[AuditFinding]:
    chance = sum(d.scores.get(d.token, 0.0) for d in draws) / 2
    same = len(texts) >= TEXTS and len(set(texts[0:TEXTS:2])) == 1 and len(set(texts[1:TEXTS:2])) == 1
    best = all(d.scores.get(d.token, -math.inf) > max(d.scores.values()) - AS_GOOD for d in draws)
    if same and chance < math.log(alpha) and not best:
        return [AuditFinding("sampling", SAME_TOKENS, 1 - math.exp(chance), "samp-rng", -chance)]
    capital, likely = against_stated(draws, settings)
    if capital < -math.log(alpha):
        return []
    words = f"tokens are not drawn as asked (temperature 1, no filter): most like {likely[0].best}"
    tied = tuple(row.best for row in likely[1:] if row.share > LIKELY * likely[0].share)
    return [AuditFinding("sampling", words, min(likely[0].share, 1 - alpha), "", capital, tied)]


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
    words = SAME_TOKENS
    if greedy:
        words = "different seeds draw the same tokens, the best ones: most like top-k 1 or temperature 0"
    return [AuditFinding("sampling", words, 1 - math.exp(-capital), "samp-rng", capital)]
