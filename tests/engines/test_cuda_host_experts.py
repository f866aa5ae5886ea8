"""Experts of some layers on the cpu engine, the rest on the device (`--cpu-experts`): the bits of either alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.cuda.host_experts import host_parts
from assay.errors import AssayError
from assay.models import Model
from tests.engines import bits
from tests.engines.on_cuda import device, pages
from tests.engines.test_cuda_walk_all import HEADS, make


def model_of(path: Path, arch: str) -> Model:
    return make(path, arch, lambda _: "Q8_0", HEADS)


def texts(model: Model) -> list[Chunk]:
    n_vocab = model.hparams.n_vocab
    return [Chunk(bits.IDS[:n] % n_vocab, 0, pages(i, n), "all") for i, n in enumerate((5, 3))]


@pytest.mark.parametrize("layers", [1, 9])
@pytest.mark.parametrize("arch", ["qwen3moe", "gpt-oss", "qwen2moe"])
def test_prompts_and_tokens_have_the_bits_of_one_engine(tmp_path: Path, arch: str, layers: int) -> None:
    model = model_of(tmp_path, arch)
    cpu = CpuEngine(model, threads=1, n_pages=4)
    cuda = CudaEngine(model, n_pages=4, device=device(), threads=1, cpu_experts=layers)
    whole = CudaEngine(model, n_pages=4, device=device())
    assert cuda.memory.weights < whole.memory.weights
    batch = texts(model)
    expected = cpu.forward(batch)
    for found, wanted in zip(cuda.forward(batch), expected, strict=True):
        assert np.array_equal(found.logits, wanted.logits)
    one = [Chunk(np.array([7 + i], np.int32), c.end, c.pages) for i, c in enumerate(batch)]
    for found, wanted in zip(cuda.forward(one), cpu.forward(one), strict=True):
        assert np.array_equal(found.logits, wanted.logits)
    for engine in (cpu, cuda, whole):
        engine.close()


def test_every_node_can_be_kept(tmp_path: Path) -> None:
    model = model_of(tmp_path, "qwen3moe")
    cpu = CpuEngine(model, threads=1, n_pages=4)
    cuda = CudaEngine(model, n_pages=4, device=device(), threads=1, cpu_experts=1)
    (total,) = host_parts(model.graph, 1)
    keep = [node.name for node in model.graph if node.name.endswith("-0")]
    batch = texts(model)[:1]
    (found,), (expected,) = cuda.forward(batch, keep), cpu.forward(batch, keep)
    assert total in keep
    for name in keep:
        assert np.array_equal(found.nodes[name], expected.nodes[name]), name
    cpu.close()
    cuda.close()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"--cpu-experts: model\.gguf has no experts"):
        CudaEngine(model_of(tmp_path, "llama"), n_pages=1, device=device(), cpu_experts=2)
    with pytest.raises(AssayError, match="no precision tensor; use --precision fast or exact"):
        CudaEngine(model_of(tmp_path, "qwen3moe"), n_pages=1, device=device(), cpu_experts=2, precision="tensor")
