"""This checkout and an earlier one side by side: speed over the speed before, prefill and decode.

    git worktree add ../before COMMIT && make -C ../before .venv/.installed
    python bench/before.py ../before q4_0.gguf q4_k_m.gguf --threads 1 --clock cpu

Each runs in its own process (CHECKOUT/.venv/bin/python) with the model loaded. They take turns, in changing order, so
that other work on the machine affects both alike. Ratios are taken turn by turn; the table shows their median and
the middle half of them.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from compare import ASSAY, Worker

HERE = Path(__file__).resolve().parents[1]
N_CTX = 512
MEASURES = {"prefill 256": ("prefill", 256, 0), "decode 24 after 64": ("decode", 24, 64)}


def compare(before: Path, model: Path, args: argparse.Namespace) -> None:
    pythons = [str(root / ".venv" / "bin" / "python") for root in (HERE, before)]
    given = [str(model), str(args.threads), args.clock, str(N_CTX), "f16"]
    workers = [Worker([python, "-c", ASSAY], given) for python in pythons]
    for name, (do, n, depth) in MEASURES.items():
        if not name.startswith(args.only):
            continue
        ratios = []
        for turn in range(args.repeat + 1):
            speed = {i: workers[i].ask(do, n, depth, fresh=turn < 2) for i in ((0, 1), (1, 0))[turn % 2]}
            ratios.append(speed[0] / speed[1])
        low, middle, high = statistics.quantiles(ratios[1:], n=4)  # the first is to warm up
        print(f"| {model.stem} | {name} | {middle:.3f} | {low:.3f} to {high:.3f} |", flush=True)
    for worker in workers:
        worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the earlier checkout, built")
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu")
    parser.add_argument("--only", default="", help="prefill or decode alone")
    args = parser.parse_args()
    print("| file | measure | speed over before | middle half |\n|---|---|---|---|")
    for model in args.models:
        compare(args.before, model, args)


if __name__ == "__main__":
    main()
