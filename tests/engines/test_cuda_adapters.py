"""LoRA adapters and token types on the cuda engine: the cpu engine's bits, alone, beside others, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.cpu import CpuEngine
from assay.engines.cuda import CudaEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.models.adapters import Adapter, open_adapter
from assay.runtime.opening import OpenOptions, open_model
from tests.engines import on_cuda
from tests.engines.test_adapters import job, make_adapter, run
from tests.models import others
from tests.tiny import make

KINDS: list[tuple[tuple[int, float], ...]] = [(), ((0, 1.0),), ((1, 0.5),), ((0, 0.5), (1, 1.0))]
IDS = np.arange(260, 273, dtype=np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make(tmp_path_factory.mktemp("lora") / "tiny.gguf", n_ctx=512, n_layer=2)))


@pytest.fixture(scope="module")
def adapters(model: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    some = make_adapter(folder / "b.gguf", model, 2, names=lambda name: "attn_q" in name or "ffn_down" in name)
    return [open_adapter(path, model) for path in (make_adapter(folder / "a.gguf", model), some)]


@pytest.fixture(params=["fast", "exact"])
def engines(
    request: pytest.FixtureRequest, model: Model, adapters: list[Adapter]
) -> Iterator[tuple[CpuEngine, CudaEngine]]:
    cuda = CudaEngine(model, device=on_cuda.device(), precision=request.param, adapters=adapters, n_pages=16)
    yield CpuEngine(model, threads=1, precision=request.param, adapters=adapters, n_pages=16), cuda
    cuda.close()


def chunk(begin: int, end: int, page: int, kind: tuple[tuple[int, float], ...], outputs: str = "last") -> Chunk:
    return Chunk(IDS[begin:end], begin, on_cuda.pages(page, end), outputs, adapters=kind)


def test_every_node_has_the_cpu_engines_bits(engines: tuple[CpuEngine, CudaEngine]) -> None:
    cpu, cuda = engines
    names = [node.name for node in cpu.graph]
    batch = [chunk(0, len(IDS), i, kind, "all") for i, kind in enumerate(KINDS)]
    for right, found in zip(cpu.forward(batch, names), cuda.forward(batch, names), strict=True):
        assert np.array_equal(right.logits, found.logits)
        assert not [name for name in names if not np.array_equal(right.nodes[name], found.nodes[name])]


def test_a_prompt_and_then_token_by_token(engines: tuple[CpuEngine, CudaEngine]) -> None:
    for begin, end in ((0, 9), (9, 10), (10, 11)):
        batch = [chunk(begin, end, i, kind) for i, kind in enumerate(KINDS)]
        together = [output.logits for output in engines[1].forward(batch)]
        assert all(np.array_equal(a.logits, b) for a, b in zip(engines[0].forward(batch), together, strict=True))
        assert len({logits.tobytes() for logits in together}) == len(KINDS)
        if end == 10:  # the same alone
            assert all(
                np.array_equal(engines[1].forward([c])[0].logits, b) for c, b in zip(batch, together, strict=True)
            )


def test_prompts_in_tensor_have_adapters_too(model: Model, adapters: list[Adapter]) -> None:
    """Precision mixed: near the bits of fast, another result for each set of adapters, the same alone and cut."""
    fast, mixed = (
        CudaEngine(model, device=on_cuda.device(), precision=precision, adapters=adapters, n_pages=16)
        for precision in ("fast", "mixed")
    )

    def part(begin: int, end: int, page: int, kind: tuple[tuple[int, float], ...]) -> Chunk:
        return replace(chunk(begin, end, page, kind, "all"), prompt=max(0, min(9, end) - begin))

    batch = [part(0, 12, i, kind) for i, kind in enumerate(KINDS)]
    together = [output.logits for output in mixed.forward(batch)]
    for kind, found, plain in zip(KINDS, together, fast.forward(batch), strict=True):
        assert np.linalg.norm(found - plain.logits) < 0.1 * np.linalg.norm(plain.logits)
        for begin, end in ((0, 4), (4, 10), (10, 12)):
            assert np.array_equal(mixed.forward([part(begin, end, 8, kind)])[0].logits, found[begin:end]), kind
    assert len({logits.tobytes() for logits in together}) == len(KINDS)
    fast.close()
    mixed.close()


def test_served_sequences_with_and_without_adapters(model: Model, adapters: list[Adapter]) -> None:
    """The scheduler lets the device run ahead only for sequences without adapters."""
    cuda = CudaEngine(model, device=on_cuda.device(), adapters=adapters, n_pages=32)
    try:
        kinds = KINDS[:2]
        cpu = run(CpuEngine(model, threads=1, adapters=adapters, n_pages=32), [job(kind) for kind in kinds])
        found = run(cuda, [job(kind) for kind in kinds])
    finally:
        cuda.close()
    assert [s.row_digests for s in found] == [s.row_digests for s in cpu]


def test_the_wgpu_engine_refuses(model: Model, adapters: list[Adapter], tmp_path: Path) -> None:
    opened = open_model(model.file.path, OpenOptions(engine="wgpu", lora=(str(adapters[0].file.path),)))
    with pytest.raises(AssayError, match="wgpu engine has no adapters"):
        _ = opened.adapters


def test_the_second_text_of_a_pair_has_its_token_type(tmp_path: Path) -> None:
    """Alone, and in a batch beside a single text, on all engines."""
    others.make("bert", tmp_path / "bert.gguf")
    bert = load(open_file(tmp_path / "bert.gguf"))
    ids, names = np.arange(3, 15, dtype=np.int32), [node.name for node in bert.graph]
    batch = [Chunk(ids, 0, on_cuda.pages(i, len(ids)), "all", second=second) for i, second in enumerate((5, 0))]
    reference, cpu = ReferenceEngine(bert, n_pages=4), CpuEngine(bert, threads=1, n_pages=4)
    right, found = reference.forward(batch, names), cpu.forward(batch, names)
    table, typed = bert.file.decode("token_types.weight").astype(np.float64), "embd_typed"
    added = right[0].nodes[typed] - right[1].nodes[typed]
    assert np.allclose(added[:5], 0) and np.allclose(added[5:], table[1] - table[0])
    for a, b in zip(right, found, strict=True):
        assert np.allclose(a.nodes["result_embd"], b.nodes["result_embd"], rtol=0.05, atol=0.05)
    assert np.array_equal(cpu.forward(batch[1:], names)[0].nodes["result_embd"], found[1].nodes["result_embd"])
    cuda = CudaEngine(bert, device=on_cuda.device(), n_pages=4)
    try:
        for a, b in zip(found, cuda.forward(batch, names), strict=True):
            assert not [name for name in names if not np.array_equal(a.nodes[name], b.nodes[name])]
    finally:
        cuda.close()
    with pytest.raises(AssayError, match="no token type for a second text"):
        cpu.forward([Chunk(ids, 0, on_cuda.pages(0, len(ids)), "all", second=len(ids))])
