"""Types chosen by measured divergence (`assay quantize --budget`), compared with the fixed mixes of the same size.

    python bench/budget.py MODEL-f16.gguf --bits 4.2 3.2 --keep /tmp/b
    python bench/budget.py MODEL-f16.gguf --mixes Q2_K IQ4_XS               # budgets: the sizes of these mixes

Tensors of every fifth layer are measured on the first text (`--every 1`: of all); files are compared on the second (the
texts of bench/quantize.py), all with the same importance matrix. For a budget in bits the fixed mixes just below and
just above it are made. The divergence of a fixed mix of exactly that size is interpolated between them, because the
logarithm of the divergence is nearly linear in bits.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from assay.evaluate.budget import Sensitivity, choose, measurable, sensitivity
from assay.evaluate.evaluation import Evaluation
from assay.evaluate.predictors import EngineSource
from assay.gguf.mixes import MIXES, is_quantizable, layer_of
from assay.gguf.requantize import TensorStep, plan, quantize

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.quantize import Work, arguments, by_assay, ratio, timed, work

FIXED = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "Q2_K_S", "Q2_K", "IQ3_XXS", "IQ3_XS", "Q3_K_S", "IQ3_S", "IQ3_M",
         "Q3_K_M", "Q3_K_L", "IQ4_XS", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K")  # fmt: skip


def bits(steps: list[TensorStep]) -> float:
    """Bits a weight, averaged over the matrices."""
    matrices = [s for s in steps if is_quantizable(s.name, s.shape)]
    weights = sum(s.bytes_after * s.after.block_size // s.after.type_size for s in matrices)
    return 8 * sum(s.bytes_after for s in matrices) / weights


def sensitivities(here: Work, windows: int, window: int, every: int) -> list[Sensitivity]:
    """One line a tensor; earlier measurements are reused. Other layers take the cost of the nearest measured one."""
    path = here.folder / "sensitivities.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [Sensitivity(name, tuple(shape), cost) for name, shape, cost in map(json.loads, lines)]
    names = measurable(here.engine)
    last = max(map(layer_of, names))
    asked = [n for n in names if layer_of(n) < 0 or layer_of(n) % every == 0 or layer_of(n) == last]
    missing = [name for name in asked if name not in {s.name for s in found}]
    if missing:
        source, pieces = EngineSource(here.engine), here.pieces(0, windows, window)
        base = [source.rows(piece) for piece in pieces]
        with timed("sensitivities"), path.open("a") as file:
            for name in missing:
                s = sensitivity(here.engine, source, name, pieces, base, here.importance)
                print(json.dumps([s.name, s.shape, dict(s.cost)]), file=file, flush=True)
                found.append(s)
    known = {s.name: s for s in found}

    def nearest(name: str) -> Sensitivity:
        role = [s for s in found if s.name.split(".", 2)[2:] == name.split(".", 2)[2:]]
        return min(role, key=lambda s: abs(layer_of(s.name) - layer_of(name)))

    return [known[n] if n in known else replace(nearest(n), name=n) for n in names]


def by_budget(here: Work, found: list[Sensitivity], size: float, out: Path) -> None:
    quantize(here.opened.file, out, MIXES["Q4_K_M"], importance=here.importance, types=choose(found, size).types)


def between(below: tuple[float, Evaluation], above: tuple[float, Evaluation], size: float) -> float:
    """Divergence of the best fixed mix of this size: interpolated, or the smaller mix's own if the larger is worse."""
    (x0, a), (x1, b) = below, above
    assert a.kl and b.kl
    share = (size - x0) / (x1 - x0) if x1 > x0 else 0.0
    return min(a.kl.value, math.exp((1 - share) * math.log(a.kl.value) + share * math.log(b.kl.value)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.set_defaults(mixes=[])
    parser.add_argument("--bits", nargs="*", type=float, default=[])
    parser.add_argument("--measure", type=int, default=1, help="windows to measure tensors on")
    parser.add_argument("--every", type=int, default=5, help="layers: every fifth is measured; 1: all")
    parser.add_argument("--measure-window", type=int, default=256, help="tokens of one of those")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = work(args, folder)
        sizes = {name: bits(plan(here.opened.file, MIXES[name], weighted=True)) for name in FIXED}
        found = sensitivities(here, args.measure, args.measure_window, args.every)
        pairs: dict[str, tuple[float, list[str]]] = {name: (sizes[name], [name]) for name in args.mixes}
        for size in args.bits:
            below = max((n for n in FIXED if sizes[n] <= size), key=sizes.__getitem__, default=None)
            above = min((n for n in FIXED if sizes[n] >= size), key=sizes.__getitem__, default=None)
            pairs[f"{size:g}"] = size, [n for n in (below, above) if n]
        for title, (size, fixed) in pairs.items():
            for name in fixed:
                here.make(f"assay {name}", partial(by_assay, here, name))
            here.make(f"budget {title}", partial(by_budget, here, found, size))
        judged = here.evaluations()
        print("| file | bits a weight | mean KL | same best token |\n|---|---|---|---|")
        for title, (size, fixed) in pairs.items():
            for name in fixed:
                result = judged[f"assay {name}"]
                print(f"| {name} | {sizes[name]:.3f} | {result.kl} | {result.same_best} |")
            ours = judged[f"budget {title}"]
            at = choose(found, size).bits_per_weight
            print(f"| budget {title} | {at:.3f} | {ours.kl} | {ours.same_best} |")
            assert ours.kl
            if len(fixed) == 1:
                print(f"ratio: {ratio(ours, judged[f'assay {fixed[0]}'])}")
            else:
                pair = [(sizes[name], judged[f"assay {name}"]) for name in fixed]
                best = between(pair[0], pair[1], size)
                print(f"ratio to the best fixed mix of {size:g} bits: {ours.kl.value / best:.3f}")


if __name__ == "__main__":
    main()
