"""The search for mistakes of the tower: each is tried on the wrong nodes, and the best explanation is the cause.

A mistake explains a node if it leaves the noise of an arithmetic, and it must contradict no right node. Touch this to
change how mistakes are ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from assay.models.vision.picture_inputs import WINDOW
from assay.verify.diagnosis.candidates import described
from assay.verify.diagnosis.posterior import gained, posterior
from assay.verify.diagnosis.result import Cause
from assay.verify.faults.vision import PICTURE_PLANTS, PictureVariant, PlantedTower, plant_tower
from assay.verify.faults.vision.pixel_habits import FLOAT_RESIZES, images_by
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.pictures.picture_question import PictureQuestion, Place, place_label, usual_note
from assay.verify.pictures.tower_trials import ImageTrials, NodeFit
from assay.verify.thresholds import ACCEPT, GAIN, MOST_CAUSES, TIE

STRICT = 1.0  # times float32's allowed noise: what a mistake may leave that a coarser arithmetic would excuse
CLEARLY = 0.01  # the share of the squares that such a mistake may leave
NOTHING = NodeFit(np.full(len(ARITHMETICS), np.inf), np.inf, 1)


@dataclass(frozen=True)
class Tried:
    """A mistake and how it fares: at the wrong nodes, and at right ones that it reaches."""

    fault: str
    variant: PictureVariant
    fits: dict[Place, NodeFit]

    def explains(self, place: Place, before: NodeFit, arithmetic: int) -> bool:
        fit = self.fits.get(place, NOTHING)
        return bool(fit.ratios[arithmetic] <= ACCEPT) and fit.residual <= GAIN * before.residual


@dataclass
class MistakeSearch:
    """One search on the images of a dump. `usual`, `notes` and `cut` are filled while it runs."""

    question: PictureQuestion
    trials: dict[int, ImageTrials]
    usual: list[str] = field(default_factory=list)  # faults that the trained model has, too
    notes: list[str] = field(default_factory=list)
    cut: bool = False  # the time was up before every mistake was tried
    tried: int = 0

    def causes(self, wrong: list[Place]) -> tuple[list[Cause], list[Place]]:
        """The mistakes that explain the wrong nodes, and the nodes that stay open."""
        if not wrong:
            return self._below_noise(), []
        causes: list[Cause] = []
        open_places = list(wrong)
        tried = list(self._tries(wrong))
        while open_places and len(causes) < MOST_CAUSES:
            found = self._best(tried, open_places, wrong)
            if found is None:
                break
            best, tied, kind, explained = found
            open_places = [place for place in open_places if place not in explained]
            if self._noted_as_usual(best):
                continue
            causes.append(self._cause(best, tied, kind, explained))
        return causes, open_places

    def _tries(self, wrong: Sequence[Place]) -> Iterator[Tried]:
        """Every mistake that reaches a wrong node and brings the first of them nearer."""
        of_pixels = not self.question.dump.pixels
        for fault, variants in PICTURE_PLANTS.items():
            for variant in variants:
                if monotonic() > self.question.end:
                    self.cut = True
                    return
                if not variant.of_pixels or of_pixels:
                    found = self._fits(variant, wrong)
                    if found is not None:
                        yield Tried(fault, variant, found)
        for habits in FLOAT_RESIZES if of_pixels else ():
            variant = PictureVariant(
                "the resize rounds in another way", habits, usual=frozenset([self.question.tower.keys.projector])
            )
            found = self._fits(variant, wrong)
            if found is not None:
                yield Tried("", variant, found)

    def _fits(self, variant: PictureVariant, wrong: Sequence[Place]) -> dict[Place, NodeFit] | None:
        planted = self._planted(variant)
        if planted is None:
            return None
        reached = {(j, name) for j, made in planted.items() for name in self.trials[j].reached(made)}
        if reached.isdisjoint(wrong):
            return None
        self.tried += 1
        found: dict[Place, NodeFit] = {}
        for j, made in planted.items():
            found |= {(j, name): fit for name, fit in self.trials[j].fits(made).items()}
        nearer = any(
            place in found and found[place].residual <= GAIN * self.trials[place[0]].before(place[1]).residual
            for place in wrong
        )
        return found if nearer else None

    def _planted(self, variant: PictureVariant) -> dict[int, PlantedTower] | None:
        """The tower's pass of every image with the mistake; None where it changes nothing."""
        images = [(p.image.size, p.pixels) for p in self.question.prepared.images]
        if variant.of_pixels:
            made = images_by(self.question.tower.keys, self.question.picture, variant.habits)
            if made is None:
                return None
            images = [(m.image.size, m.pixels) for m in made]
        found: dict[int, PlantedTower] = {}
        for j, trial in self.trials.items():
            if j >= len(images):
                return None
            size, pixels = images[j]
            if not variant.of_pixels:
                size, pixels = trial.size, trial.pixels
            planted = plant_tower(self.question.tower, size, pixels, variant)
            if planted is None:
                return None
            found[j] = planted
        return found

    def _best(
        self, tried: Sequence[Tried], open_places: Sequence[Place], wrong: Sequence[Place]
    ) -> tuple[Tried, list[Tried], int, list[Place]] | None:
        """The mistake that explains the first open node and most of the others, under the strictest arithmetic."""
        first = open_places[0]
        for kind in range(len(ARITHMETICS)):
            scored = []
            for t in tried:
                explained = [p for p in open_places if t.explains(p, self.trials[p[0]].before(p[1]), kind)]
                if first not in explained:
                    continue
                against = sum(bool(fit.ratios[kind] > ACCEPT) and place not in wrong for place, fit in t.fits.items())
                scored.append((t, explained, against))
            scored = [s for s in scored if not s[2]] or [s for s in scored if s[2] < len(s[1])]
            if not scored:
                continue
            scored.sort(key=lambda s: (s[2], -len(s[1]), float(s[0].fits[first].residual)))
            best, explained, against = scored[0]
            limit = max(1.0, TIE * float(best.fits[first].ratios[kind]))
            tied = [
                t for t, places, other in scored[1:]
                if t.fault != best.fault and (len(places), other) == (len(explained), against)
                and t.fits[first].ratios[kind] <= limit
            ]  # fmt: skip
            return best, tied, kind, explained
        return None

    def _below_noise(self) -> list[Cause]:
        """A mistake that a coarse arithmetic would excuse, but that leaves float32's noise alone."""
        loud = [
            (j, n.name)
            for j, trial in self.trials.items()
            if trial.diff is not None
            for n in trial.diff.nodes
            if n.evidence.local[0] > 1
        ]
        if not loud:
            return []
        good = []
        for t in self._tries(loud):
            fits = [t.fits.get(place, NOTHING) for place in loud]
            rest = [fit for place, fit in t.fits.items() if place not in loud]
            left = [
                f.residual <= CLEARLY * self.trials[p[0]].before(p[1]).residual for f, p in zip(fits, loud, strict=True)
            ]
            if all(left) and all(f.ratios[0] <= STRICT for f in (*fits, *rest)):
                good.append(t)
        if not good:
            return []
        good.sort(key=lambda t: float(t.fits[loud[0]].residual))
        best = good[0]
        if self._noted_as_usual(best):
            return []
        tied = [t for t in good[1:] if t.fault not in (best.fault, "")]
        return [self._cause(best, tied, 0, loud)]

    def _cause(self, best: Tried, tied: Sequence[Tried], kind: int, explained: Sequence[Place]) -> Cause:
        first = explained[0]
        before, after = self.trials[first[0]].before(first[1]).at(kind), best.fits[first].at(kind)
        names = tuple(dict.fromkeys([*(t.fault for t in tied if t.fault), *self._alike(best.fault)]))
        bits = gained(described(before, after), max(self.tried, 1), False, len(explained))
        return Cause(
            best.fault, place_label(first), best.variant.label, tuple(place_label(p) for p in explained),
            posterior(bits, rivals=len(names), most=0.85 if self.cut else 0.99),
            max(0.0, 1 - after.residual / max(before.residual, 1e-300)), names, before.ratio, after.ratio,
            exact=after.exact, facts=self.question.facts,
        )  # fmt: skip

    def _alike(self, fault: str) -> tuple[str, ...]:
        """Mistakes that give the same values for this picture: a larger window that holds the whole picture."""
        windows = ("vis-window-none", "vis-window-size")
        side, keys = WINDOW // self.question.tower.keys.patch, self.question.tower.keys
        whole = max(max(image.image.grid) for image in self.question.prepared.images) <= side
        return tuple(w for w in windows if w != fault) if fault in windows and keys.window_pattern and whole else ()

    def _noted_as_usual(self, best: Tried) -> bool:
        """Whether the mistake is what the trained model does; then it is noted."""
        if not self.question.usual(best.variant):
            return False
        self.usual += [best.fault] if best.fault else []
        self.notes.append(usual_note(best.fault, best.variant))
        return True
