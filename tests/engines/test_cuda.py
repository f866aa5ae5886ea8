"""The cuda engine under the shim: the kernels' own sources on the host, compared with the cpu engine bit for bit.

`make test-gpu` runs the same tests on a real card.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine, arrange, layout, sources, structs, tiles, walk
from assay.engines.cuda.layout import FORMATS, Matrix, rows_per_group
from assay.engines.cuda.shim import Shim
from assay.errors import AssayError
from assay.gguf import open_file
from assay.graph import Node
from assay.models import Model, load
from tests import tiny
from tests.engines import bits
from tests.engines.on_cuda import ON_GPU, device, pages
from tests.engines.test_architectures import halves

Make = Callable[..., Model]
IDS = np.random.default_rng(3).integers(3, 300, 600).astype(np.int32)
WIDE = {"n_embd": 256, "n_ff": 512}  # whole blocks of 256
TWO_LAYERS = ("Q4_K", "Q6_K", "Q8_0", "F16", "IQ2_XXS")  # with minima, without, of 32, floats, a table
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {"tied": False, "bias": True, "rope_freqs": True},
    "experts": {"n_expert": 4},
    "window": {"window": 11},
    "one_group": {"n_head": 4, "n_head_kv": 1, "n_embd": 128},
    "odd_heads": {"n_head": 6, "n_head_kv": 2, "n_embd": 96, "n_ff": 160},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 64}},
    "mix": {"type": lambda name: "Q6_K" if "attn_v" in name or "down" in name else "Q4_K", **WIDE},
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    folder = tmp_path_factory.mktemp("cuda")
    made: dict[str, Model] = {}

    def build(**options: Any) -> Model:
        key = repr(sorted((k, v) for k, v in options.items()))
        if key not in made:
            made[key] = load(open_file(tiny.make(folder / f"{len(made)}.gguf", n_ctx=1024, **options)))
        return made[key]

    yield build


def same(cpu: CpuEngine, cuda: CudaEngine, n: int = 20) -> None:
    """A prompt at once, token by token, and as rows of a batch: one set of bits, the cpu engine's."""
    ids = IDS[:n]
    expected = cpu.forward([Chunk(ids, 0, pages(0, n), "all")])[0].logits
    assert np.array_equal(cuda.forward([Chunk(ids, 0, pages(0, n), "all")])[0].logits, expected)
    table = pages(4, n)
    for i in range(3):
        assert np.array_equal(cuda.forward([Chunk(ids[i : i + 1], i, table)])[0].logits[0], expected[i])
    batch = [Chunk(ids[3:4], 3, table), Chunk(ids[n - 1 :], n - 1, pages(0, n)), Chunk(ids[:1], 0, pages(8, 1))]
    found = [o.logits[0] for o in cuda.forward(batch)]
    assert all(np.array_equal(a, expected[i]) for a, i in zip(found, (3, n - 1, 0), strict=True))


def of_type(type_name: str, **options: Any) -> bits.Case:
    """A model whose matrices have this type. A second layer runs the same kernels, so few types have one."""
    case = bits.CASES[f"{type_name} fast"]
    return replace(case, options={**case.options, "n_layer": 2 if type_name in TWO_LAYERS else 1, **options})


@pytest.mark.parametrize("type_name", bits.TYPES)
def test_every_type_gives_the_cpu_engines_bits(tmp_path: Path, type_name: str) -> None:
    """Random codes, so that types which cannot be written are here, too; then five sequences, and tiles of a prompt."""
    model = bits.make(of_type(type_name), tmp_path / "model.gguf")
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device())
    same(cpu, cuda)
    five = [Chunk(IDS[i : i + 1], 0, pages(i, 1)) for i in range(5)]
    for batch in (five, [Chunk(IDS[:34], 0, pages(0, 34), "all")]):
        for expected, found in zip(cpu.forward(batch), cuda.forward(batch), strict=True):
            assert np.array_equal(found.logits, expected.logits)


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q2_K"])
def test_few_rows_give_the_cpu_engines_bits(make: Make, type_name: str) -> None:
    """Fewer tiles of 32 rows than multiprocessors: tiles of 16 (gemm_few.cu)."""
    model, gpu = make(type=type_name, **WIDE), device()
    gpu.multiprocessors = 64
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=gpu)
    same(cpu, cuda)
    for n in (7, 12):
        batch = [Chunk(IDS[:n], 0, pages(0, n), "all")]
        assert np.array_equal(cuda.forward(batch)[0].logits, cpu.forward(batch)[0].logits)
    used = {launch.kernel for program in cuda._programs.values() for launch in program.launches}
    assert {"product_16_8", "product_16_16"} <= used


@pytest.mark.parametrize("n_ff", [14336, 30208])
def test_float_rows_too_wide_for_four_in_shared_memory_give_the_cpu_engines_bits(make: Make, n_ff: int) -> None:
    model = make(type="F16", n_embd=64, n_ff=n_ff, n_layer=1)
    same(CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device()))


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("multiprocessors", [1, 20, 1000])
def test_every_tile_of_floats_gives_the_cpu_engines_bits(make: Make, type_name: str, multiprocessors: int) -> None:
    """Rows that end within a tile and within a unit, widths that are no multiple of 4, gates, residuals."""
    model, gpu = make(type=type_name, n_embd=288, n_ff=1030, n_head=4, n_head_kv=2, n_layer=1), device()
    gpu.multiprocessors = multiprocessors
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=gpu)
    for n in (9, 33, 70):
        batch = [Chunk(IDS[:n], 0, pages(0, n), "all")]
        assert np.array_equal(cuda.forward(batch)[0].logits, cpu.forward(batch)[0].logits)
    used = {launch.kernel for program in cuda._programs.values() for launch in program.launches}
    assert {1: "floats_128_64", 20: "floats_32_64", 1000: "floats_32_32"}[multiprocessors] in used


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_gives_the_cpu_engines_bits(make: Make, variant: str) -> None:
    options = {"type": "Q8_0", **VARIANTS[variant]}
    model = make(**options)
    same(CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device()))


