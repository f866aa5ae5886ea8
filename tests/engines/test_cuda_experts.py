"""Experts and heads of many tokens on the cuda engine: sorted by matrix, in tiles, with the cpu engine's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine, structs, tiles
from assay.engines.cuda.context import DeviceLimits
from assay.engines.cuda.device import Launch
from assay.engines.cuda.layout import FORMATS, Matrix, rows_per_group
from assay.engines.cuda.shim import Shim
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor
from assay.graph import Node
from assay.models import Model, load
from tests import tiny
from tests.engines import bits
from tests.engines.on_cuda import ON_GPU, device, pages

IDS = np.random.default_rng(5).integers(3, 300, 400).astype(np.int32)
EXPERTS: dict[str, Any] = {"n_layer": 1, "n_expert": 5, "n_expert_used": 2, "n_embd": 256}


def make(path: Path, type_name: str = "Q4_K", **options: Any) -> Model:
    given = {"type": tiny.with_experts(type_name), "n_ctx": 1024, **EXPERTS, **options}
    return load(open_file(tiny.make(path / "model.gguf", **given)))


def used(cuda: CudaEngine) -> set[str]:
    return {launch.kernel for program in cuda._programs.values() for launch in program.launches}


def same(model: Model, n: int, gpu: Any = None, **options: Any) -> set[str]:
    """A prompt at once gives the cpu engine's bits; the kernels that were launched."""
    chunk = Chunk(IDS[:n], 0, pages(0, n), "all")
    cpu = CpuEngine(model, threads=1, n_pages=16, **options)
    cuda = CudaEngine(model, n_pages=16, device=gpu or device(), **options)
    assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)
    return used(cuda)


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q8_0", "Q2_K"])  # minima, scales per 16, neither, both
@pytest.mark.parametrize("tile", tiles.EXPERT_TILES, ids=lambda tile: f"{tile[1]} x {tile[2]}")
def test_every_expert_tile_gives_the_cpu_engines_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int, int], type_name: str
) -> None:
    """Rows and pairs that do not fill tiles; several tiles of an expert; units that no number of warps divides."""
    monkeypatch.setattr(tiles, "EXPERT_TILES", ((0, *tile[1:]),))
    model = make(tmp_path, type_name, n_ff=1280 if type_name == "Q4_K" else 256)
    assert f"experts_{tile[1]}_{tile[2]}" in same(model, 70 if tile[2] > 8 else 30)


@pytest.mark.parametrize(("n", "kernel"), [(2, "product_one"), (12, "32_8"), (60, "32_32"), (130, "64_64")])
def test_a_batch_has_the_bits_of_its_tokens(tmp_path: Path, n: int, kernel: str) -> None:
    """Whatever kernels its size chooses; in precision tensor the same holds among the cuda engine's own."""
    model = make(tmp_path, "Q8_0", n_ff=96, n_embd=64)
    assert any(kernel in name for name in same(model, n) if name.startswith(("experts", "product_one")))
    cuda = CudaEngine(model, precision="tensor", n_pages=16, device=device())
    whole = cuda.forward([Chunk(IDS[:n], 0, pages(0, n), "all")])[0].logits
    for begin, end in ((0, 1), (1, n - 1), (n - 1, n)):
        if end > begin:
            piece = cuda.forward([Chunk(IDS[begin:end], begin, pages(8, n), "all")])[0].logits
            assert np.array_equal(piece, whole[begin:end])


def test_operations_around_experts_are_parts_of_other_steps(tmp_path: Path) -> None:
    """The gate, the weights, the sum and the residual; a kept node has a step of its own, and all bits stay."""
    model, n = make(tmp_path, n_ff=256), 60
    cpu = CpuEngine(model, threads=1, n_pages=16)
    cuda = CudaEngine(model, n_pages=16, device=device())
    chunk = Chunk(IDS[:n], 0, pages(0, n), "all")
    steps = {}
    nodes = [node for node in model.graph if node.op in ("glu", "expert_scale", "expert_sum")]
    assert len(nodes) == 3
    residual = next(name for node in nodes if node.op == "expert_sum" for name in model.graph.users[node.name])
    for keep in ((), *((node.name,) for node in nodes), (residual,)):
        (found,), (expected,) = cuda.forward([chunk], keep), cpu.forward([chunk], keep)
        assert np.array_equal(found.logits, expected.logits)
        assert all(np.array_equal(found.nodes[name], expected.nodes[name]) for name in keep)
        launches = next(reversed(cuda._programs.values())).launches
        steps[keep] = [launch.kernel for launch in launches]
    assert "total_experts" in steps[()]
    for node in nodes:
        assert steps[node.name,].count("map") > steps[()].count("map"), node.name


