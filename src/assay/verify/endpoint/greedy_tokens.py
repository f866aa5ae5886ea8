"""Tokens that are not the best ones at temperature 0: were they drawn, or which rule chose them?

The server's own log-probabilities prove that the best tokens were not taken. Equal requests tell draws from rules:
draws differ. A penalty on tokens of the context passes over such tokens alone. So the penalty is named if every token
that is better than a chosen one came before. That must hold at nearly all places where the best one was not chosen, and
be no chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.verify.endpoint.audit_findings import AuditFinding
from assay.verify.endpoint.client import Client, ScoredToken
from assay.verify.endpoint.dialects import NO_RULES
from assay.verify.endpoint.draw_settings import AT_ZERO, DrawnToken, DrawSetting, capitals, chances, likely_families
from assay.verify.endpoint.served_text import ServedText
from assay.verify.endpoint.standings import LIKELY

NOT_BEST = 0.05  # nats below its own best token: beyond rounding, a greedy server never chooses such a token
FACT = 0.99  # confidence in what the server's own words prove: only a misread answer could explain it otherwise
NO_CHANCE = 1e-3  # probability that draws repeat their answers
TIE = 0.2  # nats: noise may choose either of two tokens that are nearer than this
PASSED_OVER = 0.8  # share of the tokens below the best that a penalty has to explain
UNKNOWN_RULE = 0.5  # confidence in a temperature where the same tokens came again
UNLISTED, LEAST_OFF = 0.2, 5  # probability of unlisted tokens, and tokens below the best, that a rule is tried on
CHOSEN = 0.45  # probability of a token that a rule chooses, or of one of the two among which it chooses
ALL_BUT_TIES, RULE = 0.9, 0.9  # share of the tokens that a rule has to choose, and the confidence in it then
MOST_TEXTS = 3  # that are asked for again


def below_best(chosen: DrawnToken) -> float:
    """Nats by which a token is less likely than the server's own best one."""
    return max(chosen.scores.values()) - chosen.scores.get(chosen.token, -math.inf)


@dataclass
class Again:
    """Answers that were asked for twice."""

    drawn: bool = False  # one of them differs by more than a near tie, and no penalty gives both
    chance: float = 0.0  # ln of the probability that draws give what came again


def asked_again(
    chosen: Sequence[DrawnToken], answers: Sequence[Sequence[int]], ask: Callable[[int], Sequence[int]]
) -> Again:
    """Ask for answers again, those with the most tokens below the best first, until that tells draws from rules.

    `answers` are the ids of prompts and answers, and `ask` gives the ids of one of them again.
    """
    setting, found = _setting(_likely(chosen, "temperature")), Again()
    steps = {(step.before, step.token): step for step in chosen}
    known = [[s for i, t in enumerate(ids) if (s := steps.get((tuple(ids[:i]), t)))] for ids in answers]
    order = sorted(range(len(answers)), key=lambda i: -sum(below_best(step) > NOT_BEST for step in known[i]))
    for i in order[:MOST_TEXTS]:
        again = tuple(ask(i))
        for step in known[i]:
            at = len(step.before)
            if again[:at] != step.before or at >= len(again):
                break
            if again[at] != step.token:
                other = replace(step, token=again[at])
                far = abs(below_best(other) - below_best(step)) > TIE
                found.drawn = far and not (_came_all(step) and _came_all(other))
                break
            found.chance += math.log(max(chances(setting, step)[1], 1e-12))
        if found.drawn or found.chance < math.log(NO_CHANCE):
            break
    return found


def is_default(client: Client, texts: Sequence[ServedText], chosen: Sequence[DrawnToken], n: int, top: int) -> bool:
    """Are the best tokens chosen where a request switches off every other rule? A server's default is no lie.

    The texts with the most tokens below the best are asked for.
    """

    def off(text: ServedText) -> int:
        prompt = text.ids[: text.n_prompt]
        return sum(below_best(s) > NOT_BEST for s in chosen if s.before[: text.n_prompt] == prompt)

    rules: dict[str, Any] = dict(NO_RULES)
    steps = list[ScoredToken]()
    for text in sorted(texts, key=off, reverse=True)[:MOST_TEXTS]:
        reply = client.complete(text.label, n=n, top=top, **rules)
        steps += [step for step in reply.steps[reply.n_prompt :] if len(step.scores) > 1]
    gaps = [max(s.scores.values()) - s.scores.get(-1 if s.id is None else s.id, -math.inf) for s in steps]
    return bool(gaps) and max(gaps) <= NOT_BEST


