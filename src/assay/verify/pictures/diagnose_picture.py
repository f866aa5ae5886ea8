"""The mistake in an engine's picture: from its pixels, its tower's nodes or its rows to the mistake.

Pixels are judged first, where the dump has them. The tower is then judged on the dump's own pixels, so that a mistake
before the tower is not blamed on it. Every mistake is tried on the wrong nodes; one that explains them to the noise of
an arithmetic and contradicts no right node is the cause. Behaviours of llama.cpp and of the trained model are both
documented and healthy. Touch this to change the order of the search, or what is called healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.models.vision.picture_inputs import WINDOW, picture_inputs
from assay.models.vision.tower import Tower
from assay.verify.diagnosis.candidates import described
from assay.verify.diagnosis.posterior import gained, posterior
from assay.verify.diagnosis.result import Answer, Cause, Diagnosis
from assay.verify.faults.vision import PICTURE_PLANTS, PictureVariant, PlantedTower, plant_tower
from assay.verify.faults.vision.pixel_habits import FLOAT_RESIZES, images_by
from assay.verify.judge.arithmetic import ARITHMETICS, SimulatedArithmetic
from assay.verify.judge.compare_nodes import Diff, NodeVerdict
from assay.verify.judge.evidence import Evidence
from assay.verify.judge.noise import Level
from assay.verify.pictures.picture_dump import PictureDump, any_planes, in_layout, planes
from assay.verify.pictures.pixel_verdict import PixelVerdict, judge_pixels
from assay.verify.pictures.tower_trials import ImageTrials, NodeFit
from assay.verify.thresholds import ACCEPT, GAIN, MOST_CAUSES, TIE
from assay.vision.preprocess import PreparedPicture, preprocess
from assay.vision.resize import Bytes

Array = NDArray[Any]
Place = tuple[int, str]  # an image and a node
Progress = Callable[[str], None]
STRICT = 1.0  # times float32's allowed noise: what a mistake may leave that a coarser arithmetic would excuse
CLEARLY = 0.01  # the share of the squares that such a mistake may leave
NOTHING = NodeFit(np.full(len(ARITHMETICS), np.inf), np.inf, 1)


@dataclass(frozen=True)
class PictureDiagnosis:
    """The answer, and what a report draws: the definition's pixels and the dump's."""

    diagnosis: Diagnosis
    diff: Diff
    pixels: PixelVerdict | None
    expected: tuple[Array, ...] = ()
    found: dict[int, Array] = field(default_factory=dict)
    usual: tuple[str, ...] = ()  # mistakes that the trained model makes too: they are no faults here


@dataclass(frozen=True)
class Tried:
    """A mistake and how it fares: at the wrong nodes, and at right ones that it reaches."""

    fault: str
    variant: PictureVariant
    fits: dict[Place, NodeFit]

    def explains(self, place: Place, before: NodeFit, arithmetic: int) -> bool:
        fit = self.fits.get(place, NOTHING)
        return bool(fit.ratios[arithmetic] <= ACCEPT) and fit.residual <= GAIN * before.residual


def diagnose_picture(
    tower: Tower, picture: Bytes, dump: PictureDump, *, seconds: float = np.inf, say: Progress = lambda text: None
) -> PictureDiagnosis:
    """The whole search. `picture` is the decoded picture [row, column, RGB]; a dump may have its own."""
    search = _Search(tower, picture if dump.decoded is None else _rgb(dump.decoded, picture), dump, seconds, say)
    with np.errstate(all="ignore"):
        return search.run()


def _rgb(decoded: Array, picture: Bytes) -> Bytes:
    return decoded if decoded.ndim == 3 and decoded.shape[2] == 3 and decoded.size else picture


class _Search:
    def __init__(self, tower: Tower, picture: Bytes, dump: PictureDump, seconds: float, say: Progress) -> None:
        self.tower, self.picture, self.dump, self.say = tower, picture, dump, say
        self.end = monotonic() + seconds
        self.weights = Weights(tower.file)
        self.prepared: PreparedPicture = preprocess(tower.keys, picture)
        self.notes: list[str] = [*dump.notes]
        self.usual: list[str] = []
        self.cut = False
        self.tried = 0

    def run(self) -> PictureDiagnosis:
        pixels, found = self._pixels()
        nodes: list[NodeVerdict] = []
        causes: list[Cause] = []
        unexplained: list[str] = []
        if pixels is not None:
            nodes.append(self._pixel_node(pixels, found))
            causes += self._pixel_causes(pixels)
            if not pixels.right and not pixels.faults:
                unexplained.append(nodes[0].name)
        trials = self._trials(found, pixels)
        arithmetic, wrong = ARITHMETICS[0], list[Place]()
        if trials:
            arithmetic, wrong = self._judged(trials, nodes)
            more, left = self._causes(trials, arithmetic, wrong)
            causes += more
            unexplained += [_label(place) for place in left]
        return self._answer(nodes, causes, unexplained, arithmetic, wrong, pixels, found)

    # -- pixels ----------------------------------------------------------------------------------------------------

    def _pixels(self) -> tuple[PixelVerdict | None, dict[int, Array]]:
        found: dict[int, Array] = {}
        keys = self.tower.keys
        for j, value in self._images():
            image = self.prepared.images[j] if j < len(self.prepared.images) else None
            size = image.image.size if image is not None else (0, 0)
            laid = None
            if image is not None:
                laid = planes(value, keys, size, picture_inputs(keys, size, self.tower.table_rows))
            laid = any_planes(np.asarray(value)) if laid is None else laid
            if laid is None:
                self.notes.append(f"pixels_{j}: not pixels of an image (found shape {list(np.shape(value))})")
            else:
                found[j] = laid
        if not found:
            return None, {}
        if keys.projector == "gemma4v" and found[min(found)].dtype != np.uint8:
            found = {j: self._before_doubling(j, x) for j, x in found.items()}
        self.say("judging the pixels")
        return judge_pixels(self.tower, self.picture, found), found

    def _images(self) -> Iterator[tuple[int, Array]]:
        """The dumped pixels by image; several images may be stacked in one array."""
        for j, value in self.dump.pixels.items():
            value = np.asarray(value)
            if value.ndim == 4 and len(value) > 1:
                yield from enumerate(value, j)
            else:
                yield j, value

    def _before_doubling(self, j: int, found: Array) -> Array:
        """gemma4v: an engine may dump 2v − 1, which the graph makes of v."""
        right = self.prepared.images[j].pixels if j < len(self.prepared.images) else None
        if right is None or right.shape != found.shape:
            return found
        plain = (found + 1) / 2
        nearer = np.abs(plain - right).mean() < 0.5 * np.abs(found - right).mean()
        return plain.astype(np.float32) if nearer else found

    def _pixel_node(self, verdict: PixelVerdict, found: dict[int, Array]) -> NodeVerdict:
        j = verdict.worst
        made = found[j]
        right: Array = self.prepared.images[j].pixels if j < len(self.prepared.images) else np.zeros((3, 1, 1))
        name = f"pixels_{j}"
        state: Any = "same" if verdict.distance.same else "noise" if verdict.right else "wrong"
        if made.dtype == np.uint8 and j < len(self.prepared.images):
            right = self.prepared.images[j].padded.transpose(2, 0, 1)
        evidence = _evidence(name, made.astype(np.float64), right.astype(np.float64))
        if state == "noise":
            self.notes.append(
                "the pixels differ by at most one step of a byte: the resize rounds in another way, which is no fault"
            )
        return NodeVerdict(
            name, state, True if state == "wrong" else None, "resize in floats" if state == "noise" else None, evidence
        )

    def _pixel_causes(self, verdict: PixelVerdict) -> list[Cause]:
        if not verdict.faults:
            return []
        best = verdict.faults[0]
        projector = self.tower.keys.projector
        causes = []
        for fault, variant in best.mistakes:
            if projector in variant.usual:
                self._as_usual(fault, variant)
                continue
            bits = 64 * np.log2(max(verdict.distance.rms, 1.0) / max(best.left.rms, 0.01) + 1) / 2
            rivals = len(best.tied)
            sure = posterior(gained(float(bits), verdict.tried, False), rivals=rivals)
            node = f"pixels_{verdict.worst}"
            causes.append(
                Cause(
                    fault, node, variant.label, (node,), sure, 1 - (best.left.rms / verdict.distance.rms) ** 2,
                    best.tied, verdict.distance.largest, best.left.largest, facts=self._facts(),
                )
            )  # fmt: skip
        return causes

    # -- the tower -------------------------------------------------------------------------------------------------

    def _trials(self, found: dict[int, Array], pixels: PixelVerdict | None) -> dict[int, ImageTrials]:
        """The images whose nodes were dumped, on the dump's own pixels where it has them."""
        trials: dict[int, ImageTrials] = {}
        keys = self.tower.keys
        for j, nodes in sorted(self.dump.nodes.items()):
            if j >= len(self.prepared.images):
                self.notes.append(f"image {j}: this picture makes {len(self.prepared.images)} images; it is left out")
                continue
            image = self.prepared.images[j]
            size, own = image.image.size, found.get(j)
            used = image.pixels
            if own is not None and own.shape == used.shape and own.dtype != np.uint8:
                used = own.astype(np.float32)
            elif own is not None and own.shape != used.shape:
                size, used = (own.shape[2], own.shape[1]), own.astype(np.float32)
                if own.dtype == np.uint8 or size[0] % keys.patch or size[1] % keys.patch:
                    continue
            base = plant_tower(self.tower, size, used)
            assert base is not None
            wanted = [name for name in nodes if name in self.tower.graph]
            deep = [n.name for n in self.tower.graph if n.name.startswith("deepstack_")]
            values = interpret(self.tower.graph, self.weights, base.given, {*wanted, *deep})
            shapes = {name: value.shape for name, value in values.items()}
            laid = in_layout(
                {name: nodes[name] for name in wanted},
                shapes,
                keys,
                picture_inputs(keys, size, self.tower.table_rows).order,
            )
            kept = self._in_windows(laid.values, values, size)
            trials[j] = ImageTrials(self.tower, self.weights, size, used, base, kept, laid.misshapen, self.dump.source)
        return trials

    def _in_windows(self, found: dict[str, Array], right: dict[str, Array], size: tuple[int, int]) -> dict[str, Array]:
        """qwen2.5vl: an engine may leave the patches in the order of blocks and only mask between windows."""
        inputs = picture_inputs(self.tower.keys, size, self.tower.table_rows)
        raster = inputs.values.get("inp_raster")
        if raster is None:
            return found
        tokens = np.argsort(raster[:, 0])  # the tokens in the order of windows
        orders = {4 * len(tokens): (tokens[:, None] * 4 + np.arange(4)).reshape(-1), len(tokens): tokens}
        moved = {}
        votes = 0.0
        for name, value in found.items():
            order = orders.get(len(value)) if name != self.tower.graph.output else None
            if order is None:
                continue
            moved[name] = np.ascontiguousarray(value[order])
            a, b = (float(np.mean((x.astype(np.float64) - right[name]) ** 2)) for x in (value, moved[name]))
            votes += np.sign(a - b) if np.isfinite(a + b) else 0
        if votes <= 0 or len(moved) < 2:
            return found
        self.notes.append("the patches are in the order of 2×2 blocks and not of windows, which is no fault")
        return {**found, **moved}

    def _judged(
        self, trials: dict[int, ImageTrials], nodes: list[NodeVerdict]
    ) -> tuple[SimulatedArithmetic, list[Place]]:
        """The judge's verdicts of all images, the coarsest arithmetic among them, and the nodes that are wrong."""
        arithmetic, wrong = 0, list[Place]()
        for j, trial in trials.items():
            self.say(f"image {j}: comparing with the definition")
            for name, value in trial.misshapen.items():
                shape = trial.base.graph.shapes[name]
                nodes.append(_misshapen(_label((j, name)), value, shape))
                wrong.append((j, name))
            if trial.diff is None:
                continue
            arithmetic = max(arithmetic, ARITHMETICS.index(trial.diff.arithmetic))
            for n in trial.diff.nodes:
                nodes.append(
                    replace(n, name=_label((j, n.name)), evidence=replace(n.evidence, name=_label((j, n.name))))
                )
                if n.verdict == "wrong" and n.own is not False:
                    wrong.append((j, n.name))
            self.notes += [note for note in trial.diff.notes if note not in self.notes]
        order = self.tower.graph.order
        wrong.sort(key=lambda place: (place[0], order[place[1]]))
        return ARITHMETICS[arithmetic], wrong

    def _causes(
        self, trials: dict[int, ImageTrials], arithmetic: SimulatedArithmetic, wrong: list[Place]
    ) -> tuple[list[Cause], list[Place]]:
        """The mistakes that explain the wrong nodes, and the nodes that stay open."""
        if not wrong:
            return self._below_noise(trials), []
        causes: list[Cause] = []
        open_places = list(wrong)
        tried = list(self._tries(trials, wrong))
        while open_places and len(causes) < MOST_CAUSES:
            found = self._best(trials, tried, open_places, wrong)
            if found is None:
                break
            best, tied, kind, explained = found
            open_places = [place for place in open_places if place not in explained]
            if self.tower.keys.projector in best.variant.usual:
                self._as_usual(best.fault, best.variant)
                continue
            causes.append(self._cause(trials, best, tied, kind, explained))
        return causes, open_places

    def _tries(self, trials: dict[int, ImageTrials], wrong: Sequence[Place]) -> Iterator[Tried]:
        """Every mistake that reaches a wrong node and brings the first of them nearer."""
        of_pixels = not self.dump.pixels
        for fault, variants in PICTURE_PLANTS.items():
            for variant in variants:
                if monotonic() > self.end:
                    self.cut = True
                    return
                if not variant.of_pixels or of_pixels:
                    found = self._fits(trials, variant, wrong)
                    if found is not None:
                        yield Tried(fault, variant, found)
        for habits in FLOAT_RESIZES if of_pixels else ():
            variant = PictureVariant(
                "the resize rounds in another way", habits, usual=frozenset([self.tower.keys.projector])
            )
            found = self._fits(trials, variant, wrong)
            if found is not None:
                yield Tried("", variant, found)

    def _fits(
        self, trials: dict[int, ImageTrials], variant: PictureVariant, wrong: Sequence[Place]
    ) -> dict[Place, NodeFit] | None:
        planted = self._planted(trials, variant)
        if planted is None:
            return None
        reached = {(j, name) for j, made in planted.items() for name in trials[j].reached(made)}
        if reached.isdisjoint(wrong):
            return None
        self.tried += 1
        found: dict[Place, NodeFit] = {}
        for j, made in planted.items():
            found |= {(j, name): fit for name, fit in trials[j].fits(made).items()}
        nearer = any(
            place in found and found[place].residual <= GAIN * trials[place[0]].before(place[1]).residual
            for place in wrong
        )
        return found if nearer else None

    def _planted(self, trials: dict[int, ImageTrials], variant: PictureVariant) -> dict[int, PlantedTower] | None:
        """The tower's pass of every image with the mistake; None where it changes nothing."""
        images = [(p.image.size, p.pixels) for p in self.prepared.images]
        if variant.of_pixels:
            made = images_by(self.tower.keys, self.picture, variant.habits)
            if made is None:
                return None
            images = [(m.image.size, m.pixels) for m in made]
        found: dict[int, PlantedTower] = {}
        for j, trial in trials.items():
            if j >= len(images):
                return None
            size, pixels = images[j]
            if not variant.of_pixels:
                size, pixels = trial.size, trial.pixels
            planted = plant_tower(self.tower, size, pixels, variant)
            if planted is None:
                return None
            found[j] = planted
        return found

    def _best(
        self,
        trials: dict[int, ImageTrials],
        tried: Sequence[Tried],
        open_places: Sequence[Place],
        wrong: Sequence[Place],
    ) -> tuple[Tried, list[Tried], int, list[Place]] | None:
        """The mistake that explains the first open node and most of the others, under the strictest arithmetic."""
        first = open_places[0]
        for kind in range(len(ARITHMETICS)):
            scored = []
            for t in tried:
                explained = [p for p in open_places if t.explains(p, trials[p[0]].before(p[1]), kind)]
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

    def _below_noise(self, trials: dict[int, ImageTrials]) -> list[Cause]:
        """A mistake that a coarse arithmetic would excuse, but that leaves float32's noise alone."""
        loud = [
            (j, n.name)
            for j, trial in trials.items()
            if trial.diff is not None
            for n in trial.diff.nodes
            if n.evidence.local[0] > 1
        ]
        if not loud:
            return []
        good = []
        for t in self._tries(trials, loud):
            fits = [t.fits.get(place, NOTHING) for place in loud]
            rest = [fit for place, fit in t.fits.items() if place not in loud]
            left = [f.residual <= CLEARLY * trials[p[0]].before(p[1]).residual for f, p in zip(fits, loud, strict=True)]
            if all(left) and all(f.ratios[0] <= STRICT for f in (*fits, *rest)):
                good.append(t)
        if not good:
            return []
        good.sort(key=lambda t: float(t.fits[loud[0]].residual))
        best = good[0]
        if self.tower.keys.projector in best.variant.usual:
            self._as_usual(best.fault, best.variant)
            return []
        tied = [t for t in good[1:] if t.fault not in (best.fault, "")]
        return [self._cause(trials, best, tied, 0, loud)]

    def _cause(
        self, trials: dict[int, ImageTrials], best: Tried, tied: Sequence[Tried], kind: int, explained: Sequence[Place]
    ) -> Cause:
        first = explained[0]
        before, after = trials[first[0]].before(first[1]).at(kind), best.fits[first].at(kind)
        names = tuple(dict.fromkeys([*(t.fault for t in tied if t.fault), *self._alike(best.fault)]))
        bits = gained(described(before, after), max(self.tried, 1), False, len(explained))
        return Cause(
            best.fault, _label(first), best.variant.label, tuple(_label(p) for p in explained),
            posterior(bits, rivals=len(names), most=0.85 if self.cut else 0.99),
            max(0.0, 1 - after.residual / max(before.residual, 1e-300)), names, before.ratio, after.ratio,
            exact=after.exact, facts=self._facts(),
        )  # fmt: skip

    def _alike(self, fault: str) -> tuple[str, ...]:
        """Mistakes that give the same values for this picture: a larger window that holds the whole picture."""
        windows = ("vis-window-none", "vis-window-size")
        side, keys = WINDOW // self.tower.keys.patch, self.tower.keys
        whole = max(max(image.image.grid) for image in self.prepared.images) <= side
        return tuple(w for w in windows if w != fault) if fault in windows and keys.window_pattern and whole else ()

    def _as_usual(self, fault: str, variant: PictureVariant) -> None:
        """A behaviour that is documented beside llama.cpp's."""
        if not fault:
            self.notes.append(f"{variant.label} than Pillow's integers, which is no fault")
            return
        self.usual.append(fault)
        self.notes.append(
            f"{fault}: {variant.label}, as the trained model does and llama.cpp does not; both are documented "
            "(docs/reference/vision.md)"
        )

    def _facts(self) -> dict[str, Any]:
        """The values that sentences about a mistake may use."""
        keys, plan = self.tower.keys, self.prepared.plan
        scaling = plan.tiled[-1] if plan.tiled else plan.whole
        colours = {(0, 0, 0): "black"}
        pad = scaling.pad if scaling.pad is not None else plan.whole.pad
        return {
            "projector": keys.projector, "filter": scaling.filter,
            "fits": "stretches" if pad is None else f"keeps the ratio and pads with {colours.get(pad, str(pad))}",
            "mean": ", ".join(f"{x:.4g}" for x in keys.mean), "std": ", ".join(f"{x:.4g}" for x in keys.std),
            "width": plan.whole.size[0], "height": plan.whole.size[1], "merge": keys.merge, "patch": keys.patch,
            "eps": f"{keys.eps:.7g}", "act": keys.act, "head_dim": keys.head_dim,
        }  # fmt: skip

    # -- the answer ------------------------------------------------------------------------------------------------

    def _answer(
        self,
        nodes: list[NodeVerdict],
        causes: list[Cause],
        unexplained: list[str],
        arithmetic: SimulatedArithmetic,
        wrong: list[Place],
        pixels: PixelVerdict | None,
        found: dict[int, Array],
    ) -> PictureDiagnosis:
        names = [n.name for n in nodes if n.verdict == "wrong" and n.own is not False]
        excused = bool(self.usual) or not names
        verdict: Answer = "fault" if causes else "unexplained" if unexplained else "healthy"
        if verdict == "healthy" and excused:
            nodes = [replace(n, verdict="noise", own=None) if n.verdict == "wrong" else n for n in nodes]
        noise = any(n.verdict == "noise" for n in nodes) and not self.usual
        if verdict == "healthy" and noise and arithmetic is not ARITHMETICS[0]:
            self.notes.append(f"deviations are the noise of {arithmetic.name}")
        if self.cut:
            self.notes.append("the time was up before every mistake was tried; --seconds gives more")
        diff = Diff(
            f"{self.tower.file.path.name}@definition", self.dump.source, arithmetic, tuple(nodes),
            tuple(self.dump.unmatched), tuple(dict.fromkeys(self.notes)),
        )  # fmt: skip
        first = None if verdict == "healthy" else (names[0] if names else causes[0].node)
        said = Diagnosis(
            verdict, first, tuple(names) if verdict != "healthy" else (), tuple(causes),
            self._next(verdict, causes), tuple(unexplained), notes=diff.notes, diff=diff,
        )  # fmt: skip
        right = tuple(image.pixels for image in self.prepared.images)
        return PictureDiagnosis(said, diff, pixels, right, found, tuple(self.usual))

    def _next(self, verdict: str, causes: Sequence[Cause]) -> str:
        sure = bool(causes) and all(not c.equivalent for c in causes)
        if verdict == "healthy" or sure:
            return ""
        if not self.dump.pixels:
            return "dump pixels_0, the array that the tower reads: it tells mistakes before the tower from those inside"
        return "dump layer_out-N of every layer, or every node: `assay inspect MMPROJ --graph` lists their names"


