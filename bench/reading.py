"""Are habits of printing read rightly? Random forms (`tests/verify/dumps/printing_habits.py`) of right and wrong runs.

    python bench/reading.py                      # five forms of each family, on two models
    python bench/reading.py --seeds 100:120 --family table --show

A right run must be judged healthy. In a wrong one, every second row of a matrix of layer 1 is halved. It must be found
wrong, at the planted node or at the next one that is printed.

    healthy / wrong      as it must be
    alarm                a right run is called wrong
    refused              the reader says that it did not read the text
    missed               a wrong run is called healthy
    elsewhere            a wrong run is found wrong at another node
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
from tests import tiny  # noqa: E402
from tests.verify.dumps import printing_habits as habits  # noqa: E402

from assay.engines.reference import ReferenceEngine  # noqa: E402
from assay.errors import AssayError  # noqa: E402
from assay.gguf import open_file  # noqa: E402
from assay.models import Model, load  # noqa: E402
from assay.verify.dumps.load import load_dump  # noqa: E402
from assay.verify.dumps.tracing import take_trace  # noqa: E402
from assay.verify.judge.verdict import judge  # noqa: E402

TOKENS = (1, 70, 87, 17, 100, 81)
PLANTED = "blk.1.ffn_down.weight"


def values_of(model: Model, wrong: bool) -> habits.Values:
    """The definition's values by node, a row for each token."""
    engine = ReferenceEngine(model)
    if wrong:
        engine.weights._kept[PLANTED] = np.array(model.file.decode(PLANTED))
        engine.weights._kept[PLANTED][::2] *= 0.5
    trace = take_trace(engine, TOKENS, nodes="^(?!cache_)")
    rows = {o.name: o.array().astype(np.float64) for o in trace.observations}
    return {name: v.reshape(len(TOKENS), -1) for name, v in rows.items() if len(v) == len(TOKENS)}


def graded(model: Model, text: str, wrong: bool, roles: str, folder: Path) -> tuple[str, str]:
    """The grade, and what was found."""
    path = folder / "evidence.log"
    path.write_text(text)
    try:
        found = judge(model, load_dump(path, model))
    except AssayError as e:
        return "refused", " ".join(str(e).split())[:160]
    first = found.first_wrong.name if found.first_wrong is not None else ""
    compared = f"{len(found.nodes)} nodes"
    if not wrong:
        return ("alarm" if first else "healthy"), f"{first} {compared}"
    if not first:
        return "missed", compared
    expected = "ffn_out-1" if "ffn_out" in roles else "l_out-1"
    return ("wrong" if first == expected else "elsewhere"), f"{first} {compared}"


def forms(families: list[str], seeds: range) -> Iterator[tuple[str, int]]:
    for family in families:
        yield from ((family, seed) for seed in seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="families apart by commas; all if none is named")
    parser.add_argument("--seeds", default="0:5", help="A:B")
    parser.add_argument("--model", type=Path, help="a model; a tiny one is made if none is named")
    parser.add_argument("--show", action="store_true", help="print texts that were not read")
    args = parser.parse_args()
    begin, _, end = args.seeds.partition(":")
    families = args.family.split(",") if args.family else list(habits.FAMILIES)
    counts: Counter[tuple[str, str]] = Counter()
    started = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = args.model or tiny.make(folder / "tiny.gguf", n_layer=3)
        model = load(open_file(path))
        runs = {wrong: values_of(model, wrong) for wrong in (False, True)}
        for family, seed in forms(families, range(int(begin), int(end or int(begin) + 1))):
            drawn, write = habits.form(family, seed)
            for wrong, run in runs.items():
                text = write(run, TOKENS)
                grade, told = graded(model, text, wrong, drawn, folder)
                counts["wrong" if wrong else "right", grade] += 1
                if grade not in ("healthy", "wrong"):
                    print(f"{family}:{seed} {'wrong' if wrong else 'right'} run: {grade} ({drawn}): {told}", flush=True)
                    if args.show:
                        print(text[:2500])
    for (run_of, grade), n in sorted(counts.items()):
        print(f"{run_of} runs: {n} {grade}")
    print(f"{time.process_time() - started:.0f} s of computing")


if __name__ == "__main__":
    main()