@pytest.mark.parametrize("name", ["gpt-oss", "qwen2moe", "qwen3moe", "glm4moe", "deepseek2"])
def test_prompts_of_families_with_experts(tmp_path: Path, name: str) -> None:
    """Biases behind products, gates with limits, shared experts, factors: without kept nodes, in sorted tiles."""
    case = bits.CASES[f"arch {name}"]
    model = bits.make(case, tmp_path / "model.gguf")
    graph, ids = bits.graph_of(case, model), IDS[:60] % model.hparams.n_vocab
    cpu = CpuEngine(model, threads=1, n_pages=16, graph=graph)
    cuda = CudaEngine(model, n_pages=16, graph=graph, device=device())
    batch = [Chunk(ids[:40], 0, pages(0, 40), "all"), Chunk(ids[40:], 0, pages(8, 20), "all", state_slot=1)]
    for expected, found in zip(cpu.forward(batch), cuda.forward(batch), strict=True):
        assert np.array_equal(expected.logits, found.logits)
    assert "total_experts" in used(cuda)


def test_one_expert_for_all_and_one_for_nobody(tmp_path: Path) -> None:
    """Column 0 of every token is large: expert 1 likes it, expert 3 does not."""

    def fill(name: str, shape: tuple[int, ...], type_name: str, rng: np.random.Generator) -> Tensor:
        found = tiny._tensor(name, shape, type_name, rng)
        x = rng.standard_normal(shape).astype(np.float32)
        if name == "token_embd.weight":
            x[:, 0] = 40.0
        elif "ffn_gate_inp" in name:
            x = x / 64
            x[:, 0] = (0, 0.5, 0, -0.5, 0)
        else:
            return found
        return Tensor(name, shape, by_name("F32"), x)

    model = make(tmp_path, "Q8_0", tensor=fill, n_ff=64)
    name, n = "ffn_moe_topk-0", 60
    for gpu in (device(), *([] if ON_GPU else [Shim(1), Shim(2), Shim(3)])):
        cuda = CudaEngine(model, n_pages=16, device=gpu)
        out = cuda.forward([Chunk(IDS[:n], 0, pages(0, n), "all")], [name])[0]
        counts = np.bincount(out.nodes[name].astype(int).ravel(), minlength=5)
        assert counts[1] == n and counts[3] == 0 and (counts > 0).sum() == 4
        same(model, n, gpu)
        assert "experts_32_32" in used(cuda)