@pytest.mark.parametrize("kv_type", ["f32", "bf16", "q8_0"])
def test_every_cache_gives_the_cpu_engines_bits(make: Make, kv_type: str) -> None:
    model = make(type="Q4_K", n_head=4, n_head_kv=2, **WIDE)
    options = {"kv_type": kv_type, "n_pages": 16}
    same(CpuEngine(model, threads=1, **options), CudaEngine(model, device=device(), **options))


def test_exact_gives_the_cpu_engines_bits(make: Make) -> None:
    model = make(type="Q4_K", **WIDE)
    options = {"precision": "exact", "n_pages": 16}
    same(CpuEngine(model, threads=1, **options), CudaEngine(model, device=device(), **options))


@pytest.mark.parametrize(
    "type_name", [*sorted({*FORMATS} - {"F32"}), "Q2_K", "Q3_K", "IQ2_XXS", "TQ1_0", "NVFP4", "Q1_0", "Q2_0"]
)
def test_tensor_has_bits_of_its_own_whatever_the_batch_and_the_cut(tmp_path: Path, type_name: str) -> None:
    model = bits.make(of_type(type_name, n_head=4, n_head_kv=2, **WIDE), tmp_path / "model.gguf")
    cuda = CudaEngine(model, precision="tensor", n_pages=16, device=device())
    whole = cuda.forward([Chunk(IDS[:70], 0, pages(0, 70), "all")])[0].logits
    for begin, end in ((0, 3), (3, 33), (33, 34), (34, 70)):  # in pieces, over a page's edge
        piece = cuda.forward([Chunk(IDS[begin:end], begin, pages(4, 70), "all")])[0].logits
        assert np.array_equal(piece, whole[begin:end])
    batch = [
        Chunk(IDS[40:41], 40, pages(0, 70)),
        Chunk(IDS[:20], 0, pages(8, 20), "all"),
        Chunk(IDS[:1], 0, pages(9, 1)),
    ]
    found = [o.logits for o in cuda.forward(batch)]
    assert all(np.array_equal(a, b) for a, b in zip(found, (whole[40:41], whole[:20], whole[:1]), strict=True))
    by_precision = {p: CpuEngine(model, threads=1, n_pages=16, precision=p) for p in ("fast", "exact")}
    fast, exact = (e.forward([Chunk(IDS[:70], 0, pages(0, 70), "all")])[0].logits for e in by_precision.values())
    assert cuda.arithmetic != by_precision["fast"].arithmetic and not np.array_equal(whole, fast)
    error = np.abs(whole - exact).max() / np.abs(exact).max()
    assert error < 0.02 and (type_name in ("F16", "BF16") or error < np.abs(fast - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize("tile", tiles.TENSOR_TILES)
def test_every_tensor_tile_gives_the_same_bits(make: Make, monkeypatch: pytest.MonkeyPatch, tile: str) -> None:
    """Those of one token: rows and tokens that do not fill tiles, columns that do not fill a unit or a step, chains."""
    monkeypatch.setattr(layout, "CHAIN", 2)
    model = make(type="Q8_0", n_layer=1, n_embd=96, n_ff=1120)
    one = CudaEngine(model, precision="tensor", n_pages=4, device=device())
    expected = [one.forward([Chunk(IDS[i : i + 1], i, pages(0, 6))])[0].logits[0] for i in range(6)]
    monkeypatch.setattr(tiles, "TENSOR_TILES", (tile,))
    cuda = CudaEngine(model, precision="tensor", n_pages=20, device=device())
    texts = [Chunk(IDS[:n], 0, pages(4 * i, n), "all") for i, n in enumerate((70, 71, 6))]
    found = [o.logits for o in cuda.forward(texts)]
    assert np.array_equal(found[2], expected) and np.array_equal(found[1][:70], found[0])
    assert np.array_equal(found[0][:6], expected)


@pytest.mark.parametrize(
    ("type_name", "tile"),
    [*(("F16", tile) for tile in tiles.HALF_TILES), ("BF16", "halves_128_64"), ("BF16", "halves_64_64")],
)
def test_every_tile_of_halves_gives_the_same_bits(
    make: Make, monkeypatch: pytest.MonkeyPatch, tile: str, type_name: str
) -> None:
    """Those of one token, which another kernel multiplies; biases, and more tiles than blocks of threads."""
    model = make(type=type_name, n_layer=1, n_embd=96, n_ff=1120, bias=True)
    one = CudaEngine(model, precision="tensor", n_pages=4, device=device())
    expected = [one.forward([Chunk(IDS[i : i + 1], i, pages(0, 6))])[0].logits[0] for i in range(6)]
    monkeypatch.setattr(tiles, "HALF_TILES", (tile,))
    cuda = CudaEngine(model, precision="tensor", n_pages=20, device=device())
    texts = [Chunk(IDS[:n], 0, pages(4 * i, n), "all") for i, n in enumerate((70, 71, 6))]
    found = [o.logits for o in cuda.forward(texts)]
    assert tile in {launch.kernel for program in cuda._programs.values() for launch in program.launches}
    assert np.array_equal(found[2], expected) and np.array_equal(found[1][:70], found[0])
    assert np.array_equal(found[0][:6], expected)
    names = [n.name for n in model.graph]  # gate and up are kept, and down's input is no longer in 16 bits
    traced = cuda.forward(texts, names)
    assert all(np.array_equal(a.logits, b) for a, b in zip(traced, found, strict=True))


@pytest.fixture(scope="module")
def calm() -> dict[str, np.ndarray]:
    """The logits without weather, by tile: the same for every weather."""
    return {}


@pytest.mark.skipif(ON_GPU, reason="weather is the shim's")
@pytest.mark.parametrize("weather", [1, 2, 3])
@pytest.mark.parametrize(
    "tile", ["", "tensor_128", "tensor_64", "tensor_32", "turns_64", "turns_16", "halves_128_128", "halves_64_64"]
)
def test_nothing_is_right_by_luck(
    make: Make, monkeypatch: pytest.MonkeyPatch, calm: dict[str, np.ndarray], tile: str, weather: int
) -> None:
    """Copies and products as late as may be, warps that lag, other garbage, other orders (shim.cpp): the same bits."""
    precision = "tensor" if tile else "fast"
    floats = tile.startswith("halves")
    if tile:
        monkeypatch.setattr(tiles, "HALF_TILES" if floats else "TENSOR_TILES", (tile,))
    monkeypatch.setattr(layout, "CHAIN", 1)
    model = make(n_layer=1, n_head=4, n_head_kv=2, type="F16" if floats else VARIANTS["mix"]["type"], **WIDE)

    def logits(shim: Shim) -> np.ndarray:
        cuda = CudaEngine(model, precision=precision, n_pages=20, device=shim)
        texts = [Chunk(IDS[:n], 0, pages(2 * i, n + 1), "all") for i, n in enumerate((5, 20, 140))]
        outputs = cuda.forward(texts)
        more = [Chunk(IDS[c.end : c.end + 1], c.end, c.pages) for c in texts]
        outputs += cuda.forward(more) + cuda.forward(more[:1])
        found = np.concatenate([o.logits for o in outputs])
        cuda.close()
        return found

    if tile not in calm:
        calm[tile] = logits(Shim())
    assert np.array_equal(logits(Shim(weather)), calm[tile])


@pytest.mark.parametrize("variant", ["untied", "experts", "window"])
def test_every_node_can_be_kept_and_changes_no_bit(make: Make, variant: str) -> None:
    model = make(type="Q8_0", **VARIANTS[variant])
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device())
    names = [n.name for n in model.graph]
    batch = [Chunk(IDS[:9], 0, pages(0, 9), "all"), Chunk(IDS[9:14], 0, pages(2, 5))]
    for expected, found in zip(cpu.forward(batch, names), cuda.forward(batch, names), strict=True):
        assert [n for n in names if not np.array_equal(expected.nodes[n], found.nodes[n])] == []
        assert np.array_equal(expected.logits, found.logits)
    plain = cuda.forward(batch)
    assert all(np.array_equal(a.logits, b.logits) for a, b in zip(plain, cpu.forward(batch), strict=True))


ODD = ("one operation at a time", "softcap")  # graphs that no builder makes


@pytest.mark.parametrize("name", [n for n in bits.CASES if n.startswith("arch ") or n in ODD])
def test_an_architecture_gives_the_cpu_engines_bits(tmp_path: Path, name: str) -> None:
    """Whatever the cpu engine runs: every node of two sequences, then token by token."""
    model = bits.make(bits.CASES[name], tmp_path / "model.gguf")
    graph = bits.graph_of(bits.CASES[name], model)
    cpu = CpuEngine(model, threads=1, n_pages=16, graph=graph)
    cuda = CudaEngine(model, n_pages=16, device=device(), graph=graph)
    ids, names = IDS[:12] % model.hparams.n_vocab, [n.name for n in graph]
    batch = [Chunk(ids[:10], 0, pages(0, 12), "all"), Chunk(ids[3:8], 0, pages(4, 5), state_slot=1)]
    for expected, found in zip(cpu.forward(batch, names), cuda.forward(batch, names), strict=True):
        assert [n for n in names if not np.array_equal(expected.nodes[n], found.nodes[n])] == []
        assert np.array_equal(expected.logits, found.logits)
    if graph.whole:
        chunk = Chunk(ids[:1], 0, pages(0, 1))
        assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)
    for i in () if graph.whole else (10, 11):
        chunk = Chunk(ids[i : i + 1], i, pages(0, 12))
        assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-oss", "mpt", "deepseek2", "nomic-bert"])
