"""The wgpu engine on this machine's adapter: decode and a prompt beside the cpu engine, and whether the bits are equal.

    python bench/webgpu.py model.gguf                     decode 32 tokens, a prompt of 64
    python bench/webgpu.py model.gguf --tier 1            with another arithmetic tier
    python bench/webgpu.py model.gguf --kernels           also the time of each kernel of a decode step

Figures are tokens a second. `decode` is a call for every token, logits on the host; `ahead` is greedy decoding, whose
steps are submitted before the results of their predecessors are read. Random weights
(bench/make_model.py) suffice, because speed does not depend on the values.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from assay import engines
from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.engines.wgpu import KEY_BLOCK, WgpuEngine
from assay.gguf import open_file
from assay.models import Model, load

WARM = 30  # decode steps that are not measured: a card that has rested needs some twenty of them to reach its clocks


def step(engine: PagedEngine, ids: np.ndarray, start: int) -> np.ndarray:
    """The logits after these tokens."""
    pages = np.arange(pages_for(start + len(ids)), dtype=np.int32)
    return np.asarray(engine.forward([Chunk(ids, start, pages)])[0].logits)


def run(engine: PagedEngine, model: Model, tokens: int, prompt: int) -> tuple[float, float, list[bytes]]:
    """Tokens a second of the prompt and of decoding, and the bits of the logits of every step."""
    rng = np.random.default_rng(7)
    ids = rng.integers(3, model.hparams.n_vocab, prompt + tokens).astype(np.int32)
    step(engine, ids[:prompt], 0)  # compiles and packs
    for _ in range(WARM):
        step(engine, ids[prompt : prompt + 1], prompt)
    began = time.perf_counter()
    found = [step(engine, ids[:prompt], 0).tobytes()]
    read = time.perf_counter()
    found += [step(engine, ids[i : i + 1], i).tobytes() for i in range(prompt, prompt + tokens)]
    ended = time.perf_counter()
    return prompt / (read - began), tokens / (ended - read), found


def run_ahead(engine: PagedEngine, prompt: int, tokens: int) -> float:
    """Tokens a second of a decode run after a prompt; 0 if the engine has none."""
    if engine.decode_runner is None:
        return 0.0
    pages = np.arange(pages_for(prompt + tokens), dtype=np.int32)
    for _ in range(2):  # the first one compiles
        began = time.perf_counter()
        chunk = Chunk(np.array([5], np.int32), prompt, pages)
        (found,) = engine.decode_runner.start([chunk], [tokens - 1], 8).results
        assert len([top.ids for top in found]) == tokens
    return tokens / (time.perf_counter() - began)


def kernels(engine: WgpuEngine, start: int, times: int = 20) -> None:
    """The microseconds of each kind of dispatch of a decode step, by the device's clock, in passes of their own."""
    step(engine, np.array([5], np.int32), start)
    gpu, recording = engine._gpu, next(r for (shape, _), r in engine._recordings.items() if shape.rows == 1)
    commands = recording.commands(1, 1, -(-start // KEY_BLOCK), 1)
    if "timestamp-query" not in gpu._device.features:
        print("this adapter has no timestamps")
        return
    began, prepared = time.perf_counter(), gpu.prepared(commands)
    for _ in range(times):
        gpu.submit(prepared)
    host = (time.perf_counter() - began) / times * 1e6
    whole = sum(float(gpu.timed(commands, together=True)[0]) for _ in range(times)) / times / 1e3
    print(f"{host:9.0f} us  of the host to encode and submit a step; {whole:.0f} us of the device for its one pass")
    spent = sum(gpu.timed(commands) for _ in range(times)) / times / 1e3
    total: dict[str, list[float]] = {}
    for us, (_, _, groups), dispatch in zip(spent, commands, recording.plan.dispatches, strict=True):
        kind = f"{dispatch.kernel.name} {groups} {' '.join(sorted(dispatch.kernel.words))}"
        total.setdefault(kind, []).append(float(us))
    for kind, found in sorted(total.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(found):9.0f} us  {len(found):4} x {sum(found) / len(found):7.1f}  {kind}")
    print(f"{sum(map(sum, total.values())):9.0f} us  in all, {sum(map(len, total.values()))} dispatches", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=32, help="decoded; default 32")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt; default 64")
    parser.add_argument("--tier", type=int, choices=(0, 1, 2), help="of the arithmetic; default: the adapter's best")
    parser.add_argument("--kernels", action="store_true", help="the time of each kernel of a decode step")
    args = parser.parse_args()
    model = load(open_file(args.model))
    bits = {}
    for name, options in (("cpu", {}), ("wgpu", {} if args.tier is None else {"tier": args.tier})):
        began = time.perf_counter()
        engine = engines.create(name, model, n_pages=pages_for(args.prompt + args.tokens), **options)
        loaded = time.perf_counter() - began
        prompt, decode, bits[name] = run(engine, model, args.tokens, args.prompt)
        ahead = run_ahead(engine, args.prompt, args.tokens)
        print(f"{args.model.name}, {name}: made in {loaded:.1f} s, prompt {prompt:,.0f}, decode {decode:,.1f} tok/s"
              f"{f', ahead {ahead:,.1f}' if ahead else ''}")  # fmt: skip
        print(getattr(engine, "verdict", ""), flush=True)
        if args.kernels and isinstance(engine, WgpuEngine):
            kernels(engine, args.prompt + args.tokens - 1)
        engine.close()
    same = [a == b for a, b in zip(bits["cpu"], bits["wgpu"], strict=True)]
    print(f"logits equal to the cpu's: {sum(same)} of {len(same)} steps")


if __name__ == "__main__":
    main()
