"""Speed of constrained decoding, and the longest gap of an honest stream beside a hostile grammar.

    python bench/grammars.py smollm2                         tokens per second in JSON mode, 1 and 8 streams
    python bench/grammars.py smollm2 --before OTHER/src      the same for another source tree, interleaved
    python bench/grammars.py smollm2 --hostile               gaps between the tokens of an honest stream

A digest of all ids stands beside each figure: two trees that draw the same tokens print the same digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "friends": {"type": "array", "items": {"type": "string"}, "minItems": 12},
    },
    "required": ["name", "age", "friends"],
}
AMBIGUOUS = 'root ::= s\ns ::= s s s s | [a-z ] | ""'
TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--before", type=Path, help="the `src` folder of another source tree, measured in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--measure", choices=("speed", "gaps"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(speed(args.model) if args.measure == "speed" else gaps(args.model)))
        return
    trees = {"now": Path(__file__).parents[1] / "src"} | ({"before": args.before.resolve()} if args.before else {})
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for _ in range(args.rounds):
        for name, path in trees.items():
            command = [sys.executable, __file__, args.model, "--measure", "gaps" if args.hostile else "speed"]
            done = subprocess.run(
                command, env=os.environ | {"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
            )
            found[name].append(json.loads(done.stdout))
    for name, rows in found.items():
        figures = {key: median(row[key] for row in rows) for key in rows[0] if key != "digest"}
        shown = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
        print(f"{name}: {shown}; digests {sorted({str(row.get('digest', '')) for row in rows})}")


def speed(model: str) -> dict[str, Any]:
    """Tokens per second of 1 and of 8 streams, constrained and free."""
    from assay.runtime.generate import Generator
    from assay.runtime.opening import OpenOptions, open_model
    from assay.runtime.params import SamplerParams

    opened = open_model(model, OpenOptions(ctx_size=1024))
    generator = Generator(opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)
    prompt = opened.tokenizer.encode("A person as JSON: ")
    schema = opened.grammars.schema(SCHEMA)
    digest, out = hashlib.blake2b(digest_size=8), {}
    for kind, constraint in (("json", schema), ("free", None)):
        for streams in (1, 8):
            rates = []
            for turn in range(3):
                work = [
                    generator.generate(
                        prompt,
                        SamplerParams(temp=0.8, seed=100 * turn + i),
                        max_tokens=TOKENS,
                        ignore_eos=True,
                        constraint=constraint,
                    )
                    for i in range(streams)
                ]
                started = time.perf_counter()
                done = [one.result for one in generator.together(work)]
                rates.append(sum(len(result.ids) for result in done) / (time.perf_counter() - started))
                if constraint:
                    digest.update(repr([(result.ids, result.text, result.finish_reason) for result in done]).encode())
            out[f"{kind} {streams}"] = max(rates)
    return {**out, "digest": digest.hexdigest()}


def gaps(model: str) -> dict[str, Any]:
    """The longest and the median gap between tokens of a free stream: alone, and beside an ambiguous grammar."""
    from assay.runtime.opening import OpenOptions, open_model
    from assay.runtime.params import SamplerParams
    from assay.runtime.scheduler import Scheduler
    from assay.runtime.sequence import Job, Update
    from assay.runtime.worker import Worker

    opened = open_model(model, OpenOptions(ctx_size=1024))
    worker = Worker(Scheduler(opened.engine(scheduled=True), opened.tokenizer, n_ctx=opened.n_ctx))
    prompt = tuple(opened.tokenizer.encode("Once upon a time"))
    hostile = opened.grammars.gbnf(AMBIGUOUS)
    out: dict[str, Any] = {}
    for kind, rogues in (("alone", 0), ("beside one", 1), ("beside eight", 8)):
        times: list[float] = []
        ended: list[Update] = []

        def honest(update: Update, times: list[float] = times) -> None:
            times.append(time.monotonic())

        def other(update: Update, ended: list[Update] = ended) -> None:
            if update.finish:
                ended.append(update)

        jobs = [
            Job(prompt, SamplerParams(temp=1.0, seed=i), 400, constraint=hostile, ignore_eos=True)
            for i in range(rogues)
        ]
        worker.submit(jobs, [other] * rogues)
        worker.submit([Job(prompt, SamplerParams(temp=0.0), 200, ignore_eos=True)], [honest])
        while len(times) < 200 or len(ended) < rogues:
            time.sleep(0.05)
        between = [b - a for a, b in pairwise(times)]
        out |= {f"{kind}, longest gap s": max(between), f"{kind}, median gap s": median(between)}
    worker.stop(RuntimeError("done"))
    worker.join()
    return out


if __name__ == "__main__":
    main()