def judged_greedy(chosen: Sequence[DrawnToken], again: Again) -> AuditFinding:
    """The finding for tokens that are not the best ones."""
    off = [step for step in chosen if below_best(step) > NOT_BEST]
    count = f"{len(off)} of {len(chosen)} tokens are not the largest of the server's own log-probabilities"
    best, tied = _likely(chosen, "penalty")
    usual = sum(_came(step, max(step.scores, key=step.scores.__getitem__)) for step in chosen) / len(chosen)
    passed = sum(_came_all(step) for step in off)
    if not again.drawn and passed >= PASSED_OVER * len(off):
        sure = (1 - _by_chance(passed, len(off), min(usual, 0.9))) * (1 - math.exp(again.chance))
        words = f"a penalty on tokens that came before was not asked for, and is applied: at temperature 0, {count}"
        return AuditFinding("sampling", f"{words}; most like {best}", min(FACT, sure), equivalent=tied)
    words, sure = f"temperature 0 was asked for and not honoured: {count}", FACT
    rule = _rule(chosen, "XTC") if again.drawn else ""
    if rule:
        return AuditFinding("sampling", f"{words}; most like {rule}", RULE)
    if not again.drawn:
        sure = UNKNOWN_RULE
        rule = _rule(chosen, "typical") if again.chance < math.log(NO_CHANCE) else ""
        if rule:
            return AuditFinding("sampling", f"{words}; they come again, most like the best of {rule}", RULE)
        if again.chance < math.log(NO_CHANCE):
            words += (
                "; they come again: drawn with one seed, or chosen by a rule, such as typical sampling or loosely "
                "accepted drafts"
            )
    return AuditFinding("sampling", words, sure, "samp-temp0")


def _by_chance(found: int, n: int, share: float) -> float:
    """Upper tail of the binomial distribution: the probability of at least this many of `n` events."""
    return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(found, n + 1))


def _came(step: DrawnToken, token: int) -> bool:
    return token in step.before


def _came_all(step: DrawnToken) -> bool:
    """Did every token that is better than the chosen one come before?"""
    own = step.scores.get(step.token, -math.inf)
    return all(_came(step, token) for token, value in step.scores.items() if value > own + NOT_BEST)


def _likely(chosen: Sequence[DrawnToken], family: str) -> tuple[str, tuple[str, ...]]:
    """The likeliest setting of the families with this word, and the best of those that are as likely."""
    settings = [s for s in AT_ZERO if family in s.family]
    families = likely_families(capitals(chosen, settings), settings, stated=False)
    return families[0].best, tuple(row.best for row in families[1:] if row.share > LIKELY * families[0].share)


def _rule(chosen: Sequence[DrawnToken], family: str) -> str:
    """The setting of a family that chooses these tokens, if one does. Places with much unlisted mass are left out:
    the rules are not known there."""
    known = [step for step in chosen if step.unlisted < UNLISTED]
    if sum(below_best(step) > NOT_BEST for step in known) < LEAST_OFF:
        return ""
    rivals = [s for s in AT_ZERO if s.family in (family, "temperature")]
    lead = likely_families(capitals(known, rivals), rivals, stated=False)[0]
    if lead.family != family or lead.share < RULE:
        return ""
    rule = _setting((lead.best, ()))
    explained = sum(chances(rule, step)[1] > CHOSEN for step in known)
    return rule.name if explained >= ALL_BUT_TIES * len(known) else ""


def _setting(named: tuple[str, tuple[str, ...]]) -> DrawSetting:
    return next(s for s in AT_ZERO if s.name == named[0])
