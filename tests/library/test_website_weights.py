"""The page's packing of weights against Python's: every type, odd shapes, slices, and whole models from streams."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.wgpu import exported_plan as exported
from assay.engines.wgpu.graph_dispatches import compile_dispatches
from assay.engines.wgpu.placed_weights import StackedWeights
from assay.engines.wgpu.program_builder import ProgramShape
from assay.engines.wgpu.weight_tiles import CHUNK, ROWS, pack, tile_format, tiles_of, units_of
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.library.web_export import ASSETS
from assay.models import Model, load
from tests import tiny

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node")
TYPES = sorted(exported.PAGE_PACKS)
# Reads a plan's tensors from files through streams of uneven pieces, and writes the buffers one after the other.
READ = """
import { openSync, readFileSync, readSync, statSync, writeFileSync } from "node:fs";
const { Ascending, readTensors } = await import(process.argv[1]);
const { plan, files, out, step, ranged } = JSON.parse(readFileSync(0, "utf8"));
const sources = files.map((path) => {
  const handle = openSync(path);
  const size = statSync(path).size;
  return new Ascending(path, async (wanted) => {
    const from = ranged ? wanted : 0;
    let at = from;
    const stream = new ReadableStream({
      pull(controller) {
        const part = new Uint8Array(Math.min(1 + ((at * 7919) % step), size - at));
        if (!part.length) return controller.close();
        at += readSync(handle, part, 0, part.length, at);
        controller.enqueue(part);
      },
    });
    return { stream, at: from, ranged };
  });
});
const buffers = new Map(plan.weights.map(({ name, bytes }) => [name, new Uint8Array(bytes).fill(0xaa)]));
const bytes = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
const write = (name, offset, data) => buffers.get(name).set(bytes(data), offset);
const began = performance.now();
await readTensors(plan, sources, write);
console.log((performance.now() - began) / 1000);
writeFileSync(out, Buffer.concat([...buffers.values()]));
"""


def in_javascript(
    plan: Mapping[str, Any], files: list[Path], folder: Path, step: int = 70_001, ranged: bool = True
) -> dict[str, Any]:
    """The buffers that the page makes, by name."""
    data = {"plan": plan, "files": [str(f) for f in files], "out": str(folder / "out"), "step": step, "ranged": ranged}
    command = [str(NODE), "--input-type=module", "-e", READ, (ASSETS / "weights.js").as_uri()]
    done = subprocess.run(command, input=json.dumps(data), capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    made, at, found = np.fromfile(folder / "out", np.uint8), 0, {}
    for part in plan["weights"]:
        found[part["name"]] = made[at : at + part["bytes"]]
        at += part["bytes"]
    return found


def random_blocks(rng: np.random.Generator, type: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bytes, but no NaN among the half floats of scales: a NaN keeps no particular bits on its way."""
    kind = by_name(type)
    count = int(np.prod(shape)) // kind.block_size
    raw = rng.integers(0, 256, (count, kind.type_size), np.uint8)
    halves = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82), "IQ4_XS": (0,), "MXFP4": ()}
    two = type in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    for at in () if kind.block_size == 1 else halves.get(type, (0, 2) if two else (0,)):
        raw[:, at + 1] &= 0xBF  # exponents below 16
    if type in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"):
        raw[0, :2] = (0, 0x7C)  # an infinite scale counts as NaN
    return raw.reshape(-1)