def test_an_architecture_over_more_keys_than_a_block(tmp_path: Path, name: str) -> None:
    """Sinks, slopes, keys that are values too, and both sides: blocks of keys are folded."""
    model = bits.make(bits.CASES[f"arch {name}"], tmp_path / "model.gguf")
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device())
    ids, n = IDS[:272] % model.hparams.n_vocab, 270
    outputs = "all" if model.graph.whole else "last"
    found = [e.forward([Chunk(ids[:n], 0, pages(0, 272), outputs)])[0].logits for e in (cpu, cuda)]
    assert np.array_equal(*found)
    for i in () if model.graph.whole else (n, n + 1):
        found = [e.forward([Chunk(ids[i : i + 1], i, pages(0, 272))])[0].logits for e in (cpu, cuda)]
        assert np.array_equal(*found)


@pytest.mark.parametrize("heads", [{"n_head": 4, "n_head_kv": 4}, {"n_head": 6, "n_head_kv": 2, "n_embd": 96}])
def test_more_sequences_than_the_gpu_runs_at_once(make: Make, heads: dict[str, int]) -> None:
    """Attention by the kernel for many blocks of threads; sequences of every length up to three pages."""
    model = make(type="Q8_0", window=70, **heads)
    cpu, cuda = CpuEngine(model, threads=1, n_pages=64), CudaEngine(model, n_pages=64, device=device())
    sizes = range(2, 92, 7)
    tables = [pages(3 * i, n) for i, n in enumerate(sizes)]
    for engine in (cpu, cuda):
        engine.forward([Chunk(IDS[: n - 1], 0, t, "none") for n, t in zip(sizes, tables, strict=True)])
    batch = [Chunk(IDS[n : n + 1], n - 1, t) for n, t in zip(sizes, tables, strict=True)]
    for expected, found in zip(cpu.forward(batch), cuda.forward(batch), strict=True):
        assert np.array_equal(expected.logits, found.logits)
    if not ON_GPU:
        kernels = {launch.kernel for program in cuda._programs.values() for launch in program.launches}
        assert any(k.startswith("attend_blocks") for k in kernels)