@pytest.mark.parametrize("factor", [-1.0, 3.0, float("nan"), float("inf")])
def test_choices_that_no_expert_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Below 0, above the last, not a number: the first expert, as pair by pair. (The cpu engine refuses such ids.)"""

    def change(node: Node) -> Any:
        if node.op != "expert_linear":
            return None
        odd = Node(f"odd_{node.name}", "scale", (node.inputs[1],), (), {"factor": factor})
        return [odd, Node(node.name, node.op, (node.inputs[0], odd.name), node.weights, node.attrs)]

    model = make(tmp_path, "Q8_0", n_ff=64)
    graph, found = model.graph.rewrite(change).check(), []
    for least in (tiles.SORTED, 1 << 30):
        monkeypatch.setattr(tiles, "SORTED", least)
        cuda = CudaEngine(model, n_pages=16, device=device(), graph=graph)
        found.append(cuda.forward([Chunk(IDS[:20], 0, pages(0, 20), "all")])[0].logits)
        assert ("sort_pairs" in used(cuda)) == (least < 1 << 30)
    assert np.array_equal(*found)


@pytest.mark.skipif(ON_GPU, reason="weather is the shim's")
@pytest.mark.parametrize("weather", [1, 2, 3])
@pytest.mark.parametrize("n", [12, 60, 130])
def test_no_tile_is_right_by_luck(tmp_path: Path, n: int, weather: int) -> None:
    same(make(tmp_path, "Q4_K", n_ff=512), n, Shim(weather))


def test_heads_of_many_tokens_are_tiles_too(tmp_path: Path) -> None:
    """The matrices of MLA: every token takes all of them, and one list does for all layers."""
    model = bits.make(bits.CASES["arch deepseek2"], tmp_path / "model.gguf")
    n = 70
    chunk = Chunk(IDS[:n] % model.hparams.n_vocab, 0, pages(0, n), "all")
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device())
    assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)
    (program,) = cuda._programs.values()
    lists = [launch for launch in program.launches if launch.kernel == "sort_pairs" and not launch.args.experts]
    heads = {(launch.args.count, launch.args.n, launch.args.tile) for launch in lists}
    assert lists and len(lists) == len(heads) and "experts_64_64" in used(cuda)


@pytest.mark.parametrize(("count", "n", "tile"), [(1, 3, 8), (9, 200, 8), (700, 7, 32), (3000, 33, 64), (12000, 1, 8)])
@pytest.mark.parametrize("heads", [False, True], ids=["experts", "heads"])
def test_pairs_are_sorted(count: int, n: int, tile: int, heads: bool) -> None:
    gpu, rng = device(), np.random.default_rng(count)
    ids = rng.choice(np.append(np.arange(-1, n + 2, 2), np.nan), count).astype(np.float32)
    of = np.where((ids >= 0) & (ids < n), ids, 0).astype(int)
    if heads:
        of = np.arange(count) % n
    tiles = (count + min(count, n) * (tile - 1)) // tile
    pairs, matrices = np.full(tiles * tile, -1, np.int32), np.full(tiles, -1, np.int32)
    at = 0
    for matrix in range(n):
        mine = np.flatnonzero(of == matrix)
        some = -(-len(mine) // tile)
        pairs[at * tile : at * tile + len(mine)], matrices[at : at + some] = mine, matrix
        at += some
    places = [gpu.alloc(a.nbytes, "a list") for a in (ids, pairs, matrices)]
    gpu.upload(places[0], ids)
    for threads in (32, 256, 1024):
        args = structs.SortArgs(0 if heads else places[0], *places[1:], count, n, tile, tiles)
        gpu.launch(Launch("sort_pairs", (n, 1, 1), threads, args, 4 * (n + threads // 32)), early=False)
        found = np.empty_like(pairs), np.empty_like(matrices)
        for array, place in zip(found, places[1:], strict=True):
            gpu.download(array, place)
        gpu.sync()
        assert np.array_equal(found[0], pairs) and np.array_equal(found[1], matrices)
    gpu.close()


# Of an H200: layout, experts, rows, columns, pairs; the kernel.
SHAPES = {
    "32 small experts, 16 streams": ("Q4_K", 32, 768, 2048, 64, ""),
    "32 small experts, 64 streams": ("Q4_K", 32, 768, 2048, 256, "experts_32_8"),
    "32 small experts, a prompt": ("Q4_K", 32, 768, 2048, 8192, "experts_64_64"),
    "128 experts, 512 tokens": ("Q4_K", 128, 768, 2048, 4096, "experts_32_32"),
    "8 large experts, 8 streams": ("Q4_K", 8, 14336, 4096, 16, "experts_32_8"),
    "8 large experts, one token": ("Q4_K", 8, 14336, 4096, 2, ""),
    "floats": ("F16", 8, 14336, 4096, 4096, ""),
}


@pytest.mark.parametrize("name", SHAPES)
def test_how_experts_are_dealt(name: str) -> None:
    layout, count, rows, columns, pairs, kernel = SHAPES[name]
    units = -(-columns // 256)
    matrix = Matrix(FORMATS[layout], rows, columns, units, rows_per_group(units, False), 0, count)
    found = tiles.expert_tile(pairs, matrix, DeviceLimits(132, 227 << 10))
    assert (found.kernel if found else "") == kernel
    assert not found or (found.stages >= 2 and found.shared <= 226 << 10)