@pytest.mark.parametrize("type", TYPES)
def test_tiles_of_any_blocks(tmp_path: Path, type: str) -> None:
    """Byte for byte: rows that fill no tile, columns that fill no unit, experts, and stacks cut into slices."""
    rng, kind = np.random.default_rng(7), by_name(type)
    wide = [kind.block_size * n for n in ((1, 3, 4) if kind.block_size == 256 else (1, 7, 9, 17))]
    wide += [5, 255, 257] if kind.block_size == 1 else []
    shapes: list[tuple[int, ...]] = [
        (int(rows), columns) for columns in wide for rows in (1, 31, 33, int(rng.integers(2, 200)))
    ]
    shapes += [(3, 37, wide[1]), (2, 64, wide[0]), (4, 1, wide[-1])]
    tensors = [Tensor(f"t{i}", shape, kind, random_blocks(rng, type, shape)) for i, shape in enumerate(shapes)]
    file = open_file(write_file(tmp_path / "m.gguf", tensors))
    weights: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    wanted: dict[str, np.ndarray] = {}
    for name, info in file.tensors.items():
        matrices, height, columns = (1, *info.shape)[-3:]
        form = tile_format(file, name, exact=False)
        tiles, size = tiles_of(height), units_of(columns) * form.chunks * CHUNK * ROWS
        # The tensor begins at tile `first` of a stack, which is cut into slices of `held` tiles.
        first, held = int(rng.integers(0, 4)), int(rng.integers(1, 5))
        slices: list[list[Any]] = [
            [f"{name} {at}", at, min(held, first + tiles - at)] for at in range(0, first + tiles, held)
        ]
        whole = np.full((matrices, first + tiles, size), 0xAA, np.uint8)
        whole[:, first:] = pack(file, name, form)
        for buffer, at, count in slices:
            weights.append({"name": buffer, "bytes": matrices * count * size, "host": False})
            wanted[buffer] = whole[:, at : at + count].reshape(-1)
        place = {"matrices": matrices, "rows": height, "columns": columns, "first": first, "slices": slices}
        rows.append({"file": 0, "at": info.offset, "bytes": info.nbytes, "type": type, "floats": [], "tiles": place})
    plan = {"files": [{}], "weights": weights, "tensors": sorted(rows, key=lambda row: row["at"])}
    found = in_javascript(plan, [file.path], tmp_path, step=3001)
    for name, data in wanted.items():
        assert np.array_equal(found[name], data), name


def write_file(path: Path, tensors: list[Tensor]) -> Path:
    write(path, {"general.architecture": "llama"}, tensors)
    return path


MODELS: dict[str, dict[str, Any]] = {
    "biases, F16": {"type": "F16", "bias": True},
    "rope factors, BF16": {"type": "BF16", "rope_freqs": True},
    "Q4_K and Q6_K, not tied": {
        "type": lambda name: "Q6_K" if "ffn_down" in name or "_v" in name else "Q4_K",
        "n_embd": 256, "n_ff": 512, "tied": False,
    },
    "experts": {"type": tiny.with_experts("Q8_0"), "n_expert": 4},
    "a type that the page does not pack": {
        "type": lambda name: "IQ3_S" if "ffn" in name else "Q3_K", "n_embd": 256, "n_ff": 256,
    },
}  # fmt: skip


def loaded_by_the_engine(model: Model, most: int) -> StackedWeights:
    class Arrays:
        max_binding = most

        def loaded(self, data: Any, what: str) -> Any:
            return np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    return StackedWeights(Arrays(), model.file, model.graph, exact=False)


@pytest.mark.parametrize("ranged", [True, False], ids=["ranged", "whole"])
@pytest.mark.parametrize("which", MODELS)
def test_the_weights_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, ranged: bool) -> None:
    """Every buffer of a model is the engine's, also where stacks are cut and where the host has no Range."""
    monkeypatch.setattr(exported._Sizes, "max_binding", 40_000)
    model = load(open_file(tiny.make(tmp_path / "m.gguf", **MODELS[which]))).at(64)
    plan, packed = exported.exported_plan(model, 64)
    with open(tmp_path / "packed.bin", "wb") as file:
        size = exported.write_packed(packed, file)
    assert size == (tmp_path / "packed.bin").stat().st_size
    plan["files"] = [{}, {}]
    found = in_javascript(plan, [tmp_path / "packed.bin", model.file.path], tmp_path, ranged=ranged)
    engine = loaded_by_the_engine(model, 40_000)
    compile_dispatches(model.graph, engine, ProgramShape(1, 64, "f16", best=True))
    compared = engine.buffers.keys() & found.keys()
    assert compared and {name for name in found if not name.startswith("rope")} == compared
    for name in compared:
        assert np.array_equal(found[name], engine.buffers[name]), name
    odd = [tensor for tensor in plan["tensors"] if tensor["type"] == "tiles"]
    assert bool(odd) == (which == "a type that the page does not pack")
