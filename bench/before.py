"""This checkout and an earlier one side by side: speed over the speed before, prefill and decode.

    git worktree add ../before COMMIT && make -C ../before .venv/.installed
    python bench/before.py ../before q4_0.gguf q4_k_m.gguf --threads 1 --clock cpu

`--scheduled` decodes through the library, with scheduler, pages, prefix cache and sampler, and not with the engine
alone: what a server costs beside its engine shows here.

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
ANSWERS = {"answer of 64 after a prompt of 64 in the cache": ("decode", 64, 64)}
MEASURES = {"prefill 256": ("prefill", 256, 0), "decode 24 after 64": ("decode", 24, 64)}

# Whole answers of the library; names that earlier versions have too.
SCHEDULED = """
import sys, time
import assay
from assay.runtime.params import GREEDY
clock = time.process_time if sys.argv[3] == "cpu" else time.perf_counter
model = assay.load(sys.argv[1], engine="cpu", threads=int(sys.argv[2]), ctx_size=int(sys.argv[4]), kv_type=sys.argv[5],
                   lookahead=False)

def answer(n, depth):
    ids = [(i * 7919 + 11) % 1000 for i in range(depth)]
    began = clock()
    work = next(iter(model.generator.together([model.generator.generate(ids, GREEDY, max_tokens=n, ignore_eos=True)])))
    assert len(work.result.ids) == n
    return clock() - began

print("library")
print(answer(2, 8), flush=True)
for line in sys.stdin:
    do, n, depth, fresh = line.split()
    print(answer(int(n), int(depth)), flush=True)
"""


def compare(before: Path, model: Path, args: argparse.Namespace) -> None:
    pythons = [str(root / ".venv" / "bin" / "python") for root in (HERE, before)]
    given = [str(model), str(args.threads), args.clock, str(N_CTX), "f16"]
    workers = [Worker([python, "-c", SCHEDULED if args.scheduled else ASSAY], given) for python in pythons]
    for name, (do, n, depth) in (ANSWERS if args.scheduled else MEASURES).items():
        if not args.scheduled and not name.startswith(args.only):
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
    parser.add_argument("--scheduled", action="store_true", help="answers through the library, not steps of the engine")
    parser.add_argument("--only", default="", help="prefill or decode alone")
    args = parser.parse_args()
    print("| file | measure | speed over before | middle half |\n|---|---|---|---|")
    for model in args.models:
        compare(args.before, model, args)


if __name__ == "__main__":
    main()
