"""Sixteen requests with four LoRA adapters in one batch, over one after the other; the cost of adapters not used.

    python bench/adapters.py MODEL --tokens 64
    python bench/adapters.py MODEL --idle --threads 1     only adapters that are loaded and not used, by CPU time

Adapters of rank 16 with random values for every linear layer are written to a temporary folder. Bits are compared: each
answer must be the same alone and in the batch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from assay.engines.contract import Chunk
from assay.gguf import open_file
from assay.gguf.types import Typed, ValueType, by_name
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import GREEDY
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Sequence

RANK, ADAPTERS, REQUESTS = 16, 4, 16


def make(path: Path, model: Model, seed: int) -> Path:
    rng, tensors = np.random.default_rng(seed), []
    tables = {name for node in model.graph if node.op == "embed" for name in node.weights}
    for node in model.graph:
        if node.op == "linear" and node.weights[0] not in tables:
            rows, columns = model.file.tensors[node.weights[0]].shape
            for part, shape in (("a", (RANK, columns)), ("b", (rows, RANK))):
                value = (rng.standard_normal(shape) / columns).astype(np.float32)
                tensors.append(Tensor(f"{node.weights[0]}.lora_{part}", shape, by_name("F32"), value))
    text = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": model.hparams.arch}
    keys = {key: Typed(ValueType.STRING, value) for key, value in text.items()}
    write(path, keys | {"adapter.lora.alpha": Typed(ValueType.FLOAT32, float(RANK))}, tensors)
    return path


def run(
    scheduler: Scheduler, jobs: list[Job], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, list[Sequence]]:
    """Seconds after the prompts, and the sequences."""
    made = [scheduler.make(job, lambda update: None) for job in jobs]
    scheduler.add(made)
    while any(not sequence.generated for sequence in made):
        scheduler.step()
    began = clock()
    while scheduler.busy:
        scheduler.step()
    return clock() - began, made


def steps(opened: Opened) -> dict[str, float]:
    """The fastest of several decode steps: without a scheduler, for one request and for all."""
    engine, found = opened.engine(), {}
    for n in (1, REQUESTS):
        for name, number in (("no adapter", 0), ("one adapter", 1), ("four adapters", ADAPTERS)):
            if number <= n:
                chosen = [((i % number, 1.0),) if number else () for i in range(n)]
                batch = [
                    Chunk(np.array([10 + i], np.int32), 20, np.array([i], np.int32), "last", adapters=chosen[i])
                    for i in range(n)
                ]
                taken = []
                for _ in range(12):
                    began = time.perf_counter()
                    engine.forward(batch)
                    taken.append(time.perf_counter() - began)
                found[f"{n} with {name}"] = min(taken)
    return found


def idle(plain: Scheduler, loaded: Scheduler, job: Callable[..., Job], clock: Callable[[], float]) -> None:
    """Decoding without an adapter, with none and with four loaded, in turns: the fastest, and the median ratio."""
    times: dict[str, list[float]] = {"none": [], "loaded": []}
    for i in range(16):
        for name, scheduler in (("none", plain), ("loaded", loaded))[:: 1 if i % 2 else -1]:
            seconds = run(scheduler, [job(40 + i, adapted=False)], clock)[0]
            if i:  # the first turn compiles
                times[name].append(seconds)
    a, b = (min(found) for found in times.values())
    middle = statistics.median(x / y for x, y in zip(*times.values(), strict=True))
    print(f"one request without an adapter: none loaded {a:.3f} s, four {b:.3f} s: {a / b:.3f}; median {middle:.3f}")


def scheduler_of(opened: Opened) -> Scheduler:
    return Scheduler(opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--idle", action="store_true", help="measure only loaded adapters that no request uses")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = load(open_file(args.model))
        files = [str(make(Path(folder) / f"{i}.gguf", model, i)) for i in range(ADAPTERS)]
        options = OpenOptions(engine="cpu", lookahead=False, threads=args.threads)
        with_files = open_model(args.model, replace(options, lora=tuple(files)))

        def job(i: int, *, adapted: bool = True, hashed: bool = False) -> Job:
            ids = tuple(range(10 + i, 26 + i))
            chosen = ((i % ADAPTERS, 1.0),) if adapted else ()
            return Job(ids, GREEDY, args.tokens, ignore_eos=True, receipt=hashed, adapters=chosen)

        if args.idle:
            idle(scheduler_of(open_model(args.model, options)), scheduler_of(with_files), job, time.process_time)
            return 0
        batched, one = scheduler_of(with_files), scheduler_of(with_files)
        run(batched, [job(100 + i) for i in range(ADAPTERS)])  # compiles the programs

        def gain(many: Scheduler, single: Scheduler, adapted: bool) -> tuple[float, float, float]:
            """Seconds one after the other and in one batch, and their ratio."""
            run(many, [job(i, adapted=adapted) for i in range(REQUESTS)])  # compiles what is left
            in_turn = sum(run(single, [job(i, adapted=adapted)])[0] for i in range(REQUESTS))
            together = min(run(many, [job(i, adapted=adapted) for i in range(REQUESTS)])[0] for _ in range(3))
            return in_turn, together, in_turn / together

        in_turn, together, ratio = gain(batched, one, True)
        _, in_batch = run(batched, [job(i, hashed=True) for i in range(REQUESTS)])
        alone = [run(one, [job(i, hashed=True)])[1][0] for i in range(0, REQUESTS, 3)]
        same = all(a.row_digests == b.row_digests for a, b in zip(in_batch[::3], alone, strict=True))
        print(
            f"{REQUESTS} requests, {ADAPTERS} adapters of rank {RANK}, {args.tokens} tokens: in turn {in_turn:.2f} s, "
            f"in one batch {together:.2f} s: {ratio:.2f} times, bits {'equal' if same else 'DIFFER'}"
        )
        for name, seconds in steps(with_files).items():
            print(f"a step of {name}: {1e3 * seconds:.2f} ms")
        plain = scheduler_of(open_model(args.model, options))
        in_turn, together, ratio = gain(plain, plain, False)
        print(f"the same without adapters: in turn {in_turn:.2f} s, in one batch {together:.2f} s: {ratio:.2f} times")
        idle(plain, batched, job, time.perf_counter)
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
