"""Safetensors files are written in any order and read by others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from assay.verify.dumps.formats.safetensors import TensorWriter
from assay.verify.dumps.load import read_dump


def test_writer_keeps_order_and_place(tmp_path: Path) -> None:
    out = TensorWriter(
        tmp_path / "x", [("b", np.dtype(np.float32), (2, 4)), ("a", np.dtype(np.int32), (3,))], {"k": "v"}
    )
    out.put("a", np.array([1, 2, 3]))
    out.put("b", np.ones((2, 2)), axis=1, start=2)
    out.close()
    raw = (tmp_path / "x").read_bytes()
    assert list(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])) == ["__metadata__", "b", "a"]
    dump = read_dump((tmp_path / "x").rename(tmp_path / "x.safetensors"))
    assert np.array_equal(dump.values("b"), [[0, 0, 1, 1]] * 2) and np.array_equal(dump.values("a"), [1, 2, 3])