@pytest.mark.parametrize(
    "heads",
    [
        {"n_head": 8, "n_head_kv": 2, "n_embd": 256},
        {"n_head": 4, "n_head_kv": 4, "n_embd": 256},
        {"n_head": 2, "n_head_kv": 1, "n_embd": 192},
        {"n_head": 2, "n_head_kv": 1, "n_embd": 256},
        {"n_head": 8, "n_head_kv": 2, "n_embd": 512},
        {"n_head": 4, "n_head_kv": 1, "n_embd": 512},
    ],
    ids=("32", "64", "96", "128", "four of 64", "four of 128"),
)
@pytest.mark.parametrize("together", [False, True], ids=("launches", "a walk"))
def test_the_usual_attention_of_one_sequence(make: Make, heads: dict[str, int], together: bool) -> None:
    """Heads of 32, 64, 96 and 128 values, in one block of keys and over the edge to the second: they are folded."""
    model = make(type="Q8_0", n_ff=256, **heads)
    gpu = device()
    gpu.together = together
    if not together:
        gpu.multiprocessors = 132  # with fewer the shim would take the kernel for many blocks
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=gpu)
    table = pages(0, 300)
    for begin, end in ((0, 40), (41, 255), (258, 290)):
        for engine in (cpu, cuda):
            engine.forward([Chunk(IDS[begin:end], begin, table, "none")])
        for i in range(end, min(end + 3, 291)):
            chunk = Chunk(IDS[i : i + 1], i, table)
            assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)
    kernels = {launch.kernel for program in cuda._programs.values() for launch in program.launches}
    assert ("walk_q8_0" if together else "attend_short") in kernels


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_layers_in_two_parts_give_the_bits_of_the_whole(tmp_path: Path, name: str) -> None:
    """A part of a graph reads rows that the caller brings: a prompt, then token by token."""
    model = bits.make(bits.CASES[f"arch {name}"], tmp_path / "model.gguf")
    cpu = CpuEngine(model, threads=1, n_pages=8)
    first, second = (CudaEngine(model, n_pages=8, device=device(), graph=g) for g in halves(model.graph))
    keep = [name for name in second.graph.given if name != first.graph.output]
    for begin, end in ((0, 9), (9, 10), (10, 11)):
        ids = IDS[begin:end] % model.hparams.n_vocab
        out = first.forward([Chunk(ids, begin, pages(0, 11), "all")], keep)[0]
        rows = {n: out.logits if n == first.graph.output else out.nodes[n] for n in second.graph.given}
        found = second.forward([Chunk(ids, begin, pages(0, 11), "last", rows=rows)])[0].logits
        assert np.array_equal(found, cpu.forward([Chunk(ids, begin, pages(0, 11))])[0].logits)


@pytest.mark.slow
def test_more_keys_than_a_block(make: Make) -> None:
    """Two blocks of 256 keys, folded; a prompt longer than a step; a window that begins in the second block."""
    for options in ({}, {"window": 40}):
        model = make(type="Q8_0", **options)
        cpu, cuda = CpuEngine(model, threads=1, n_pages=32), CudaEngine(model, n_pages=32, device=device())
        table = pages(0, 330)
        expected = cpu.forward([Chunk(IDS[:320], 0, table, "all")])[0].logits
        assert np.array_equal(cuda.forward([Chunk(IDS[:320], 0, table, "all")])[0].logits, expected)
        for engine in (cpu, cuda):
            engine.forward([Chunk(IDS[:310], 0, table, "none")])
        for i in (310, 311):
            assert np.array_equal(cuda.forward([Chunk(IDS[i : i + 1], i, table)])[0].logits[0], expected[i])


def _masked(**attrs: Any) -> Callable[[Node], Any]:
    return lambda node: node.with_attrs(**attrs) if node.op == "attn_softmax" else None


MASKS = {
    "plain": lambda node: None,
    "window": _masked(window=70),
    "chunk": _masked(chunk=100),
    "slopes": _masked(max_bias=8.0),
    "cap": bits.CASES["softcap"].change,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [(4, 2), (2, 1), (4, 1)], ids=["64", "128", "64 of one"])
def test_prompts_over_wide_heads(make: Make, heads: tuple[int, int], mask: str) -> None:
    """Tiles of attention_prompt.cu: whole blocks of keys and parts of them, prompts at once and cut, two sequences."""
    model = make(type="Q4_K", n_head=heads[0], n_head_kv=heads[1], n_layer=1, **WIDE)
    graph = model.graph.rewrite(MASKS[mask]).check()
    cpu = CpuEngine(model, threads=1, n_pages=40, graph=graph)
    cuda = CudaEngine(model, n_pages=40, graph=graph, device=device())
    n = 520
    expected = cpu.forward([Chunk(IDS[:n], 0, pages(0, n), "last")])[0].logits
    assert np.array_equal(cuda.forward([Chunk(IDS[:n], 0, pages(0, n), "last")])[0].logits, expected)
    table = pages(20, n)
    for begin, end in ((0, 5), (5, 300), (300, n)):
        found = cuda.forward([Chunk(IDS[begin:end], begin, table, "last"), Chunk(IDS[:9], 0, pages(18, 9), "last")])
    assert np.array_equal(found[0].logits, expected)
    short = cpu.forward([Chunk(IDS[:9], 0, pages(18, 9), "last")])[0].logits
    assert np.array_equal(found[1].logits, short)


