"""Which alternative explains the answers? The search among models and mistakes, once the claim has failed.

Cheap alternatives come first, and the search ends with one that explains the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from assay.errors import AssayError
from assay.models import Model
from assay.verify.endpoint.alternatives import (
    Alternative,
    engine_fault,
    engine_faults,
    more_alternatives,
    no_rope,
    rope_alternatives,
)
from assay.verify.endpoint.audit_findings import AuditOptions
from assay.verify.endpoint.claimed_model import ClaimedModel
from assay.verify.endpoint.fitted_numbers import Numbered, fitted, rope_numbers
from assay.verify.endpoint.rope_scaling import fitted_yarn, unscaled
from assay.verify.endpoint.served_text import ServedText, place_losses
from assay.verify.endpoint.standings import Scoreboard
from assay.verify.faults import FAULTS, Context, Fault, Variant

Say = Callable[[str], None]
SHORTLIST = 6  # mistakes of the catalogue that are tried on more than one text
MORE_TEXTS = 4
EVERY_BLOCK, FAR = 4, 3.0  # blocks that an alternative wins, and how much nearer it is, where bets cannot decide yet
BETTER = 0.5  # share of the claim's loss on the first texts that puts a mistake on the shortlist


@dataclass
class ModelSearch:
    """Tries alternatives on the texts of a board."""

    model: Model
    claimed: ClaimedModel
    options: AuditOptions
    say: Say
    notes: list[str] = field(default_factory=list)

    def try_models(self, board: Scoreboard) -> None:
        """Try other models on the texts of a board, and mistakes of engines."""
        self.consider(rope_alternatives(self.model), board)
        self.consider(no_rope(self.model), board)
        self.consider(unscaled(self.model), board)
        is_known = explained(board)
        for family in rope_numbers(self.model):
            if not explained(board):
                self._fit_number(board, family)
        if not is_known:  # a searched base may fit where YaRN fits better
            self._fit_yarn(board)
        self.consider(self._more(board), board)
        if self.options.engine and not explained(board):
            self._search_catalogue(board)

    def _fit_number(self, board: Scoreboard, family: Numbered) -> None:
        """Search the number of an alternative on the text that is furthest from the claim."""
        text, furthest = self._furthest(board)
        usual_ones = {p: family.make(p) for p in family.usual if p != family.right}
        losses = {p: self._loss(made, text) for p, made in usual_ones.items() if made is not None}
        if family.right is not None:
            losses[family.right] = furthest
        best = fitted(family, losses, lambda alternative: self._loss(alternative, text))
        if best is not None:
            self.consider([best], board)

    def _fit_yarn(self, board: Scoreboard) -> None:
        """Search YaRN's numbers on the text that is furthest from the claim."""
        text, furthest = self._furthest(board)
        for alternative in fitted_yarn(self.model, furthest, lambda a: self._loss(a, text)):
            self.say(f"trying {alternative.words}")
            board.consider(alternative)

    def _furthest(self, board: Scoreboard) -> tuple[ServedText, float]:
        """The text whose answers are furthest from the claim, and how far."""
        found = [float(np.nanmean([0.0, *place_losses(t, self.claimed.rows(t))])) for t in board.texts]
        return board.texts[int(np.argmax(found))], max(found)

    def _loss(self, alternative: Alternative, text: ServedText) -> float:
        """The mean loss of an alternative on a text; infinite where it says nothing."""
        self.say(f"trying {alternative.fault}: {alternative.words}".replace("trying : ", "trying "))
        try:
            rows = alternative.rows(self.claimed, text, keep=False)
        except AssayError as error:
            self.notes.append(f"{alternative.name}: not tried ({error})")
            return math.inf
        finally:
            self.claimed.close(alternative.setting)
        return float(np.nanmean(place_losses(text, rows))) if rows is not None else math.inf

    def _more(self, board: Scoreboard) -> Iterator[Alternative]:
        """Coarse weights first if the server is further from the claim than the weights of the first list."""
        first = [s.apart for s in board.standings() if s.alternative.family == "weights"]
        far = bool(first) and math.sqrt(usual(board.claim)) > first[0]
        longest = max(len(text.ids) for text in board.texts)
        return more_alternatives(self.model, longest, self.options.others, coarse_first=far)

    def consider(self, alternatives: Iterable[Alternative], board: Scoreboard) -> None:
        """Try alternatives until one explains the answers."""
        for alternative in alternatives:
            if explained(board):
                return
            self.say(f"trying {alternative.words}")
            slow = alternative.slow or not self.claimed.native
            try:
                board.consider(alternative, most=MORE_TEXTS if slow else None)
            except AssayError as error:
                self.notes.append(f"{alternative.words}: not tried ({error})")

    def _search_catalogue(self, board: Scoreboard) -> None:
        """Try every mistake on the first text, and the best on more."""
        text, furthest = self._furthest(board)
        steps = (text.n_prompt, *(1,) * (len(text.ids) - text.n_prompt))
        found = [(self._loss(a, text), a) for a in engine_faults(self.model, steps)]
        found += self._catalogue_numbers(text, steps, found)
        near = [(loss, a) for loss, a in found if loss < BETTER * furthest]
        for _, alternative in sorted(near, key=lambda pair: pair[0])[:SHORTLIST]:
            board.consider(alternative, most=MORE_TEXTS)

    def _catalogue_numbers(
        self, text: ServedText, steps: tuple[int, ...], found: Sequence[tuple[float, Alternative]]
    ) -> list[tuple[float, Alternative]]:
        """Mistakes with a number: those whose usual values are nearest, with the number that fits best."""
        context, by = Context(self.model, steps), dict[tuple[str, str], dict[float, float]]()
        named = dict[tuple[str, str], tuple[Fault, Variant]]()
        for loss, a in found:
            search = a.number[0].search if a.number else None
            if a.number and search and not search.nominal and search.points and search.lo > 0 and math.isfinite(loss):
                key = (a.fault, a.number[0].label)
                by.setdefault(key, {})[a.number[1]] = loss
                named[key] = FAULTS[a.fault], a.number[0]
        better = list[tuple[float, Alternative]]()
        for key in sorted(by, key=lambda k: min(by[k].values()))[:SHORTLIST]:
            fault, variant = named[key]
            search = variant.search
            assert search is not None
            family = Numbered(partial(_planted, context, fault, variant), search.common, search.lo, search.hi)
            best = fitted(family, by[key], lambda alternative: self._loss(alternative, text))
            if best is not None:
                better.append((self._loss(best, text), best))
        return better


def _planted(context: Context, fault: Fault, variant: Variant, p: float) -> Alternative | None:
    """A mistake of the catalogue with this number, if it applies."""
    return next(engine_fault(context, fault, variant, p), None)


def explained(board: Scoreboard) -> bool:
    """Does an alternative fit within honest noise that beats the claim, by the bets or by far in every block?"""
    best = board.best()
    if not best or not board.fits(best[0].name):
        return False
    lead = best[0]
    far = math.sqrt(usual(board.claim)) > FAR * lead.distance
    return lead.state == "nearer" or (lead.wins >= EVERY_BLOCK and not lead.losses and far)


def usual(values: Sequence[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return float(np.median(known)) if known else math.nan
