"""The cuda engine on one card: decode, prefill and many streams, beside llama.cpp's `llama-bench` where there is one.

    python bench/gpu.py model.gguf                               decode, prefill 512 and 2048, 8 and 64 streams
    python bench/gpu.py model.gguf --depth 8000                  decode after 8,000 tokens
    python bench/gpu.py model.gguf --kernels                     time of each launch: a token, streams, a prompt
    python bench/gpu.py model.gguf --steps                       time of the first steps of walks: a token, 8 streams
    python bench/gpu.py model.gguf --llama-bench path/llama-bench

Figures are medians over rounds, in tokens a second. `graph` is the step on the device alone, queued without waiting;
`engine` is a call of `forward` for every token, logits on the host; `greedy` a call for every 16 tokens, each
the best after the one before.
Random weights (bench/make_model.py) suffice, because speed does not depend on the values.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.contract import PAGE, Chunk, pages_for
from assay.engines.cuda import CudaEngine, structs
from assay.engines.cuda.abi.enumerations import FORMAT_ROWS, StepKind
from assay.engines.cuda.device import Launch
from assay.engines.cuda.walk import MOST_TOKENS
from assay.gguf import open_file
from assay.models import load

ROUNDS = 20  # of greedy runs
FOLLOW = 15  # tokens of a decode run that the device chooses itself (greedy): runtime/scheduler.py


def timed(work: Callable[[], object], rounds: int) -> float:
    """The median time of a call, after one warm-up call."""
    work()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def table(index: int, slots: int) -> np.ndarray:
    each = pages_for(slots)
    return np.arange(index * each, (index + 1) * each, dtype=np.int32)


def slots_for(depth: int, tokens: int) -> int:
    """Cache slots of a stream of `decode`."""
    return depth + tokens + (ROUNDS + 2) * (1 + FOLLOW) + PAGE


def fill(engine: CudaEngine, rng: np.random.Generator, index: int, depth: int, slots: int) -> None:
    if depth:
        ids = rng.integers(3, engine.model.hparams.n_vocab, depth).astype(np.int32)
        engine.forward([Chunk(ids, 0, table(index, slots), "none", state_slot=index)])


def decode(engine: CudaEngine, streams: int, depth: int, tokens: int) -> tuple[float, float, float]:
    """Tokens a second of all streams together: the device alone, through `forward`, and greedy."""
    rng = np.random.default_rng(1)
    slots, at = slots_for(depth, tokens), depth + tokens

    def batch_at(start: int) -> list[Chunk]:
        return [Chunk(np.array([5 + i], np.int32), start, table(i, slots), state_slot=i) for i in range(streams)]

    for i in range(streams):
        fill(engine, rng, i, depth, slots)
    begin = time.perf_counter()
    for n in range(tokens):
        if n == 4:
            begin = time.perf_counter()
        engine.forward(batch_at(depth + n))
    through = streams * (tokens - 4) / (time.perf_counter() - begin)
    engine.forward(batch_at(at))
    program = next(reversed(engine._programs.values()))
    play, device = program.play, engine._device
    assert play is not None

    def replay() -> None:
        for _ in range(50):
            play()
        device.sync()

    graph = 50 * streams / timed(replay, 5)
    runner, left = engine.decode_runner, [FOLLOW] * streams
    assert runner is not None
    # A state cannot go back, so that every run goes on behind the one before.
    starts = iter(range(at + 1, slots, 1 + FOLLOW)) if engine.state_slots else repeat(at)

    def run() -> None:
        list(runner.start(batch_at(next(starts)), left, FOLLOW).results[0])

    return graph, through, streams * (1 + FOLLOW) / timed(run, ROUNDS)


def prefill(engine: CudaEngine, tokens: int, rounds: int = 3) -> float:
    ids = np.random.default_rng(2).integers(3, engine.model.hparams.n_vocab, tokens).astype(np.int32)
    return tokens / timed(lambda: engine.forward([Chunk(ids, 0, table(0, tokens), prompt=tokens - 1)]), rounds)


def kernels(engine: CudaEngine, batch: list[Chunk]) -> None:
    """Each kind of launch of a step, alone, many times: how many, microseconds, bytes of weights a second."""
    engine.forward(batch)
    program, device = next(reversed(engine._programs.values())), engine._device
    kinds = defaultdict(list)
    for launch in program.launches:
        kinds[launch.kernel, launch.grid, launch.threads].append(launch)
    print(f"launches of a step of {program.shape.tokens} tokens:")
    for (name, grid, threads), launches in kinds.items():

        def record(launches: list[Launch] = launches) -> None:
            for launch in launches:
                device.launch(launch, False)

        play = device.capture(record)

        def replay(play: Callable[[], None] = play) -> None:
            for _ in range(5):
                play()
            device.sync()

        each = timed(replay, 3) / 5 / len(launches)
        weights = sum(m.group_bytes * m.all_rows // m.group for m in matrices(launches[0]))
        speed = f", {weights / each / 1e12:.2f} TB/s" if weights else ""
        print(f"  {name:22} grid {grid} x {threads}: {len(launches):3} of {each * 1e6:.2f} us{speed}", flush=True)


def walk_steps(engine: CudaEngine, batch: list[Chunk], most: int = 64) -> None:
    """Microseconds that each of the first steps adds to a walk: the walk ends behind it, and one step before it."""
    engine.forward(batch)
    program, device = next(reversed(engine._programs.values())), engine._device
    at = next((i for i, launch in enumerate(program.launches) if launch.kernel.startswith("walk")), -1)
    if at < 0:
        print(f"a step of {len(batch)} tokens is no walk")
        return
    before, walk = program.launches[:at], program.launches[at]
    data = np.empty(walk.args.n_steps * ctypes.sizeof(structs.WalkStep), np.uint8)
    device.download(data, walk.args.steps)
    device.sync()
    steps = (structs.WalkStep * walk.args.n_steps).from_buffer(data)
    each: dict[str, list[float]] = defaultdict(list)
    layouts = {row.format: row.name for row in FORMAT_ROWS}
    last = 0.0
    for n in range(min(most, len(steps)) + 1):
        args = structs.WalkArgs.from_buffer_copy(walk.args)
        args.n_steps = n
        launches = [*before, replace(walk, args=args, prepared=None)]

        def record(launches: list[Launch] = launches) -> None:
            for launch in launches:
                device.launch(launch, False)

        play = device.capture(record)

        def replay(play: Callable[[], None] = play) -> None:
            for _ in range(20):
                play()
            device.sync()

        now = timed(replay, 5) / 20 * 1e6
        if n:
            step = steps[n - 1]
            kind, product = StepKind(step.kind), step.args.product
            sized = kind in (StepKind.PRODUCT, StepKind.EXPERT_ROWS)
            name = kind.name
            if kind == StepKind.EXPERT_ROWS and step.args.experts.down:
                name += " down"
            if sized:
                layout = layouts[product.parts[0].w.format]
                name += f" {product.groups} groups of {product.columns} columns, {layout}"
            each[name].append(now - last)
        last = now
    print(f"the first {min(most, len(steps))} steps of {walk.kernel}, of {len(steps)}:")
    for name, times in each.items():
        print(f"  {name:50} {len(times):3} of {statistics.median(times):6.2f} us", flush=True)


def matrices(launch: Launch) -> list[Any]:
    return [p.w for p in launch.args.parts[: launch.args.n_parts]] if launch.kernel.startswith("product") else []


def llama_bench(binary: str, path: Path, depth: int) -> None:
    command = [binary, "-m", str(path), "-fa", "1", "-p", "512,2048", "-n", "128", "-d", str(depth), "-o", "json"]
    for row in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout):
        print(f"llama.cpp: {row['n_prompt']} + {row['n_gen']} after {row['n_depth']}: {row['avg_ts']:.0f} tok/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--precision", default="fast", choices=("fast", "tensor", "mixed"))
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--llama-bench", default="")
    args = parser.parse_args()
    begin = time.perf_counter()
    longest = max([slots_for(args.depth or 16, args.tokens), *args.prefill])
    pages = max([pages_for(longest), *(n * pages_for(slots_for(128, args.tokens)) for n in args.streams)])
    engine = CudaEngine(load(open_file(args.model)), precision=args.precision, n_pages=pages)
    print(
        f"{args.model.name} on {engine.isa}, {args.precision}: loaded in {time.perf_counter() - begin:.2f} s",
        flush=True,
    )
    if args.steps:
        start = 0 if engine.state_slots else 16  # a state has no gaps
        walk_steps(engine, [Chunk(np.array([5], np.int32), start, table(0, 128))])
        few = [n for n in args.streams if 1 < n <= MOST_TOKENS]
        for n in few if not engine.state_slots else []:
            walk_steps(engine, [Chunk(np.array([5 + i], np.int32), start, table(i, 128)) for i in range(n)])
    if args.kernels:
        kernels(engine, [Chunk(np.array([5], np.int32), 64, table(0, 128))])
        kernels(
            engine, [Chunk(np.array([5], np.int32), 64, table(i, 128)) for i in range(max(args.streams, default=1))]
        )
        tokens = max(args.prefill, default=512)  # of many kinds, because equal ones choose the same experts
        ids = np.random.default_rng(2).integers(3, engine.model.hparams.n_vocab, tokens).astype(np.int32)
        kernels(engine, [Chunk(ids, 0, table(0, tokens), prompt=tokens - 1)])
    graph, through, greedy = decode(engine, 1, args.depth or 16, args.tokens)
    print(
        f"decode after {args.depth or 16}: graph {graph:.0f}, engine {through:.0f}, greedy {greedy:.0f} tok/s",
        flush=True,
    )
    for n in args.streams:
        graph, through, greedy = decode(engine, n, 128, 32)
        print(f"{n} streams after 128: graph {graph:.0f}, engine {through:.0f}, greedy {greedy:.0f} tok/s", flush=True)
    for n in args.prefill:
        print(f"prefill {n}: {prefill(engine, n):.0f} tok/s", flush=True)
    engine.close()
    if args.llama_bench:
        llama_bench(args.llama_bench, args.model, args.depth)


if __name__ == "__main__":
    main()