def _label(place: Place) -> str:
    return place[1] if place[0] == 0 else f"{place[1]}@{place[0]}"


def _evidence(name: str, found: Array, right: Array) -> Evidence:
    """The evidence of values that are compared directly."""
    none = Level(np.zeros(0), np.zeros(0))
    if found.shape != right.shape:
        ratio = np.full(len(ARITHMETICS), np.inf)
        return Evidence(
            name, np.inf, 0.0, np.inf, tuple(found.shape), np.nan, np.nan, ratio, ratio, np.inf, None, True, (name,),
            none, none,
        )  # fmt: skip
    error = np.abs(found - right)
    at = np.unravel_index(int(np.nan_to_num(error, nan=np.inf).argmax()), error.shape)
    base = float(np.sum(right**2)) + 1e-30
    nmse = float(np.sum(error**2)) / base
    cosine = float(np.sum(found * right) / (np.sqrt(base * np.sum(found**2)) + 1e-30))
    ratio = np.zeros(len(ARITHMETICS))
    return Evidence(
        name, nmse, cosine, float(error.max()), tuple(map(int, at)), float(found[at]), float(right[at]), ratio, ratio,
        nmse, None, True, (name,), none, none,
    )  # fmt: skip


def _misshapen(name: str, found: Array, shape: Sequence[Any]) -> NodeVerdict:
    evidence = _evidence(name, found, np.zeros((1,) * (found.ndim + 1)))
    return NodeVerdict(name, "wrong", True, None, evidence)
