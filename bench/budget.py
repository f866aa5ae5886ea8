"""Types by measured divergence beside the fixed mixes of the same size.

    python bench/budget.py MODEL-f16.gguf                       # budgets: the sizes of the fixed mixes
    python bench/budget.py MODEL-f16.gguf --bits 4.2 3.2

Each tensor is measured once on the first text; files are compared on the second (the texts of bench/quantize.py), all
with the same importance matrix.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from assay.engines.cpu import CpuEngine
from assay.evaluate.budget import choose, measure
from assay.evaluate.evaluation import Evaluation
from assay.evaluate.imatrix import collect
from assay.evaluate.pieces import Scores, cut
from assay.evaluate.score import score
from assay.evaluate.sources import EngineSource
from assay.gguf import open_file
from assay.gguf.mixes import MIXES, is_quantizable
from assay.gguf.quantize import Step, quantize
from assay.runtime.opening import Opened, Options

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.quantize import Remembered, texts


def bits(steps: list[Step]) -> float:
    """A weight, over the matrices."""
    matrices = [s for s in steps if is_quantizable(s.name, s.shape)]
    weights = sum(s.bytes_after * s.after.block_size // s.after.type_size for s in matrices)
    return 8 * sum(s.bytes_after for s in matrices) / weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--mixes", nargs="*", default=["Q2_K", "Q3_K_M", "IQ4_XS", "Q4_K_M"])
    parser.add_argument("--bits", nargs="*", type=float, default=[])
    parser.add_argument("--windows", type=int, default=8, help="to compare on")
    parser.add_argument("--measure", type=int, default=1, help="windows to measure tensors on")
    args = parser.parse_args()
    options = Options("cpu", "exact", ctx_size=512, cache_size=0)
    opened = Opened(open_file(args.model), options)
    engine, tokenizer = opened.engine(), opened.tokenizer
    assert isinstance(engine, CpuEngine)
    bos = tokenizer.bos if tokenizer.add_bos else None
    first, second = (tokenizer.encode(text, parse_special=False) for text in texts())
    importance = collect(engine, cut(first, 512, bos, 16))
    started = time.perf_counter()
    found = measure(engine, cut(first, 512, bos, args.measure), importance)
    print(f"measured {len(found)} tensors in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        made: dict[str, tuple[float, Path]] = {}

        def make(title: str, **arguments: object) -> float:
            path = Path(folder) / f"{title}.gguf"
            steps = quantize(opened.file, path, importance=importance, **arguments)  # type: ignore[arg-type]
            made[title] = bits(steps), path
            print(title, f"{bits(steps):.3f} bits", file=sys.stderr)
            return bits(steps)

        for name in args.mixes:
            size = make(name, mix=MIXES[name])
            make(f"budget of {name}", mix=MIXES[name], types=choose(found, size).types)
        for size in args.bits:
            choice = choose(found, size)
            make(f"budget {size:g}", mix=MIXES["Q4_K_M"], types=choice.types)
        base = Remembered(EngineSource(engine))
        sources = {title: EngineSource(Opened(open_file(path), options).engine()) for title, (_, path) in made.items()}
        scores: dict[str, list[Scores]] = {title: [] for title in sources}
        for piece in cut(second, 512, bos, args.windows):
            for title, source in sources.items():
                scores[title].append(score(piece, source, base))
        print("| file | bits a weight | mean KL | same best token |\n|---|---|---|---|")
        for title in made:
            result = Evaluation(scores[title], name=title, base=base.name)
            print(f"| {title} | {made[title][0]:.3f} | {result.kl} | {result.same_best} |")


if __name__ == "__main__":
    main()
