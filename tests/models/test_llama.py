"""The llama builder: every variant against llama.cpp's logits, and files that do not add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import load
from tests import tiny
from tests.models import variants


def logits(path: Path, ids: list[int] = variants.IDS) -> np.ndarray:
    engine = ReferenceEngine(load(open_file(path)))
    return engine.forward([Chunk(np.array(ids, np.int32), 0, np.arange(3, dtype=np.int32), "all")])[0].logits


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_variant_agrees_with_llamacpp(tmp_path: Path, name: str) -> None:
    variants.make(name, tmp_path / "m.gguf")
    found, golden = logits(tmp_path / "m.gguf")[list(variants.ROWS)], np.load(variants.GOLDEN)[name]
    assert np.sum((found - golden) ** 2) / np.sum(found**2) < 1e-10
    others = [np.load(variants.GOLDEN)[n] for n in variants.VARIANTS if n not in (name, "fused", "tied")]
    assert all(np.sum((found - o) ** 2) / np.sum(found**2) > 1e-6 for o in others)  # the variants do differ


def rewritten(tmp_path: Path, changes: dict[str, Any], drop: tuple[str, ...] = ()) -> Path:
    """The tied variant with other metadata; a value of None removes the key."""
    variants.make("tied", tmp_path / "m.gguf")
    file = open_file(tmp_path / "m.gguf")
    metadata = {**dict(file.metadata), **changes}
    kept = [t for t in file.tensors.values() if t.name not in drop]
    tensors = [Tensor(t.name, t.shape, by_name("F32"), file.decode(t.name)) for t in kept]
    write(tmp_path / "changed.gguf", {k: v for k, v in metadata.items() if v is not None}, tensors)
    return tmp_path / "changed.gguf"


def test_sliding_window_forgets(tmp_path: Path) -> None:
    """With a window of 16 in each of two layers, the last token cannot see further back than 30."""
    path = tiny.make(tmp_path / "m.gguf", window=16)
    ids = variants.IDS
    early, late = [*ids], [*ids]
    early[70 - 31] = (ids[70 - 31] + 1) % 259
    late[70 - 30] = (ids[70 - 30] + 1) % 259
    plain = logits(path)[-1]
    assert np.array_equal(logits(path, early)[-1], plain)
    assert not np.array_equal(logits(path, late)[-1], plain)


@pytest.mark.parametrize(
    ("changes", "drop", "message"),
    [
        (
            {"general.architecture": "lama"},
            (),
            "unknown architecture 'lama'; the nearest known is llama; known are llama, ",
        ),
        ({"general.architecture": 7}, (), "general.architecture"),
        ({"llama.block_count": 3}, (), "found 3, expected 2, the blocks whose tensors are present"),
        ({"llama.block_count": 2**31 - 1}, (), "expected 2, the blocks whose tensors are present"),
        ({"llama.block_count": 0}, (), "llama.block_count: bad value (found 0"),
        ({"llama.block_count": "two"}, (), "llama.block_count"),
        ({"llama.embedding_length": None}, (), "llama.embedding_length: missing"),
        ({"llama.attention.head_count": 0}, (), "llama.attention.head_count: bad value (found 0"),
        ({"llama.attention.head_count_kv": 3}, (), "found 3, expected a divisor of head_count 4"),
        (
            {"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5},
            (),
            "blk.0.attn_q.weight: rows do not make the heads",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, (), "expected a finite number"),
        ({"llama.rope.dimension_count": 7}, (), "found 7, expected an even number"),
        ({"llama.rope.scaling.type": "magic"}, (), "expected none, linear, yarn or longrope"),
        ({"llama.expert_count": 4, "llama.expert_used_count": 9}, (), "expert_used_count: bad value (found 9"),
        ({}, ("blk.1.ffn_up.weight",), "node ffn_up-1: tensor blk.1.ffn_up.weight is not in the file"),
        ({}, ("token_embd.weight",), "there is no model in this file"),
    ],
)
def test_files_that_do_not_add_up(tmp_path: Path, changes: dict[str, Any], drop: tuple[str, ...], message: str) -> None:
    with pytest.raises(AssayError) as caught:
        load(open_file(rewritten(tmp_path, changes, drop)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value) and "changed.gguf: " in str(caught.value)
