"""Encoding of pictures beside llama.cpp: vision towers in the shapes of published ones, random weights.

    python bench/vision.py --llama ../llama.cpp                       # every shape, F16 and Q8_0
    python bench/vision.py --peer build/peer/vision --layers 2 --threads 1 --clock cpu      # on a busy machine
    python bench/vision.py --engine cuda --shapes gemma3 --types F16                        # no peer: seconds alone
    python bench/vision.py --engine cuda --peer build/peer/vision     # built with -DGGML_CUDA=ON, it encodes there too
    python bench/vision.py --engine cuda --precision tensor           # 16-bit matrix units, as llama.cpp
    python bench/vision.py --shapes qwen3-vl-2b --pictures 4          # several pictures in one batch, over one by one

Each engine runs in its own process and encodes preprocessed pixels; they take turns. A ratio is llama.cpp's seconds
over assay's. `--layers` makes shorter towers: a layer costs the same in each. The weights' types are those of the files
that people have: matrices in the type that is named, in F16 where its blocks do not divide a row, tables and vectors in
F32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from compare import Worker, build_peer
from make_model import Blocks

from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write


@dataclass(frozen=True)
class TowerShape:
    """The dimensions of a published tower, and a size of picture that it encodes."""

    projector: str
    patch: int
    image: int  # the side that the table of positions is for
    e: int
    f: int
    n_head: int
    n_layer: int
    t: int  # width of the language model
    picture: tuple[int, int]
    deepstack: tuple[int, ...] = ()


SHAPES = {
    "gemma3": TowerShape("gemma3", 14, 896, 1152, 4304, 16, 27, 2560, (896, 896)),
    "qwen3-vl-2b": TowerShape("qwen3vl_merger", 16, 768, 1024, 4096, 16, 24, 2048, (1024, 768), (5, 11, 17)),
}


def tensor_shapes(s: TowerShape, n_layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a tower with this many layers."""
    kernel, rows = (s.e, 3, s.patch, s.patch), (s.image // s.patch) ** 2
    found: dict[str, tuple[int, ...]] = {"v.patch_embd.weight": kernel, "v.position_embd.weight": (rows, s.e)}

    def norm(name: str, width: int) -> None:
        found.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def linear(name: str, out: int, width: int) -> None:
        found.update({f"{name}.weight": (out, width), f"{name}.bias": (out,)})

    found["v.patch_embd.bias"] = (s.e,)
    norm("v.post_ln", s.e)
    for i in range(n_layer):
        stem = f"v.blk.{i}"
        norm(f"{stem}.ln1", s.e)
        norm(f"{stem}.ln2", s.e)
        if s.projector == "gemma3":
            for letter in "qkv":
                linear(f"{stem}.attn_{letter}", s.e, s.e)
        else:
            linear(f"{stem}.attn_qkv", 3 * s.e, s.e)
        linear(f"{stem}.attn_out", s.e, s.e)
        linear(f"{stem}.ffn_up", s.f, s.e)
        linear(f"{stem}.ffn_down", s.e, s.f)
    if s.projector == "gemma3":
        return {**found, "mm.soft_emb_norm.weight": (s.e,), "mm.input_projection.weight": (s.e, s.t)}
    found["v.patch_embd.weight.1"] = kernel
    linear("mm.0", 4 * s.e, 4 * s.e)
    linear("mm.2", s.t, 4 * s.e)
    for i in (n for n in s.deepstack if n < n_layer):
        norm(f"v.deepstack.{i}.norm", 4 * s.e)
        linear(f"v.deepstack.{i}.fc1", 4 * s.e, 4 * s.e)
        linear(f"v.deepstack.{i}.fc2", s.t, 4 * s.e)
    return found


def make_tower(path: Path, shape: TowerShape, kind: str, n_layer: int) -> Path:
    """Write an mmproj file of this shape with random weights."""
    blocks, f32, f16 = Blocks(1), by_name("F32"), by_name("F16")

    def type_of(name: str, dims: tuple[int, ...]) -> Any:
        if len(dims) == 1 or name.startswith("v.position"):
            return f32
        wanted = by_name(kind)
        halves = len(dims) == 4 or name.startswith("mm.input_projection") or dims[-1] % wanted.block_size
        return f16 if halves else wanted

    def data(name: str, dims: tuple[int, ...]) -> Any:
        if len(dims) == 1:
            return np.full(dims, float(name.endswith("weight")), np.float32)
        return blocks.tensor(type_of(name, dims), dims)

    vision = "clip.vision."
    keys = {
        "general.architecture": "clip", "clip.has_vision_encoder": True, "clip.projector_type": shape.projector,
        "clip.use_gelu": True, f"{vision}image_size": shape.image, f"{vision}patch_size": shape.patch,
        f"{vision}embedding_length": shape.e, f"{vision}feed_forward_length": shape.f, f"{vision}block_count": n_layer,
        f"{vision}projection_dim": shape.t, f"{vision}attention.head_count": shape.n_head,
        f"{vision}attention.layer_norm_epsilon": 1e-6, f"{vision}image_mean": np.full(3, 0.5, np.float32),
        f"{vision}image_std": np.full(3, 0.5, np.float32),
    }  # fmt: skip
    if shape.deepstack:
        keys[f"{vision}is_deepstack_layers"] = [i in shape.deepstack for i in range(n_layer)]
    dims = tensor_shapes(shape, n_layer)
    tensors = [
        Tensor(name, size, type_of(name, size), lambda name=name, size=size: data(name, size))
        for name, size in dims.items()
    ]
    write(path, keys, tensors)
    return path


# Prints what it is, then answers "WIDTH HEIGHT PICTURES" with seconds on the wall clock and of the CPU.
ASSAY = """
import sys, time
import numpy as np
from assay.models.vision.picture_inputs import patch_rows, picture_inputs
from assay.vision.projector import TowerInput, open_projector

projector = open_projector(sys.argv[1], sys.argv[3], threads=int(sys.argv[2]), precision=sys.argv[4])
print(projector.engine)
print(0.0, flush=True)
for line in sys.stdin:
    width, height, count = map(int, line.split())
    pixels = (np.arange(3 * height * width) * 7919 % 256 / 128 - 1).astype(np.float32).reshape(3, height, width)
    began = time.perf_counter(), time.process_time()
    tower = projector.tower
    inputs = picture_inputs(tower.keys, (width, height), tower.table_rows)
    image = TowerInput(patch_rows(pixels, tower.keys.patch, inputs.order), inputs)
    projector.run([image] * count)
    print(time.perf_counter() - began[0], time.process_time() - began[1], flush=True)
"""


class Encoder(Worker):
    """An engine that encodes pictures; answers in seconds."""

    def encode(self, size: tuple[int, int], clock: str, count: int = 1) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{size[0]} {size[1]} {count}\n")
        self.process.stdin.flush()
        return float(self._line().split()[clock == "cpu"])


def measure(path: Path, name: str, kind: str, args: argparse.Namespace) -> dict[str, Any]:
    given, size = [str(path), str(args.threads)], SHAPES[name].picture
    workers = [Encoder([sys.executable, "-c", ASSAY], [*given, args.engine, args.precision], here=True)]
    if args.peer:
        workers.append(Encoder([str(args.peer)], given + ["gpu"] * (args.engine == "cuda")))
    runs: list[list[float]] = [[] for _ in workers]
    for worker in workers:
        worker.encode(size, args.clock)  # weights are laid out, kernels compiled
    for _ in range(args.repeat):
        for found, worker in zip(runs, workers, strict=True):
            found.append(worker.encode(size, args.clock))
    result: dict[str, Any] = {"shape": name, "type": kind, "picture": size, "precision": args.precision}
    result["seconds"] = statistics.median(runs[0])
    if args.peer:
        result["llama.cpp"] = statistics.median(runs[1])
        ratios = [b / a for a, b in zip(*runs, strict=True)]
        result |= {"ratio": statistics.median(ratios), "range": [min(ratios), max(ratios)]}
    if args.pictures > 1:
        together = workers[0].encode(size, args.clock, args.pictures)
        result["together"] = args.pictures * result["seconds"] / together
    for worker in workers:
        worker.close()
    return result


def markdown(results: list[dict[str, Any]]) -> str:
    lines = ["| tower | type | picture | assay, s | llama.cpp, s | ratio | range | in one batch |", "|---" * 8 + "|"]
    for r in results:
        peer = (
            (f"{r['llama.cpp']:.3g}", f"{r['ratio']:.2f}", "{:.2f} – {:.2f}".format(*r["range"]))
            if "ratio" in r
            else ("–",) * 3
        )
        batch = f"{r['together']:.2f}" if "together" in r else "–"
        size = "×".join(map(str, r["picture"]))
        lines.append(f"| {' | '.join([r['shape'], r['type'], size, format(r['seconds'], '.3g'), *peer, batch])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--types", type=lambda text: text.split(","), default=["F16", "Q8_0"])
    parser.add_argument("--layers", type=int, default=0, help="fewer than the published tower has")
    parser.add_argument("--engine", default="cpu", help="of assay")
    parser.add_argument("--precision", default="fast", help="of assay: fast, exact or, with --engine cuda, tensor")
    parser.add_argument("--llama", type=Path, help="llama.cpp's sources, to be built for this machine")
    parser.add_argument("--peer", type=Path, help="or the worker that was built of them before (build/peer/vision)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=1, help="also this many pictures in one batch")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args()
    if args.llama:
        args.peer = build_peer(args.llama, "vision")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.shapes:
            for kind in args.types:
                n_layer = args.layers or SHAPES[name].n_layer
                path = make_tower(Path(folder) / "tower.gguf", SHAPES[name], kind, n_layer)
                results.append(measure(path, name, kind, args))
                print(results[-1], file=sys.stderr)
    print(markdown(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
