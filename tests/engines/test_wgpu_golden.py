"""Golden models on the wgpu engine: prompts in pieces, batches of two sequences and two caches have the cpu's bits.

The files lie in the reference data: small models of each architecture, whose values llama.cpp computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines import ENGINES, wgpu
from assay.engines.contract import Chunk, PagedEngine
from assay.engines.cpu import CpuEngine
from assay.engines.wgpu.weight_tiles import _FORMATS
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from tests import tiny
from tests.engines import bits
from tests.models import golden, recurrent

pytestmark = [
    pytest.mark.skipif("wgpu" not in ENGINES, reason="wgpu or a Vulkan driver is not installed"),
    pytest.mark.slow,
]
FAMILIES = (
    "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma2-27b", "gemma3", "phi3", "phi3-long", "gpt-oss",
)  # fmt: skip
REFUSED = ("kimi-linear",)  # MLA
STATEFUL = tuple(name for name in recurrent.STATEFUL if name not in (*recurrent.DRAFTS, *REFUSED))
STORIES = ("stories260K-f32", "stories15M-q8_0")
IDS = np.random.default_rng(11).integers(3, 1 << 20, 64).astype(np.int32)


def model_of(name: str, shared_dir: Path) -> Model:
    path = shared_dir / "data" / "models" / f"{name}.gguf" if name in STORIES else golden.path(name)
    if not path.exists():
        pytest.skip(f"{path.name} is not in the reference data")
    return load(open_file(path), 512)


def steps(engine: PagedEngine, n_vocab: int) -> list[np.ndarray]:
    """Logits of every token of two sequences: prompts in pieces, whose last one comes with the other's first; then two
    single tokens of both; then more of one."""
    ids, second = IDS[:40] % n_vocab, IDS[40:] % n_vocab
    one, two = np.array([3, 1], np.int32), np.array([0, 2], np.int32)

    def first(start: int, end: int) -> Chunk:
        return Chunk(ids[start:end], start, one, "all", state_slot=0)

    def other(start: int, end: int) -> Chunk:
        return Chunk(second[start:end], start, two, "all", state_slot=1)

    batches = [
        [first(0, 7)],
        [first(7, 24), other(0, 5)],
        [first(24, 25), other(5, 6)],
        [other(6, 7), first(25, 26)],
        [first(26, 40)],
    ]
    return [output.logits for batch in batches for output in engine.forward(batch)]


def check(model: Model, **options: Any) -> None:
    engines = [make(model, n_pages=4, state_slots=2, **options) for make in (wgpu.WgpuEngine, CpuEngine)]
    assert engines[0].arithmetic == engines[1].arithmetic
    for found, expected in zip(*(steps(engine, model.hparams.n_vocab) for engine in engines), strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    engines[0].close()


@pytest.mark.parametrize("name", [*STORIES, *FAMILIES, *STATEFUL])
def test_a_golden_model_has_the_cpus_bits(name: str, shared_dir: Path) -> None:
    check(model_of(name, shared_dir))


@pytest.mark.parametrize("name", ["stories260K-f32", "qwen3moe", "jamba"])
def test_a_golden_model_in_exact_precision(name: str, shared_dir: Path) -> None:
    check(model_of(name, shared_dir), precision="exact")


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen3moe", "gpt-oss", "qwen35"]
)
def test_a_cache_of_q8_0(name: str, tmp_path: Path) -> None:
    """The golden models have heads of 16 or 24 values, which such a cache cannot hold: these have 32."""
    case = bits.Case({"n_embd_head": 32, "n_embd_head_v": 32, "n_rot": 32}, arch=name)
    check(bits.make(case, tmp_path / "m.gguf"), kv_type="q8_0")


@pytest.mark.parametrize("type", ["Q8_0", "F16"])
def test_experts_whose_rows_fill_no_tile(type: str, tmp_path: Path) -> None:
    """40 and 72 rows an expert: the last tile of each has 8."""
    case = bits.Case({"type": type, "n_embd": 72 if type == "F16" else 96, "n_ff_exp": 40}, arch="qwen3moe")
    check(bits.make(case, tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_model_names_the_operation(name: str, shared_dir: Path) -> None:
    with pytest.raises(AssayError, match=r"wgpu engine.*use --engine cpu"):
        wgpu.WgpuEngine(model_of(name, shared_dir), n_pages=2)


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_every_type_in_one_model(precision: str, tmp_path: Path) -> None:
    """Each matrix has a type of its own, until every type was used."""
    kinds, chosen = iter(bits.TYPES), dict[str, str]()

    def kind(name: str) -> str:
        if "norm" in name:
            return "F32"
        if name not in chosen:
            chosen[name] = next(kinds, "Q4_0")
        return chosen[name]

    path = tiny.make(tmp_path / "m.gguf", type=kind, n_embd=256, n_ff=512, n_layer=5, tied=False, tensor=bits.tensor)
    model = load(open_file(path))
    assert {t.type.name for t in model.file.tensors.values()} == set(bits.TYPES) >= set(_FORMATS)
    check(model, precision=precision)