@pytest.mark.parametrize(("heads", "mask"), [*((4, mask) for mask in MASKS), (2, "plain")])
def test_tensor_attention_has_one_set_of_bits(make: Make, heads: int, mask: str) -> None:
    """A prompt at once, cut, beside another, with scores kept, and token by token over the edge of a block."""
    model = make(type="Q8_0", n_head=heads, n_head_kv=heads // 2, n_layer=1, n_embd=256, n_ff=256)
    graph = model.graph.rewrite(MASKS[mask]).check()
    cuda = CudaEngine(model, precision="tensor", n_pages=40, graph=graph, device=device())
    n, table = 262, pages(20, 262)
    whole = cuda.forward([Chunk(IDS[:n], 0, pages(0, n), "all")])[0].logits
    for begin, end in ((0, 127), (127, 129), (129, 255)):
        found = cuda.forward([Chunk(IDS[begin:end], begin, table, "all"), Chunk(IDS[:9], 0, pages(18, 9), "all")])
        assert np.array_equal(found[0].logits, whole[begin:end]) and np.array_equal(found[1].logits, whole[:9])
    for i in (255, 256, 257):
        batch = [Chunk(IDS[i : i + 1], i, table), Chunk(IDS[40:41], 40, pages(0, n)), Chunk(IDS[:1], 0, pages(18, 1))]
        found = cuda.forward(batch)
        assert all(np.array_equal(o.logits[0], whole[j]) for o, j in zip(found, (i, 40, 0), strict=True))
    softmax = next(node.name for node in graph if node.op == "attn_softmax")
    traced = cuda.forward([Chunk(IDS[:140], 0, pages(30, 140), "all")], [softmax])[0]
    assert np.array_equal(traced.logits, whole[:140])
    assert np.allclose(traced.nodes[softmax].sum(-1), 1.0, atol=1e-3)
    kernels = {launch.kernel for program in cuda._programs.values() for launch in program.launches}
    used = {f"attend_tensor_{256 // heads}", f"attend_tensor_one_{256 // heads}"}
    assert {k for k in kernels if k.startswith("attend")} == used
    cpu = CpuEngine(model, threads=1, n_pages=40, graph=graph)
    expected = cpu.forward([Chunk(IDS[:n], 0, pages(0, n), "all")])[0].logits
    assert np.linalg.norm(whole - expected) < 0.05 * np.linalg.norm(expected)


def test_shifted_positions_and_copied_pages(make: Make) -> None:
    model = make(type="Q8_0")
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device())
    shifted = np.arange(5, 15, dtype=np.int32)
    for engine in (cpu, cuda):
        engine.forward([Chunk(IDS[:10], 0, pages(0, 10), "none", shifted)])
        engine.copy_page(0, 3)
    for first in (0, 3):
        chunk = Chunk(IDS[10:12], 10, pages(first, 12), "all", np.array([15, 16], np.int32))
        assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)
    with pytest.raises(AssayError, match="no page 16"):
        cuda.copy_page(0, 16)


def test_refusals(make: Make) -> None:
    model = make(type="Q8_0")
    with pytest.raises(AssayError, match="no such precision"):
        CudaEngine(model, precision="double", device=device())
    with pytest.raises(AssayError, match=r"does not fit .* MB of weights, .* pages and .* buffers, .* MB free"):
        CudaEngine(model, n_pages=1 << 30, device=device())
    engine = CudaEngine(model, n_pages=4, device=device())
    engine.close()
    with pytest.raises(AssayError, match="closed"):
        engine.forward([Chunk(IDS[:1], 0, pages(0, 1))])


