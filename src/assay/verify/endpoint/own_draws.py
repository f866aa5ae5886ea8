"""Are tokens drawn as they were asked for? The server's own log-probabilities are the distribution to draw from.

If a token with the stated probability p is drawn from p, the mean of q/p is 1 for every other distribution q. So the
product of q/p over all draws is the capital of a gambler who believes in q (`wagers`). The q are the settings that
servers apply without being asked (`draw_settings`), and one seed for all: the token that the same request with another
seed drew. No model is needed, and no noise has to be allowed for: both sides are the server's own words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.verify.endpoint.audit_findings import AuditFinding
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.dialects import FILTERS_STAY, NO_FILTER, NO_RULES
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

LEAST_DRAWN, MOST_DRAWN, TOKENS = 8, 24, 24  # answers, and tokens of each
SUSPICIOUS = 3.0  # more are drawn while a family of settings is so much likelier than what was asked
SURE = 0.9  # and has a smaller share than this
SLACK = 0.5  # nats, by which an honest server's log-probability of a token may be above the claim's
SLACK_FILTERED = 1.9  # the same where its own filter could not be switched off: it leaves a quarter of the mass
REPEAT_STAKE = 0.9  # share of the capital on the token of the first seed
AS_GOOD = 0.2  # nats below the best token that rounding explains, where a server always takes the best
SAME_TOKENS = "different seeds draw the same tokens: one seed for all, or an answer that was kept from before"

# Its capital is `repeated`.
ONE_SEED = DrawSetting("one seed", SAME_TOKENS, lambda ids, logp, before: np.exp(logp), spreads=True)


def against_stated(
    draws: Sequence[DrawnToken], settings: Sequence[DrawSetting] = SETTINGS
) -> tuple[float, list[LikelyFamily]]:
    """ln of the capital against the stated distribution, and the families of settings, the likeliest first."""
    bets = repeated(draws, filtered=len(settings) < len(SETTINGS))
    found = capitals(draws, settings) | {ONE_SEED.name: bets}
    return log_mean(found.values()), likely_families(found, (*settings, ONE_SEED))


def repeated(draws: Sequence[DrawnToken], *, filtered: bool) -> float:
    """ln of the capital of bets that a request draws the tokens of the same one with another seed.

    A token that is not listed is bet on as if it were all of those. `filtered`: the server may have a filter of its
    own. That makes the other tokens likelier than stated, and may leave the best one alone, on which no bet is made.
    """
    capital = 0.0
    for drawn in draws:
        if drawn.repeats is None:
            continue
        stated = drawn.scores.get(drawn.repeats, _unlisted(drawn))
        if filtered and stated > max(drawn.scores.values()) - AS_GOOD:
            continue
        p = min(1.0, math.exp(stated + (SLACK_FILTERED if filtered else 0.0)))
        capital += math.log(1 - REPEAT_STAKE + REPEAT_STAKE / max(p, 1e-12) * (drawn.token == drawn.repeats))
    return capital


def _unlisted(drawn: DrawnToken) -> float:
    """ln of the probability of all tokens that are not listed."""
    return math.log(max(1e-12, 1 - sum(math.exp(value) for value in drawn.scores.values())))


# --- asking and judging


def judged_draws(client: Client, texts: Sequence[str], top: int, alpha: float, notes: list[str]) -> list[AuditFinding]:
    """Continue texts with two seeds each, at temperature 1 without a filter, and judge the tokens.

    The bets may go on for as long as one likes. So more texts follow the first two while a family of settings explains
    the draws better than what was asked, and none is certain.
    """
    draws: list[DrawnToken] = []
    before = dict[tuple[int, ...], int]()  # the ids so far -> the token that was drawn after them first
    alone: dict[str, Any] = {**NO_FILTER, **NO_RULES}
    for seed in range(MOST_DRAWN):
        if seed >= LEAST_DRAWN and seed % 2 == 0:
            capital, likely = against_stated(draws, _settings(alone))
            found = _judged(capital, likely, alpha)
            if not draws or any(f.confidence >= SURE for f in found) or not _is_open(likely):
                return found
        text = texts[seed // 2 % len(texts)]
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
        fresh = list[tuple[tuple[int, ...], int]]()
        for step in steps:
            # A token of unknown id counts as one that was not listed. To leave it out would look like a filter.
            token, key = -1 if step.id is None else step.id, tuple(ids)
            draws.append(DrawnToken(token, dict(step.scores), key, top, before.get(key)))
            if step.id is None:
                break
            fresh.append((key, token))
            ids.append(token)
        before = dict(fresh) | before
    return _judged(*against_stated(draws, _settings(alone)), alpha) if draws else []


def _settings(alone: Mapping[str, Any]) -> tuple[DrawSetting, ...]:
    """Those that may be held against a server: without the switches of `alone`, a filter of its own is no offence."""
    return SETTINGS if alone else tuple(s for s in SETTINGS if s.spreads)


def _is_open(likely: Sequence[LikelyFamily]) -> bool:
    """Is a family of settings so likely that more draws would decide?"""
    return likely[0].share >= SUSPICIOUS * (1 - sum(row.share for row in likely))


def _judged(capital: float, likely: Sequence[LikelyFamily], alpha: float) -> list[AuditFinding]:
    if capital < -math.log(alpha):
        return []
    lead, sure = likely[0], min(likely[0].share, 1 - alpha)
    tied = tuple(row.best for row in likely[1:] if row.share > LIKELY * lead.share)
    if lead.family == ONE_SEED.family:
        return [AuditFinding("sampling", SAME_TOKENS, sure, "samp-rng", capital, tied)]
    words = f"tokens are not drawn as asked (temperature 1, no filter): most like {lead.best}"
    return [AuditFinding("sampling", words, sure, "", capital, tied)]


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
