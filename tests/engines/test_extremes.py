"""NaN, infinite and huge weights through the native engine: it computes, and what is lost is seen to be lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay import _native, engines
from assay.engines.contract import Chunk
from assay.gguf import open_file
from assay.gguf.writer import Tensor, write
from assay.models import load
from tests import tiny

POISONS = {
    "nan": np.float32(np.nan), "inf": np.float32(np.inf), "-inf": np.float32(-np.inf), "huge": np.float32(3e38),
    "tiny": np.float32(1e-45),
}  # fmt: skip
KINDS = ("F32", "F16", "Q8_0", "Q4_K")
HALF = {"Q4_0": 0, "Q8_0": 0, "Q5_1": 0, "Q4_K": 0, "Q6_K": 208, "F16": 0}  # where a block's scale lies


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The models before they are poisoned, by type."""
    folder = tmp_path_factory.mktemp("plain")
    return {kind: tiny.make(folder / kind, type=kind, n_embd=256, n_ff=256, tied=False) for kind in KINDS}


def poisoned(source: Path, path: Path, value: np.float32, stem: str) -> Path:
    """The model with one block, or one number, of a matrix replaced."""
    with open_file(source) as file:
        tensors = []
        for name, info in file.tensors.items():
            raw = file.raw(name).copy()
            if stem in name:
                with np.errstate(over="ignore"):
                    bits = value.tobytes() if info.type.name == "F32" else np.float16(value).tobytes()
                at = HALF.get(info.type.name, 0)
                raw.reshape(-1)[at : at + len(bits)] = np.frombuffer(bits, np.uint8)
            tensors.append(Tensor(name, info.shape, info.type, raw))
        write(path, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return path


@pytest.mark.parametrize(
    "stem", ["attn_q.weight", "ffn_down.weight", "output.weight", "token_embd.weight", "norm.weight"]
)
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("kind", KINDS)
def test_poisoned_weights_are_computed_with(
    plain: dict[str, Path], kind: str, poison: str, stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(open_file(poisoned(plain[kind], tmp_path / "a.gguf", POISONS[poison], stem)))
    bits = []
    for isa in _native.isas():
        monkeypatch.setenv("ASSAY_ISA", isa)
        engine = engines.create("cpu", model, n_pages=1, threads=2)
        with np.errstate(all="ignore"):
            logits = engine.forward([Chunk(np.array([0, 5, 6]), 0, np.arange(1, dtype=np.int32), "all")])[0].logits
            alone = engine.forward([Chunk(np.array([0]), 0, np.arange(1, dtype=np.int32))])[0].logits
        engine.close()
        assert np.array_equal(alone[0], logits[0], equal_nan=True), "one token is computed otherwise than three"
        assert logits.shape == (3, len(tiny.TOKENS))
        bits.append(np.isfinite(logits))
        if poison == "nan" and stem in ("output.weight", "norm.weight"):
            assert not np.isfinite(logits).all(), "a NaN that every token meets has vanished"
    assert all(np.array_equal(bits[0], other) for other in bits), "instruction sets disagree on what is lost"