@pytest.mark.skipif(ON_GPU, reason="there is a driver")
def test_without_a_driver_one_line_says_so(make: Make) -> None:
    path = make(type="Q8_0").file.path
    command = [sys.executable, "-m", "assay", "run", str(path), "-p", "a", "-n", "1", "--engine", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "engine cuda" in done.stderr


# On an H200: layout, rows, columns, gate with up; warps of a block, pieces of weights that each warp has in flight.
SHAPES = {
    "TinyLlama q, k and v": ("Q4_K", 2560, 2048, False, 8, 1),
    "TinyLlama gate and up": ("Q4_K", 5632, 2048, True, 12, 2),
    "TinyLlama down": ("Q6_K", 2048, 5632, False, 11, 1),
    "TinyLlama head": ("Q6_K", 32000, 2048, False, 8, 2),
    "TinyLlama gate and up, Q8_0": ("Q8_0", 5632, 2048, True, 12, 1),
    "TinyLlama gate and up, F16": ("F16", 5632, 2048, True, 12, 2),
    "7B o": ("Q4_K", 4096, 4096, False, 8, 2),
    "7B gate and up": ("Q4_K", 14336, 4096, True, 8, 3),
    "7B down": ("Q4_K", 4096, 14336, False, 8, 3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_how_a_product_is_dealt(name: str) -> None:
    layout, rows, columns, paired, warps, slots = SHAPES[name]
    units = -(-columns // 256)
    matrix = Matrix(FORMATS[layout], rows, columns, units, rows_per_group(units, paired), 0, 1, paired)
    found = arrange.arrange([matrix], matrix.groups, processors=132, most=227 << 10)
    assert found and (found.threads // 32, found.slots) == (warps, slots)
    assert found.blocks * found.share + found.extra == matrix.groups and found.extra < found.blocks
    assert found.shared <= 226 << 10 and 0 < found.blocks <= 132


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K"])  # a scale per 32 with minima, per 16 without
@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda tile: f"{tile[0]} x {tile[1]}")
def test_every_tile_gives_the_same_bits(
    make: Make, monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int, int, int], type_name: str
) -> None:
    """Rows and tokens that do not fill tiles, and units that no number of stages or groups divides."""
    monkeypatch.setattr(tiles, "TILES", (tile,))
    model = make(type=type_name, n_layer=1, n_embd=256, n_ff=1280)
    cpu, cuda = CpuEngine(model, threads=1, n_pages=4), CudaEngine(model, n_pages=4, device=device())
    chunk = Chunk(IDS[:70], 0, pages(0, 70), "all")
    assert np.array_equal(cuda.forward([chunk])[0].logits, cpu.forward([chunk])[0].logits)


def test_nothing_is_written_where_a_walk_will_look(tmp_path: Path) -> None:
    """Its memory is cleared when a token begins: no launch before the walk may touch it."""
    model = bits.make(bits.CASES["arch mistral3"], tmp_path / "model.gguf")  # walks with other launches between
    cuda = CudaEngine(model, n_pages=16, device=device())
    cuda.forward([Chunk(IDS[:1], 0, pages(0, 1))])
    launches = next(reversed(cuda._programs.values())).launches
    assert sum(launch.kernel.startswith("walk") for launch in launches) > 1
    for clear in (launch for launch in launches if launch.kernel == "clear"):
        begin, end = clear.args.at, clear.args.at + 16 * clear.args.vectors
        walk = next(
            i for i, n in enumerate(launches) if n.kernel.startswith("walk") and (begin, end - begin) in n.values
        )
        for launch in launches[:walk]:
            assert launch is clear or all(at + size <= begin or end <= at for at, size in launch.values)


_HEADS = {"n_head": 4, "n_head_kv": 2, **WIDE}
_NARROW = {"n_head": 9, "n_head_kv": 3, "n_embd": 288, "n_ff": 160}
WALKS: dict[str, tuple[str, dict[str, Any]]] = {
    # A head of another layout, rows that end within a unit, heads whose result is no whole unit, either.
    "head of q8_0": ("walk_q4_1_q8_0", {"type": lambda n: "Q8_0" if n.startswith("output") else "Q4_1", **_NARROW}),
    "head of q6_k": ("walk_q4_0_q6_k", {"type": lambda n: "Q6_K" if n.startswith("output") else "Q4_0", **_HEADS}),
    # Two layouts in one product, the second before the first.
    "q is larger": ("walk_q4_k_q6_k", {"type": lambda n: "Q6_K" if "attn_q" in n or "down" in n else "Q4_K", **_HEADS}),
    "one layout": ("walk_q4_k_q6_k", {"type": "Q6_K", **_HEADS}),
}


@pytest.mark.parametrize("multiprocessors", [1, 2, 40])
@pytest.mark.parametrize("name", WALKS)
def test_walks_of_two_layouts(make: Make, name: str, multiprocessors: int) -> None:
    """One walk for all, of a token and of several; tiles that have two places, that a warp takes in twos, and that two
    warps share."""
    kernel, options = WALKS[name]
    model = make(tied=False, **options)
    gpu = device()
    if not ON_GPU:
        gpu.multiprocessors = multiprocessors
    cuda = CudaEngine(model, n_pages=16, device=gpu)
    same(CpuEngine(model, threads=1, n_pages=16), cuda, 6)
    for program in (p for p in cuda._programs.values() if p.shape.one):
        walks = [n.kernel for n in program.launches if n.kernel.startswith("walk")]
        wanted = kernel if program.shape.tokens == 1 else kernel.replace("walk", "walk_few")
        assert walks == [wanted] * (not ON_GPU or gpu.together)


@pytest.mark.parametrize(("name", "multiprocessors"), [("q is larger", 1), ("head of q6_k", 3), ("F16", 9)])
def test_two_warps_fetch_what_the_ring_does_not_hold(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, multiprocessors: int
) -> None:
    """As for a large model: rings that go round many times, and keys of more than one block of 256."""
    monkeypatch.setattr("assay.engines.cuda.lower_walk.TWO_PRODUCERS_FROM", 0.0)
    options = WALKS[name][1] if name in WALKS else {"type": name, **_of(4, 1, 512, 1536)}
    model = make(tied=False, **options)
    gpu = device()
    if not ON_GPU:
        gpu.multiprocessors = multiprocessors
    cpu, cuda = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=gpu)
    for a, b in zip(streams(cpu, [254], 4, 300), streams(cuda, [254], 4, 300), strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
    [walk] = [n.kernel for p in cuda._programs.values() if p.shape.one for n in p.launches if "walk" in n.kernel][:1]
    assert walk.startswith("walk_two_") or (ON_GPU and not gpu.together)


def streams(engine: Any, slots: list[int], n: int, room: int) -> list[np.ndarray]:
    """`n` tokens of sequences that have so many before them, all of them in one step."""
    tables = [pages(i * -(-room // 32), room) for i in range(len(slots))]
    for i, (slot, table) in enumerate(zip(slots, tables, strict=True)):
        if slot:
            engine.forward([Chunk(IDS[i : i + slot], 0, table, "none")])
    found = []
    for k in range(n):
        rows = enumerate(zip(slots, tables, strict=True))
        batch = [Chunk(IDS[9 * i + k : 9 * i + k + 1], slot + k, table) for i, (slot, table) in rows]
        found += [o.logits[0] for o in engine.forward(batch)]
    return found


def _of(n_head: int, n_head_kv: int, n_embd: int, n_ff: int = 512, n_layer: int = 2) -> dict[str, int]:
    return {"n_head": n_head, "n_head_kv": n_head_kv, "n_embd": n_embd, "n_ff": n_ff, "n_layer": n_layer}


# Multiprocessors of the shim, a model, and how many tokens each sequence has.
FEW: dict[str, tuple[int, dict[str, int], list[int]]] = {
    "heads of 32, over the edge of a block": (3, _of(8, 2, 256), [254, 3, 0, 270, 255]),
    "heads of 64, eight rows": (9, _of(4, 2, 256), [1, 5, 31, 32, 33, 64, 0, 17]),
    "heads of 128, two rows": (2, _of(4, 1, 512), [40, 7]),
    "blocks of threads with more groups than fit": (1, _of(8, 2, 256, 1536), [9, 2]),
    "x in parts, the last one short": (40, _of(2, 1, 64, 7168, 1), [3, 8, 1]),
    "rows that end within a unit": (2, _of(9, 3, 288, 160), [12, 4, 6, 8, 2]),
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q8_0"])
def test_a_walk_of_several_tokens(make: Make, name: str, type_name: str) -> None:
    """One token of each sequence, as long as they like."""
    multiprocessors, options, slots = FEW[name]
    if type_name != "Q8_0" and options["n_embd"] % 256:
        type_name = {"Q4_K": "Q4_1", "Q6_K": "Q5_0"}[type_name]
    model = make(type=type_name, tied=False, **options)
    gpu = device()
    if not ON_GPU:
        gpu.multiprocessors = multiprocessors
    room, cuda = max(slots) + 4, CudaEngine(model, n_pages=80, device=gpu)
    expected = streams(CpuEngine(model, threads=1, n_pages=80), slots, 3, room)
    assert all(map(np.array_equal, streams(cuda, slots, 3, room), expected))
    few = [p for p in cuda._programs.values() if p.shape.one and p.shape.tokens > 1]
    assert few and all(any(n.kernel.startswith("walk_few") for n in p.launches) for p in few) == gpu.together


def one_walk(cuda: CudaEngine) -> bool:
    """Whether every program of a token a sequence has one walk, and nothing within it."""
    kernels = [[n.kernel.split("_")[0] for n in p.launches] for p in cuda._programs.values() if p.shape.one]
    return bool(kernels) and all(names.count("walk") == 1 and not {"product", "attend"} & {*names} for names in kernels)


_WIDTHS = ("n_embd_head", "n_embd_head_v")
_OF_64 = {"n_vocab": 320, "n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2} | dict.fromkeys(_WIDTHS, 64)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", _OF_64),
    "qwen3, heads of 32": ("qwen3", {**_OF_64, "n_head": 8, "n_head_kv": 1, **dict.fromkeys(_WIDTHS, 32)}),
    "qwen3, heads of 128": ("qwen3", {**_OF_64, "n_head": 8, **dict.fromkeys(_WIDTHS, 128)}),
    "gemma2": ("gemma2", {**_OF_64, "metadata": {"gemma2.attention.sliding_window": 40}}),
    "gemma3": ("gemma3", {**_OF_64, "n_layer": 2, "metadata": {"gemma3.attention.sliding_window": 20}}),
    "gemma3, heads of 256": (
        "gemma3",
        {**_OF_64, "n_layer": 1, "n_head": 2, "n_head_kv": 1, **dict.fromkeys(_WIDTHS, 256)},
    ),
    "olmo2": ("olmo2", {**_OF_64, "n_layer": 2, "n_embd": 320}),
    "glm4": ("glm4", {**_OF_64, "n_rot": 32}),
    "phi3": ("phi3", {**_OF_64, "n_ff": 544}),
    "command-r": ("command-r", _OF_64),
    "gpt2": ("gpt2", {**_OF_64, "n_head_kv": 4}),
    "falcon": ("falcon", {**_OF_64, "n_head_kv": 1}),
    "stablelm": ("stablelm", {**_OF_64, "n_rot": 16}),
}


def several_then_one(engine: Any, slots: list[int], some: Sequence[int]) -> list[np.ndarray]:
    """Two tokens of all sequences together, then two of some of them, one after the other."""
    room = max(slots) + 8
    found = streams(engine, slots, 2, room)
    for i in some:
        table = pages(i * -(-room // 32), room)
        found += [engine.forward([Chunk(IDS[k : k + 1], slots[i] + 2 + k, table)])[0].logits[0] for k in range(2)]
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_one_walk(tmp_path: Path, name: str) -> None:
    """Norms of heads, of whole rows, behind products and of a sum; windows, caps, factors; q, k and v of one matrix,
    gates of halves of a row, activations alone; over the edge of a block of keys."""
    arch, options = FAMILIES[name]
    model, gpu = bits.make(bits.Case(options, arch=arch), tmp_path / "model.gguf"), device()
    if not ON_GPU:
        gpu.multiprocessors = 7
    cuda, cpu = CudaEngine(model, n_pages=95, device=gpu), CpuEngine(model, threads=1, n_pages=95)
    found, expected = (several_then_one(engine, [253, 294, 0, 31], (0, 1)) for engine in (cuda, cpu))
    assert all(map(np.array_equal, found, expected))
    assert one_walk(cuda) == gpu.together


@pytest.mark.parametrize("window", [1, 40, 257, 300])
@pytest.mark.parametrize("heads", [(8, 2, 256), (4, 2, 256), (4, 1, 512)], ids=("32", "64", "128"))
def test_a_walk_with_a_window_and_a_cap(make: Make, heads: tuple[int, int, int], window: int) -> None:
    """Sequences of which a window leaves some blocks of keys, or all."""
    model = make(type="Q8_0", n_layer=1, n_ff=256, n_head=heads[0], n_head_kv=heads[1], n_embd=heads[2])
    graph = model.graph.rewrite(_masked(window=window)).rewrite(MASKS["cap"]).check()
    gpu = device()
    if not ON_GPU:
        gpu.multiprocessors = 7
    cuda = CudaEngine(model, n_pages=95, graph=graph, device=gpu)
    cpu = CpuEngine(model, threads=1, n_pages=95, graph=graph)
    found, expected = (several_then_one(engine, [254, 570, 0, 31, 509], (4, 1)) for engine in (cuda, cpu))
    assert all(map(np.array_equal, found, expected))
    assert one_walk(cuda) == gpu.together


def test_what_a_window_does_not_show_may_be_anything(make: Make) -> None:
    """Slots of a page that were never written, beside slots that the window shows: here they hold NaN."""
    model = make(type="Q8_0", n_layer=1, n_ff=256, n_head=4, n_head_kv=2, n_embd=256)
    graph = model.graph.rewrite(_masked(window=20)).check()
    cpu = CpuEngine(model, threads=1, n_pages=40, graph=graph)
    cuda = CudaEngine(model, n_pages=40, graph=graph, device=device())
    cuda._device.upload(cuda._at.cache, np.full(40 * cuda._layout.page_bytes, 255, np.uint8))
    tables = pages(0, 580), pages(20, 580)
    for engine in (cpu, cuda):
        engine.forward([Chunk(IDS[:30], 530, table, "none") for table in tables])
    for batch in ([0], [0, 1]):
        chunks = [Chunk(IDS[40:41], 560, tables[i]) for i in batch]
        for expected, found in zip(cpu.forward(chunks), cuda.forward(chunks), strict=True):
            assert np.isfinite(found.logits).all() and np.array_equal(found.logits, expected.logits)
    assert one_walk(cuda) == cuda._device.together


def test_many_blocks_of_keys_are_folded(make: Make) -> None:
    """More than a warp looks at together. Their pages are a choice of those of 480 tokens, a wider one as blocks go
    on, so that larger scores come later."""
    model = make(type="Q8_0", n_head=2, n_head_kv=1, n_embd=64, n_ff=64)
    engines = CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device())
    for engine in engines:
        engine.forward([Chunk(np.resize(IDS, 480), 0, pages(0, 480), "none")])
    for blocks in (16, 17, 35):
        most = np.clip(np.arange(8 * blocks) // 16, 1, 15)
        chosen = np.random.default_rng(blocks).integers(0, most).astype(np.int32)
        chunk = Chunk(IDS[:1], 256 * blocks, np.append(chosen, np.int32(15)))
        assert np.array_equal(*(engine.forward([chunk])[0].logits for engine in engines))
    cuda = engines[1]
    names = {n.kernel for p in cuda._programs.values() if p.shape.one for n in p.launches}
    assert "walk_q8_0" in names or not cuda._device.together


@pytest.mark.parametrize("biased", [("attn_q", "attn_k", "attn_v"), ("attn_v", "ffn_down")], ids=" ".join)
def test_a_walk_with_some_biases(make: Make, monkeypatch: pytest.MonkeyPatch, biased: tuple[str, ...]) -> None:
    """Products with and without, and parts of one product."""
    monkeypatch.setattr(tiny, "BIASES", biased)
    model = make(bias=True, seed=len(biased), type="Q4_K", n_head=4, n_head_kv=2, **WIDE)
    cuda = CudaEngine(model, n_pages=16, device=device())
    same(CpuEngine(model, threads=1, n_pages=16), cuda, 6)
    found = [n for p in cuda._programs.values() if p.shape.one for n in p.launches if n.kernel.startswith("walk")]
    assert found or not cuda._device.together


def test_long_rows_are_quantised_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk has a step for it; here every row that is not normed is long."""
    monkeypatch.setattr(walk, "LONG", 32)
    model = make(type="Q4_K", n_head=4, n_head_kv=2, **WIDE)
    same(CpuEngine(model, threads=1, n_pages=16), CudaEngine(model, n_pages=16, device=device()))


def test_results_stay_when_the_next_step_comes(make: Make) -> None:
    cuda = CudaEngine(make(), n_pages=4, device=device())
    steps = [Chunk(IDS[i : i + 1], i, pages(0, 8)) for i in range(3)]
    first = cuda.forward([steps[0]])[0].logits
    kept = first.copy()
    for step in steps[1:]:
        cuda.forward([step])
    assert np.array_equal(first, kept)


def test_groups_fill_their_tiles() -> None:
    for units in range(1, 120):
        group = rows_per_group(units, paired=False)
        assert -(-group * units // 32) * 32 <= 1.07 * group * units


def test_targets() -> None:
    assert sources.target_for("sm_90") == "sm_90" and sources.target_for("sm_121") == "sm_120"
    with pytest.raises(AssayError, match="no kernels for sm_75"):
        sources.target_for("sm_75")
    assert len(structs.KERNELS) == sum(len(kernels) for kernels in structs.MODULES.values())


@pytest.mark.slow
@pytest.mark.parametrize("target", sources.TARGETS)
@pytest.mark.parametrize("module", ["attention_blocks", "rows", "scores", "steps"])
def test_every_target_compiles(module: str, target: str) -> None:
    """Modules that take a second or two; `python -m assay.engines.cuda.sources` compiles all of them."""
    if not find_spec("cuda") or not find_spec("cuda.bindings.nvrtc"):
        pytest.skip("NVRTC is not installed: the extra `cuda` brings it")
    code = sources.compile_for(module, target)
    assert code[:4] == b"\x7fELF"
    assert [kernel for kernel in structs.MODULES[module] if kernel.encode() not in code] == []
