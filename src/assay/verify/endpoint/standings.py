"""The state of an audit: distances of all blocks to the claim and its alternatives, and what follows from them.

`Scoreboard` gathers. With log-probabilities its bets are on the distances of blocks; without, on the tokens that were
chosen (`token_bets`). `standing` says where an alternative stands: nearer than the claim, excluded, too near the claim
to be told from it, or undecided. All error rates are `alpha`, by the bets of `wagers`.

`confidence` is the share of one alternative among all that were tried, the claim among them. The weight of each is its
p-value: 1 over the capital that was won against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.endpoint.alternatives import Alternative
from assay.verify.endpoint.claimed_model import CLAIM, COMPANION, ClaimedModel, Setting
from assay.verify.endpoint.served_text import BLOCK, ServedText, in_blocks, place_losses, row_gaps
from assay.verify.endpoint.token_bets import SPREAD, TokenBets
from assay.verify.endpoint.wagers import blocks_needed, distance_path, log_mean, nearer_capital, nearer_path

Array = NDArray[Any]
State = Literal["nearer", "excluded", "too near", "undecided"]
LEAST_NOISE = 0.005  # nats: printed numbers and float32
APART = 1.0  # an alternative whose distance from the claim is below this many times the noise cannot be told from it
FITS = 2.0  # a prediction within this many times the noise fits
FITS_TOKENS = math.log(20.0)  # tokens fit a prediction unless bets on noise won this much against it
LIKELY = 0.1  # an alternative with this share of the weight of the best is as likely
UNSTEADY = 0.6  # share of its distance from the claim that an alternative moves by in another arithmetic
SUSPICIOUS = math.log(3.0)  # capital against the claim with which no audit ends as claimed
SAME = 1e-9  # nats squared: two losses this near are equal, and no bet is made


@dataclass(frozen=True)
class Standing:
    """Where an alternative stands after the blocks so far; capitals are natural logarithms."""

    alternative: Alternative
    state: State
    favour: float  # against the claim, for the alternative
    against: float  # against the alternative, for the claim
    wins: int
    losses: int
    distance: float  # nats, of the server from the alternative
    apart: float  # nats, of the alternative from the claim

    @property
    def name(self) -> str:
        return self.alternative.name


@dataclass(frozen=True)
class ErrorSize:
    """How far from the claim the server is, and an alternative would be, in nats at the usual block."""

    served: float
    expected: float
    own: float  # of the alternative from itself in another arithmetic

    @property
    def ratio(self) -> float:
        return self.served / self.expected if self.expected > 0 else math.inf

    @property
    def unsteady(self) -> bool:
        """Are its errors others in another arithmetic?"""
        return self.own >= UNSTEADY * self.expected


@dataclass
class Scoreboard:
    """Blocks in the order in which they were seen."""

    claimed: ClaimedModel
    alpha: float
    extra_noise: float = 0.0  # nats: rounding of printed numbers, differences between equal requests
    coarse: Setting | None = None  # a second companion, for files that the fast engine does not round
    texts: list[ServedText] = field(default_factory=list)
    claim: list[float] = field(default_factory=list)  # nats squared, of the nearer of claim and companion
    exact: list[float] = field(default_factory=list)  # of the claim in exact arithmetic alone
    gaps: list[float] = field(default_factory=list)  # between claim and companion
    losses: dict[str, list[float]] = field(default_factory=dict)
    aparts: dict[str, list[float]] = field(default_factory=dict)
    own_gaps: dict[str, list[float]] = field(default_factory=dict)  # between an alternative and its companion
    alternatives: dict[str, Alternative] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)  # named before the evidence was seen: these may raise the alarm
    tokens: TokenBets = field(default_factory=TokenBets)
    alone: bool = True  # no text so far shows log-probabilities

    @property
    def goal(self) -> float:
        return -math.log(self.alpha)

    @property
    def suspicious(self) -> bool:
        """Has the capital against the claim grown, though it does not decide?"""
        return bool(self.texts) and self.evidence_path()[-1] >= SUSPICIOUS

    @property
    def places(self) -> int:
        return sum(len(text.places) for text in self.texts)

    def add(self, text: ServedText) -> None:
        """A text, judged by the claim and by the alternatives so far."""
        exact, fast = self.claimed.rows(text), self.claimed.rows(text, COMPANION)
        own, other = in_blocks(place_losses(text, exact)), in_blocks(place_losses(text, fast))
        each = row_gaps(text, exact, fast)
        if self.coarse is not None:
            each = [float(np.fmax(a, b)) for a, b in zip(each, self._rough(text, exact), strict=True)]
        gaps = in_blocks(each)
        self.alone = self.alone and not any(len(place.scores) > 1 for place in text.places)
        self.texts.append(text)
        self.exact += own
        self.claim += [float(np.fmin(a, b)) for a, b in zip(own, other, strict=True)]
        self.gaps += gaps
        if self.alone:
            usual = float(np.nan_to_num(np.nanmedian(self.gaps)))
            scales = [SPREAD * math.sqrt(np.fmax(gap, usual) + LEAST_NOISE**2) for gap in each]
            self.tokens.begin(text, exact, fast, scales)
        for alternative in self.alternatives.values():
            self._judge(alternative, text, keep=True)

    def _rough(self, text: ServedText, exact: Array) -> list[float]:
        """The gaps between the claim and its second companion."""
        assert self.coarse is not None
        return row_gaps(text, exact, self.claimed.rows(text, self.coarse))

    def register(self, alternative: Alternative) -> None:
        """An alternative that is tested from the first text on."""
        self.registered.add(alternative.name)
        self.consider(alternative, keep=True)

    def consider(self, alternative: Alternative, *, keep: bool = False, most: int | None = None) -> None:
        """An alternative, judged on all texts so far, or on the first `most`."""
        if alternative.name in self.alternatives:
            return
        self.alternatives[alternative.name] = alternative
        self.losses[alternative.name], self.aparts[alternative.name] = [], []
        for i, text in enumerate(self.texts):
            self._judge(alternative, text, keep=keep, skip=most is not None and i >= most)
        if not keep:
            self.claimed.close(alternative.setting)

    def _judge(self, alternative: Alternative, text: ServedText, *, keep: bool, skip: bool = False) -> None:
        try:
            rows = None if skip else alternative.rows(self.claimed, text, keep=keep)
        except AssayError:
            rows = None  # it cannot be computed for this text, so it says nothing here
        if self.alone:
            self.tokens.add(alternative.name, text, rows, alternative.temperature)
        blocks = -(-len(text.places) // BLOCK)
        nothing = [math.nan] * blocks
        self.losses[alternative.name] += nothing if rows is None else in_blocks(place_losses(text, rows))
        gaps = nothing if rows is None else in_blocks(row_gaps(text, self.claimed.rows(text, CLAIM), rows))
        self.aparts[alternative.name] += gaps

    # --- noise and distance

    def noise(self) -> list[float]:
        """Honest noise at each block, in nats: the gap of claim and companion, at least its median."""
        gaps = np.asarray(self.gaps, float)
        usual = float(np.nanmedian(gaps)) if len(gaps) and not np.isnan(gaps).all() else 0.0
        floor = usual + self.extra_noise**2 + LEAST_NOISE**2
        return [math.sqrt(max(g if math.isfinite(g) else 0.0, usual) - usual + floor) for g in gaps]

    def ratios(self) -> list[float]:
        """Distance to the claim over honest noise, for every block that shows something."""
        pairs = zip(self.claim, self.noise(), strict=True)
        return [math.sqrt(loss) / noise for loss, noise in pairs if not math.isnan(loss)]

    def evidence_path(self) -> list[float]:
        """ln of the capital against the claim after every block: half on distance, half on the first alternatives."""
        if self.alone:
            return self.tokens.evidence_path(sorted(self.registered)) if self.texts else []
        far = distance_path(self.ratios())
        known = [i for i, loss in enumerate(self.claim) if not math.isnan(loss)]
        bets = [self._path(self.alternatives[name], known) for name in sorted(self.registered)]
        if not bets:
            return far
        return [log_mean([f, log_mean(column)]) for f, *column in zip(far, *bets, strict=True)]

    def _path(self, alternative: Alternative, known: Sequence[int]) -> list[float]:
        """ln of the capital of even bets on an alternative; it stays where the alternative says nothing."""
        found, outcomes, capital = [], list[bool](), 0.0
        for i in known:
            loss = self.losses[alternative.name][i]
            if not math.isnan(loss) and abs(loss - self.claim[i]) > SAME:
                outcomes.append(loss < self.claim[i])
                capital = nearer_path(outcomes)[-1]
            found.append(capital)
        return found

    # --- standings

    def wins_of(self, name: str, over: str = "") -> tuple[int, int]:
        """Blocks in which an alternative is nearer than another, or than the claim; and the opposite."""
        mine = self.losses[name]
        theirs = self.losses[over] if over else self.claim
        pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if not math.isnan(a + b) and abs(a - b) > SAME]
        wins = sum(a < b for a, b in pairs)
        return wins, len(pairs) - wins

    def bet(self, name: str, over: str = "") -> float:
        """ln of the capital of bets on one prediction against another; an empty name is the claim's."""
        if self.alone:
            return self.tokens.bet(name, over)
        return nearer_capital(*self.wins_of(name, over)) if name else nearer_capital(*reversed(self.wins_of(over)))

    def misfit(self, name: str) -> float:
        """ln of the capital of bets that the server is further from an alternative than noise."""
        return self.tokens.misfit(name) if self.alone else distance_path(self._ratios_of(name))[-1]

    def standing(self, name: str) -> Standing:
        alternative = self.alternatives[name]
        wins, losses = self.wins_of(name)
        favour, against = self.bet(name), self.bet("", name)
        distance, apart = _root_mean(self.losses[name]), _root_mean(self.aparts[name])
        state: State = "undecided"
        if favour >= self.goal:
            state = "nearer"
        elif against >= self.goal:
            state = "excluded"
        elif apart < APART * _root_mean([n * n for n in self.noise()]):
            state = "too near"
        return Standing(alternative, state, favour, against, wins, losses, distance, apart)

    def standings(self) -> list[Standing]:
        return [self.standing(name) for name in self.alternatives]

    def add_companion(self, name: str, most: int | None = None) -> None:
        """Measure the noise of an alternative itself: it may amplify rounding, as a cache in few bits does."""
        companion = self.alternatives[name].companion
        if name in self.own_gaps or companion is None:
            return
        found: list[float] = []
        for text in self.texts[:most]:
            try:
                own, fast = (a.rows(self.claimed, text, keep=False) for a in (self.alternatives[name], companion))
            except AssayError:
                own = fast = None
            blocks = -(-len(text.places) // BLOCK)
            found += [math.nan] * blocks if own is None or fast is None else in_blocks(row_gaps(text, own, fast))
        self.own_gaps[name] = found
        self.claimed.close(companion.setting)

    def size_of(self, name: str) -> ErrorSize:
        """Of an alternative whose companion was added."""
        pairs = [(a, b) for a, b in zip(self.exact, self.aparts[name], strict=True) if not math.isnan(a + b)]
        served, expected = (math.sqrt(float(np.median(x))) for x in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
        own = [x for x in self.own_gaps.get(name, ()) if not math.isnan(x)]
        return ErrorSize(served, expected, math.sqrt(float(np.median(own))) if own else 0.0)

    def _ratios_of(self, name: str) -> list[float]:
        """Distance to an alternative over honest noise, for every block that shows something."""
        own = [*self.own_gaps.get(name, ())]
        usual = float(np.nanmedian(own)) if own and not np.isnan(own).all() else 0.0
        noise = [math.sqrt(max(n * n, usual)) for n in self.noise()]
        return [math.sqrt(x) / n for x, n in zip(self.losses[name], noise, strict=True) if not math.isnan(x)]

    def fits(self, name: str) -> bool:
        """Is the alternative within honest noise, at the usual block?"""
        ratios = self._ratios_of(name)
        if self.alone:
            return bool(ratios) and self.misfit(name) <= FITS_TOKENS
        return bool(ratios) and float(np.median(ratios)) <= FITS

    def best(self) -> list[Standing]:
        """Alternatives that are nearer than the claim and that no other one beats, the nearest first."""
        near = [s for s in self.standings() if s.favour > 0 and (self.alone or s.wins > s.losses)]
        near.sort(key=lambda s: -self.tokens.likelihood(s.name) if self.alone else s.distance)
        kept: list[Standing] = []
        for s in near:
            if all(self.bet(k.name, s.name) < self.goal for k in kept):
                kept.append(s)
        return kept

    def weight(self, name: str) -> float:
        """The p-value of an alternative (of the claim for an empty name): 1 over the capital won against it.

        The capital is the mean of the distance bet and of the bets of all others that they are nearer.
        """
        if not name:
            return math.exp(-max([0.0, *self.evidence_path()]))
        if not self._ratios_of(name):
            return 0.0
        others = [self.bet(other, name) for other in ("", *self.alternatives) if other != name]
        return math.exp(-max(0.0, log_mean([self.misfit(name), log_mean(others)])))

    def likely(self) -> list[tuple[Standing, float]]:
        """Alternatives that no other one beats, each with its confidence; the most confident first.

        The confidence is the share in all weights, times the weight itself: what does not fit is not believed,
        however far behind the others are.
        """
        found = [(s, self.weight(s.name)) for s in self.best()]
        rest = sum(self.weight(name) for name in self.alternatives if name not in {s.name for s, _ in found})
        total = rest + self.weight("") + sum(weight for _, weight in found)
        shares = [(s, min(1 - self.alpha, weight * weight / total) if total else 0.0) for s, weight in found]
        return sorted(shares, key=lambda pair: -pair[1])

    def more_tokens(self) -> int | None:
        """About how many more tokens decide every alternative that is apart from the claim; None if unknown."""
        needed = [math.ceil((self.goal / self.evidence_path()[-1] - 1) * len(self.claim))] if self.suspicious else []
        for s in self.standings():
            if s.state == "undecided" and not s.alternative.honest:
                if self.alone:
                    if s.against <= 0:
                        return None
                    needed.append(math.ceil((self.goal / s.against - 1) * len(self.claim)))
                    continue
                blocks = blocks_needed(s.losses, s.wins, self.goal)
                if blocks is None:
                    return None
                share = max(1, s.wins + s.losses) / max(1, len(self.claim))
                needed.append(math.ceil(blocks / share))
        per_block = self.places / max(1, len(self.claim))
        return math.ceil(max(needed, default=0) * per_block)


def _root_mean(values: Sequence[float]) -> float:
    known = np.asarray([v for v in values if math.isfinite(v)], float)
    return float(np.sqrt(known.mean())) if len(known) else math.nan
