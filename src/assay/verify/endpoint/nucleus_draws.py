"""Many draws under top-p: do they come from the nucleus, the smallest set of tokens whose mass reaches p?

The nucleus is computed from the definition, and again from the server's own log-probabilities, which come with each
draw: the server's arithmetic may rank two near tokens the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.stages import each
from assay.verify.endpoint.audit_findings import AuditFinding
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.prompt_ids import TEXT
from assay.verify.thresholds import CHANCE, FILTERED, RARE, SWAPPED

Array = NDArray[Any]
Progress = Callable[[str], None]
KEPT = (3, 6)  # smallest and largest nucleus that is used
ALONE = {"top_k": 0, "min_p": 0.0}  # switches off default filters that would cut before top-p


@dataclass(frozen=True)
class Draw:
    """A prompt and a top-p with a small nucleus in which no token is rare."""

    prompt: str
    top_p: float
    kept: tuple[int, ...]  # the smallest set of tokens whose mass reaches top-p, the likeliest first
    shares: tuple[float, ...]  # their probabilities among themselves
    logits: Array
    draws: int


def _small_nucleus(claimed: ClaimedModel, client: Client) -> Draw | None:
    """The draw of which the token that crosses p comes most often: it settles the most with the fewest requests.

    At temperature 1, so that it does not matter whether the server filters before or after it. Prompts are the
    beginnings of the text, and top-p lies where the last token's mass is half spent, away from what noise moves. Three
    tokens at least: two that remain without the last tell a wrong filter from a generator that does not move.
    """
    tokenizer, found = client.tokenizer, list[tuple[float, Draw]]()
    ids, known = tokenizer.encode(TEXT), set(client.known.values())
    logits = claimed.at(ids, range(1, len(ids) + 1)).astype(np.float64)
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
    return best if share >= RARE else None


def _needed(rarest: float, likeliest: float) -> int:
    """Number of draws after which a missing token, or only the likeliest one, is no chance."""
    return int(np.ceil(np.log(CHANCE) / np.log(max(1 - 0.8 * rarest, min(1.1 * likeliest, 0.99)))))


def sampling(claimed: ClaimedModel, client: Client, say: Progress, notes: list[str]) -> list[AuditFinding]:
    """Draws under top-p: do they come from the smallest set of tokens whose mass reaches p?"""
    plan = _small_nucleus(claimed, client)
    if plan is None:
        notes.append("sampling was not tried: after every beginning of the probe's text one token takes it all")
        return []
    say(f"drawing {plan.draws} tokens at top-p {plan.top_p:g}: {len(plan.kept)} may come")
    drawn: list[int] = []
    own: set[int] = set()
    alone: dict[str, Any] = dict(ALONE)
    for seed in each(range(plan.draws), "drawing tokens", "draws"):
        try:
            try:
                reply = client.complete(plan.prompt, n=1, temperature=1.0, top_p=plan.top_p, seed=seed, **alone)
            except AssayError:
                if seed or not alone:
                    raise
                alone = {}  # the server refuses parameters that OpenAI's API lacks
                reply = client.complete(plan.prompt, n=1, temperature=1.0, top_p=plan.top_p, seed=seed)
        except AssayError as error:
            notes.append(f"sampling was not tried: {error}")
            return []
        if not reply.steps:
            notes.append("sampling was not judged: no log-probabilities come with a drawn token")
            return []
        token = reply.steps[0].id
        drawn.append(-1 if token is None else token)  # those that may come are told by their text
        own |= _nucleus(plan, reply.steps[0].scores)
    return _judge_draws(plan, drawn, own)


def _nucleus(plan: Draw, scores: Mapping[int, float]) -> set[int]:
    """The tokens that a server keeps by its own log-probabilities, as far as it shows them.

    Some servers give them as they are after the filter: those say nothing about it.
    """
    order = sorted(scores, key=lambda token: -scores[token])
    mass = np.cumsum(np.exp([scores[token] for token in order]))
    total = np.logaddexp.reduce(plan.logits)
    kept = order[: int(np.searchsorted(mass, plan.top_p)) + 1]
    return {token for token in kept if abs(plan.logits[token] - total - scores[token]) < FILTERED}


def _judge_draws(plan: Draw, drawn: Sequence[int], own: Set[int]) -> list[AuditFinding]:
    def named(fault: str, how: str, certainty: float) -> list[AuditFinding]:
        return [AuditFinding("sampling", how, certainty, fault)]

    outside = [i for i in drawn if i not in plan.kept and i not in own]
    if len(outside) > 0.05 * len(drawn):
        tail = np.argsort(plan.logits)[: len(plan.logits) // 2]
        rare = bool(np.isin(drawn, tail).sum() > 0.3 * len(drawn))
        how = f"{len(outside)} of {len(drawn)} draws lie outside the nucleus of {len(plan.kept)}"
        found = named("samp-topp-order", how, 0.7)
        return found if rare else [replace(found[0], equivalent_faults=("samp-filter-order",))]
    if len(set(drawn)) == 1:
        return named("samp-rng", f"{len(drawn)} seeds gave one and the same token", 0.9)
    last = plan.kept[-1]
    near = [i for i in plan.kept if plan.logits[i] - plan.logits[last] < SWAPPED]  # a server's noise may swap these
    missing = [i for i in near if i not in drawn]
    if len(missing) == 1 and set(drawn) == set(plan.kept) - set(missing):
        chance = (1 - plan.shares[-1]) ** len(drawn)
        how = f"the token that crosses p was never drawn in {len(drawn)} (chance {chance:.0e})"
        return named("samp-topp-boundary", how, 0.95)
    return []
