"""The wgpu engine on this machine's adapter: decode and a prompt beside the cpu engine, and whether the bits are equal.

    python bench/webgpu.py model.gguf                     decode 32 tokens, a prompt of 64
    python bench/webgpu.py model.gguf --tier 1            with another arithmetic tier
    python bench/webgpu.py model.gguf --kernels           also the time of each kernel of a decode step

Figures are tokens a second. `decode` is a call for every token, logits on the host; `ahead` is greedy decoding, whose
steps are submitted before the results of their predecessors are read. The processor's time a token counts all of its
threads, which is the cost of a GPU in software. Random weights
(bench/make_model.py) suffice, because speed does not depend on the values.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from assay import engines
from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.engines.wgpu import WgpuEngine
from assay.engines.wgpu.adapter import Command, _trusted_module
from assay.engines.wgpu.attention_dispatches import KEY_BLOCK
from assay.engines.wgpu.dispatches import Dispatch
from assay.engines.wgpu.recording import Recording
from assay.gguf import open_file
from assay.models import Model, load

WARM = 3.0  # seconds of decode steps that are not measured: a card that has rested is slow until then


def step(engine: PagedEngine, ids: np.ndarray, start: int) -> np.ndarray:
    """The logits after these tokens."""
    pages = np.arange(pages_for(start + len(ids)), dtype=np.int32)
    return np.asarray(engine.forward([Chunk(ids, start, pages)])[0].logits)


def run(engine: PagedEngine, model: Model, tokens: int, prompt: int) -> tuple[float, float, float, list[bytes]]:
    """Tokens a second of the prompt and of decoding, seconds of the processor for a decoded token, and the bits of the
    logits of every step."""
    rng = np.random.default_rng(7)
    ids = rng.integers(3, model.hparams.n_vocab, prompt + tokens).astype(np.int32)
    step(engine, ids[:prompt], 0)  # compiles and packs
    began = time.perf_counter()
    while time.perf_counter() - began < WARM:
        step(engine, ids[prompt : prompt + 1], prompt)
    began = time.perf_counter()
    found = [step(engine, ids[:prompt], 0).tobytes()]
    read, used = time.perf_counter(), time.process_time()
    found += [step(engine, ids[i : i + 1], i).tobytes() for i in range(prompt, prompt + tokens)]
    ended = time.perf_counter()
    return prompt / (read - began), tokens / (ended - read), (time.process_time() - used) / tokens, found


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
    gpu, recording = engine._gpu, next(r for (shape, *_), r in engine._recordings.items() if shape.rows == 1)
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
    bandwidth(engine, recording, commands, times)
    spent = np.mean([gpu.timed(commands) for _ in range(times)], axis=0) / 1e3
    total: dict[str, list[float]] = {}
    for us, (_, _, groups), dispatch in zip(spent, commands, recording.plan.dispatches, strict=True):
        kind = f"{dispatch.kernel.name} {groups} {' '.join(sorted(dispatch.kernel.words))}"
        total.setdefault(kind, []).append(float(us))
    for kind, found in sorted(total.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(found):9.0f} us  {len(found):4} x {sum(found) / len(found):7.1f}  {kind}")
    print(f"{sum(map(sum, total.values())):9.0f} us  in all, {sum(map(len, total.values()))} dispatches", flush=True)


READ = """
@group(0) @binding(0) var<storage, read> par : array<u32>;
@group(0) @binding(1) var<storage, read> w : array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> out : array<u32>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  var s = vec4<u32>(0u);
  let base = 2304u * group.x + l;
  for (var k = 0u; k < 9u; k++) { s ^= w[base + 256u * k]; }
  if ((s.x ^ s.y ^ s.z ^ s.w) == 0x12345678u || par[0] != 0u) { out[group.x % 4u] = s.x; }
}
"""  # loads of 16 bytes and nothing else, 36,864 bytes a workgroup


def blocks_of(columns: int) -> np.ndarray:
    """A row of activations as int8 blocks (`quantise.wgsl`): codes, scales twice, and scales times sums of codes."""
    codes = np.random.default_rng(1).integers(-127, 128, columns).astype(np.int8)
    d: np.ndarray = np.full(columns // 32, 0.01, np.float32)
    sums = d * codes.reshape(-1, 32).sum(axis=1).astype(np.float32)
    lists = [np.pad(values, (0, -len(values) % 4)) for values in (d, d, sums)]
    return np.concatenate([codes.view(np.float32), *lists])


def bandwidth(engine: WgpuEngine, recording: Recording, commands: list[Command], times: int) -> None:
    """The products of a step in one pass, beside a pass that only loads as many bytes in as many dispatches.

    They have activations of their own: the memory of a step is shared by values that live at different times.
    """
    gpu, device = engine._gpu, engine._gpu._device
    layout = device.create_bind_group_layout(entries=[
        {"binding": i, "visibility": gpu._wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
        for i, kind in enumerate(("read-only-storage", "read-only-storage", "storage"))
    ])  # fmt: skip
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": _trusted_module(device, READ), "entry_point": "main"},
    )
    zero, out = gpu.buffer(16, "zero"), gpu.buffer(16, "a word")
    scratch = {name: gpu.buffer(1 << 20, name) for name in ("bias", "residual", "idx", "out", "acts")}
    chunks = {"nibbles": 8, "centred": 8, "book": 8, "six": 12, "bytes": 16}
    scales = {"super": 1, "halves": 1, "signed": 2, "floats": 2, "sixteenths": 4}
    scratch_rows: dict[int, Any] = {}  # activations, by columns
    products: list[Command] = []
    loads: list[Command] = []
    total = 0
    for command, dispatch in zip(commands, recording.plan.dispatches, strict=True):
        numbers, words = dispatch.numbers, dispatch.kernel.words
        if dispatch.kernel.name != "matvec" or numbers["experts"]:
            continue
        of = dict(word.split("=") for word in words if "=" in word)
        minima = 2 if "minima" in words and of["scales"] != "super" else 1
        item = 16 * (chunks[of["codes"]] + scales[of["scales"]] * minima)
        rows = next(int(word[4:]) for word in words if word.startswith("rows"))
        both = 2 if "gated" in words else 1
        size = command[2][0] * rows * numbers["units"] * item * both
        weights = recording.buffer(dispatch.buffers["w"])
        columns = 32 * numbers["blocks"]
        if columns not in scratch_rows:
            scratch_rows[columns] = gpu.loaded(blocks_of(columns), "activations")
        places = {"w": weights, "x": scratch_rows[columns], **scratch}
        own = np.array(Dispatch(dispatch.kernel, {**numbers, "residual_at": 0}, {}, (1, 1, 1)).words, np.uint32)
        par = gpu.loaded(np.pad(own, (0, 64 - len(own))), "numbers")
        products.append((command[0], gpu.bind_group(dispatch.kernel, (par, 0, 256), places), command[2]))
        entries = [
            {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for i, b in enumerate((zero, weights, out))
        ]
        loads.append((pipeline, device.create_bind_group(layout=layout, entries=entries), (-(-size // 36864), 1, 1)))
        total += size
    began = time.perf_counter()
    while time.perf_counter() - began < WARM:  # the clock of a card that waited for the host is low again
        gpu.timed(products, together=True)
    for what, some in (("products", products), ("loads alone", loads)):
        us = min(float(gpu.timed(some, together=True)[0]) for _ in range(times)) / 1e3
        print(f"{us:9.0f} us  {what} of {total / 1e9:.2f} GB in one pass of {len(some)}: {total / us / 1e6:.2f} TB/s")


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
        prompt, decode, used, bits[name] = run(engine, model, args.tokens, args.prompt)
        ahead = run_ahead(engine, args.prompt, args.tokens)
        print(f"{args.model.name}, {name}: made in {loaded:.1f} s, prompt {prompt:,.0f}, decode {decode:,.1f} tok/s "
              f"({1000 * used:,.2f} ms of the processor a token)"
              f"{f', ahead {ahead:,.1f}' if ahead else ''}")  # fmt: skip
        print(getattr(engine, "verdict", ""), flush=True)
        if args.kernels and isinstance(engine, WgpuEngine):
            kernels(engine, args.prompt + args.tokens - 1)
        engine.close()
    same = [a == b for a, b in zip(bits["cpu"], bits["wgpu"], strict=True)]
    print(f"logits equal to the cpu's: {sum(same)} of {len(same)} steps")


if __name__ == "__main__":
    main()
