"""Models with a state in other dimensions than the golden ones: head ratios, taps, groups, lengths of prompts.

A table of random models, each made in a moment. The cpu engine agrees with the reference to float32's rounding, and
has the same bits whole, cut and in a batch; cuda under the shim has the same bits as the cpu engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Array, Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.models.catalogue import metadata, tensor_shapes
from tests.engines import on_cuda
from tests.models import others
from tests.models.golden import nmse
from tests.models.others import _of, _ssm

KV = others.KV
# name: architecture, sizes, keys. `_ssm` takes taps, inner width, state width, heads and groups (key heads).
TABLE: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "delta rule, 8 heads over 1": ("qwen35", {"n_layer": 2}, {**_ssm(4, 64, 8, 8, 1), "full_attention_interval": 2}),
    "delta rule, 8 heads over 2, 2 taps": ("qwen35", {"n_layer": 2}, _ssm(2, 128, 16, 8, 2)),
    "delta rule, equal heads, 7 taps": ("qwen35", {"n_layer": 2}, _ssm(7, 60, 12, 5, 5)),
    "delta rule, heads of 64": ("qwen3next", {"n_layer": 2}, _ssm(4, 128, 64, 2, 1)),
    "delta rule, attention first": (
        "qwen35moe", {"n_layer": 2}, {**_ssm(3, 96, 16, 6, 2), "attention.recurrent_layers": [False, True]},
    ),
    "delta rule, experts in groups": ("qwen35moe", {"n_layer": 2}, {
        **_ssm(3, 96, 16, 6, 2), "full_attention_interval": 2, "expert_group_count": 4, "expert_group_used_count": 2}),
    "scan, one group, 2 taps": ("mamba2", {"n_layer": 2}, _ssm(2, 144, 8, 4, 1)),
    "scan, a group each, 6 taps": ("mamba2", {"n_layer": 2}, _ssm(6, 144, 16, 6, 6)),
    "scan, one head": ("mamba2", {"n_layer": 1}, _ssm(4, 144, 64, 1, 1)),
    "scan, 18 heads of 8, state of 128": ("mamba2", {"n_layer": 1}, _ssm(4, 144, 128, 18, 2)),
    "scan beside attention, 2 groups": ("falcon-h1", {"n_layer": 2, **others.WIDE}, _ssm(5, 96, 16, 6, 2)),
    "scan with norms, 3 taps": ("mamba", {"n_layer": 2}, {**_ssm(3, 144, 8, 9), "ssm.dt_b_c_rms": True}),
    "scan, state of 32, rank 1": ("mamba", {"n_layer": 1}, _ssm(4, 144, 32, 1)),
    "convolution, 2 taps": ("lfm2", {"n_layer": 2}, {KV: [0, 3], "shortconv.l_cache": 2}),
    "convolution, 8 taps": ("lfm2", {"n_layer": 2}, {KV: [2, 0], "shortconv.l_cache": 8}),
    "kda, heads of 8, 2 taps": ("kimi-linear", *others._OWN["kimi-linear"][:1], {
        **others._OWN["kimi-linear"][1], "ssm.conv_kernel": 2, "kda.head_dim": 8}),
    "wkv6, heads of 12": ("rwkv6", {"n_layer": 2}, {"wkv.head_size": 12}),
    "wkv6, heads of 36": ("rwkv6", {"n_layer": 2}, {"wkv.head_size": 36}),
    "wkv7, two heads": ("rwkv7", {"n_layer": 2, "n_embd": 128}, {"wkv.head_size": 64}),
}  # fmt: skip
LONG = ("delta rule, 8 heads over 2, 2 taps", "scan, a group each, 6 taps", "wkv6, heads of 12", "convolution, 8 taps")
ON_CUDA = (*LONG, "delta rule, experts in groups", "scan with norms, 3 taps", "wkv7, two heads")
IDS = np.random.default_rng(9).integers(0, others.N_VOCAB, 1000).astype(np.int32)
Get = Callable[[str], Model]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Get:
    folder = tmp_path_factory.mktemp("dimensions")
    made: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in made:
            made[name] = _made(name, folder / f"{len(made)}.gguf")
        return made[name]

    return get


def _made(name: str, path: Path) -> Model:
    row = _of(*TABLE[name])
    row = replace(row, sizes=replace(row.sizes, n_ctx=1024))
    rng = np.random.default_rng(sum(name.encode()))
    values = {n: others._values(n, shape, rng) for n, shape in tensor_shapes(row).items()}
    tensors = [Tensor(n, x.shape, by_name("F32"), x.astype(np.float32)) for n, x in values.items()]
    write(path, metadata(row) | {"tokenizer.ggml.model": "no_vocab"}, tensors)
    return load(open_file(path))


def run(engine: Any, ids: Array, *cuts: int, slot: int = 0) -> Array:
    """Logits of every row, in pieces that end at `cuts`; each slot has pages of its own."""
    pages = np.arange(pages_for(len(ids)), dtype=np.int32) + 3 * slot
    found, start = [], 0
    for end in (*cuts, len(ids)):
        found.append(engine.forward([Chunk(ids[start:end], start, pages, "all", state_slot=slot)])[0].logits)
        start = end
    return np.concatenate(found)


@pytest.mark.parametrize("name", TABLE)
def test_the_reference_and_every_way_of_running(name: str, models: Get) -> None:
    """A prompt of 40 against the reference, then one token, cut, token by token, and beside two others."""
    model, ids = models(name), IDS[:40]
    exact = CpuEngine(model, n_pages=16, threads=1, precision="exact")
    assert nmse(run(exact, ids), run(ReferenceEngine(model, n_pages=2), ids)) < 1e-9
    for precision in ("exact", "fast"):
        engine = exact if precision == "exact" else CpuEngine(model, n_pages=16, threads=2)
        whole = run(engine, ids)
        assert np.isfinite(whole).all()
        assert np.array_equal(run(engine, ids[:1], slot=1), whole[:1]), "a prompt of one token"
        for cuts in ((1,), (17, 18), (39,), tuple(range(1, 40))):
            assert np.array_equal(run(engine, ids, *cuts, slot=1), whole), cuts
        texts = [ids[5:8], ids, ids[1:30]]
        pages = np.arange(2, dtype=np.int32)
        batch = [Chunk(text, 0, pages + 3 * i, "all", state_slot=i) for i, text in enumerate(texts)]
        assert np.array_equal(engine.forward(batch)[1].logits, whole)


@pytest.mark.parametrize("name", TABLE)
def test_llamacpps_logits(name: str, models: Get) -> None:
    """llama.cpp itself, at every position: prompts of one token, of 40, and of 1,000 in its own chunks of 64."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    model = models(name)
    engine = CpuEngine(model, n_pages=40, threads=1, precision="exact", kv_type="f32")
    for count in (1, 40, 1000):
        theirs = others.witness(model.file.path, IDS[:count], np.arange(count), 1024)
        assert nmse(run(engine, IDS[:count]), theirs.astype(np.float64)) < 1e-10, count


@pytest.mark.parametrize("name", LONG)
def test_a_prompt_of_1000_tokens(name: str, models: Get) -> None:
    """The engine cuts it by itself; by the reference, and the same bits in uneven pieces."""
    model = models(name)
    engine = CpuEngine(model, n_pages=40, threads=2, precision="exact")
    whole = run(engine, IDS)
    assert np.array_equal(run(engine, IDS, 1, 63, 64, 500), whole)
    assert nmse(whole[-1:], run(ReferenceEngine(model, n_pages=32), IDS)[-1:]) < 1e-9


@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_has_the_cpu_engines_bits(name: str, models: Get) -> None:
    model, ids = models(name), IDS[:19]
    cpu, cuda = CpuEngine(model, n_pages=8, threads=1), CudaEngine(model, device=on_cuda.device(), n_pages=8)
    try:
        expected = run(cpu, ids)
        assert np.array_equal(run(cuda, ids), expected)
        assert np.array_equal(run(cuda, ids, 1, 16, 17, slot=1), expected)
    finally:
        cuda.close()
