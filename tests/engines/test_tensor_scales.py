"""A matrix's own scale (NVFP4's `.scale` tensors): written by the quantiser, applied by every engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.gguf import Tensor, by_name, open_file, write
from assay.gguf.mixes import MIXES
from assay.gguf.requantize import quantize
from assay.models import load
from tests import tiny
from tests.engines.on_cuda import device, pages

IDS = np.arange(3, 15, dtype=np.int32)
OPTIONS = {
    "dense": {"n_embd": 64, "n_ff": 128, "bias": True, "tied": False},
    "experts": {"n_embd": 64, "n_ff": 128, "n_expert": 4, "n_expert_used": 2},
}


@pytest.fixture(params=OPTIONS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small model quantised to NVFP4. The weights are too small for it without a scale of the matrix."""
    before, out = tmp_path / "before.gguf", tmp_path / "nvfp4.gguf"
    tiny.make(before, type="F32", **OPTIONS[request.param])
    with open_file(before) as file:
        quantize(file, out, MIXES["NVFP4"])
    return out


def logits(engine: ReferenceEngine | CpuEngine | CudaEngine) -> np.ndarray:
    return engine.forward([Chunk(IDS, 0, pages(0, len(IDS)), "all")])[0].logits


def multiplied(path: Path, out: Path) -> Path:
    """The same model in float32, with every scale multiplied into its matrix."""
    with open_file(path) as file:
        tensors = []
        for name, info in file.tensors.items():
            if name.endswith(".scale"):
                continue
            x, scale = file.decode(name).astype(np.float32), name.removesuffix("weight") + "scale"
            if scale in file.tensors:
                x = x * file.decode(scale).reshape(-1, *[1] * (x.ndim - 1))
            tensors.append(Tensor(name, info.shape, by_name("F32"), x))
        write(out, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return out


def test_every_engine_multiplies_by_the_scale(path: Path, tmp_path: Path) -> None:
    model, whole = load(open_file(path)), load(open_file(multiplied(path, tmp_path / "whole.gguf")))
    scales = [name for name in model.file.tensors if name.endswith(".scale")]
    assert scales and not [name for name in scales if not any(name in node.weights for node in model.graph)]
    expected = logits(ReferenceEngine(whole))
    np.testing.assert_allclose(logits(ReferenceEngine(model)), expected, atol=1e-5 * np.abs(expected).max())
    exact = logits(CpuEngine(model, precision="exact", threads=1, n_pages=4))
    np.testing.assert_allclose(exact, expected, atol=1e-4 * np.abs(expected).max())
    fast = logits(CpuEngine(model, threads=1, n_pages=4))
    assert np.sum((fast - expected) ** 2) < 1e-3 * np.sum(expected**2)
    assert np.array_equal(logits(CudaEngine(model, n_pages=4, device=device())), fast)


def test_without_the_scales_the_logits_are_others(path: Path, tmp_path: Path) -> None:
    """So that a graph that leaves them out is noticed."""
    with open_file(path) as file:
        kept = [
            Tensor(name, info.shape, info.type, np.array(file.raw(name)))
            for name, info in file.tensors.items()
            if not name.endswith(".scale")
        ]
        write(tmp_path / "without.gguf", {key: file.metadata.typed(key) for key in file.metadata}, kept)
    a, b = (logits(ReferenceEngine(load(open_file(p)))) for p in (path, tmp_path / "without.gguf"))
    assert np.sum((a - b) ** 2) > 0.1 * np.sum(a**2)
