"""Raw numbers: manifests in many notations, types in many spellings, files named after their tensor, steps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.errors import AssayError
from assay.verify.dumps.formats.element_types import element_type, half_type
from assay.verify.dumps.load import read_dump
from assay.verify.dumps.observation import Dump

A = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
B = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
NAMES = ("layers.0.q", "layers.1.q")
JSON = {
    "tokens": [5, 7],
    "tensors": [
        {"name": "layers.0.q", "shape": [2, 4], "offset": 0},
        {"name": "layers.1.q", "shape": [2, 3], "offset": 32},
    ],
}
BY_NAME = {"layers.0.q": {"dims": [2, 4], "start": 0}, "layers.1.q": {"dims": [2, 3], "start": 8}, "input_ids": [5, 7]}
SHAPES = {"prompt_ids": [5, 7], "file": "a.bin", "arrays": {"layers.0.q": [2, 4], "layers.1.q": [2, 3]}}
LINES = ({"tokens": [5, 7]}, {"tensor": "q", "layer": 0, "shape": [2, 4]}, {"tensor": "q", "layer": 1, "shape": [2, 3]})
TOML = """tokens = [5, 7]
[tensors."layers.0.q"]
shape = [2, 4]
offset = 0
[tensors."layers.1.q"]
shape = [2, 3]
offset = 32
"""
YAML = """tokens: [5, 7]
tensors:
  - name: layers.0.q
    shape: [2, 4]
  - name: layers.1.q
    shape: [2, 3]
"""
# How people describe A at byte 0 and B at byte 32 of one file.
MANIFESTS = {
    "a.json": json.dumps(JSON, indent=1),
    "a.manifest.json": json.dumps(BY_NAME),  # counts elements
    "index.json": json.dumps(SHAPES),
    "a.jsonl": "\n".join(map(json.dumps, LINES)),
    "a.toml": TOML,
    "a.yaml": YAML,
    "a.csv": "# tokens 5 7\nname,dtype,shape,offset\nlayers.0.q,f32,2x4,0\nlayers.1.q,f32,2x3,32\n",
    "a.txt": "tokens: 5 7\nlayers.0.q f32 [2, 4] 0\nlayers.1.q f32 [2, 3] 32\n",
    "a.idx": "# tokens 5 7\nq.0 offset=0 shape=2x4 float32\nq.1 offset=32 shape=2x3 float32\n",
    "a.meta": "tokens: 5 7\nlayers.0.q rows=2 cols=4 offset=0\nlayers.1.q rows=2 cols=3 offset=32\n",
    "a.index": "# tokens 5 7\n# name layer count byte_offset   (float32, row by row)\nq 0 8 0\nq 1 6 32\n",
    "a.toc": "tokens: 5 7\nname: layers.0.q\nbytes: 32\nname: layers.1.q\nbytes: 24\n",
}


def arrays(dump: Dump) -> dict[str, np.ndarray]:
    return {obs.name: obs.array() for obs in dump.observations}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_in_any_notation(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "a.bin").write_bytes(A.tobytes() + B.tobytes())
    (tmp_path / manifest).write_text(MANIFESTS[manifest])
    for path in (tmp_path / "a.bin", tmp_path / manifest, tmp_path):
        dump = read_dump(path)
        assert dump.tokens == (5, 7)
        found = arrays(dump)
        assert list(found) == list(NAMES)
        assert np.array_equal(found[NAMES[0]].ravel(), A.ravel()) and np.array_equal(found[NAMES[1]].ravel(), B.ravel())


@pytest.mark.parametrize(
    ("spelled", "means"),
    [("f32le", ("float32", False)), (">f4", ("float32", True)), ("torch.bfloat16", ("bfloat16", False)),
     ("Float32Array", ("float32", False)), ("half", ("float16", False)), ("FP16", ("float16", False)),
     ("float32 big-endian", ("float32", True)), ("double", ("float64", False)), ("uint16_t", ("uint16", False)),
     ("q4_0", None), ("", None)],
)  # fmt: skip
def test_spellings_of_types(spelled: str, means: tuple[str, bool] | None) -> None:
    assert element_type(spelled) == means


def test_types_by_order_size_and_values(tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(A.astype(">f4").tobytes())
    (tmp_path / "big.json").write_text('{"endian": "big", "tensors": [{"name": "q", "shape": [2, 4]}]}')
    assert np.array_equal(arrays(read_dump(tmp_path / "big.bin"))["q"], A)
    (tmp_path / "short.bin").write_bytes(A.astype(np.float16).tobytes())  # no type: 16 bytes for 8 values
    (tmp_path / "short.json").write_text('{"tensors": [{"name": "q", "shape": [2, 4]}]}')
    assert np.array_equal(arrays(read_dump(tmp_path / "short.bin"))["q"], A)
    values = np.random.default_rng(0).normal(size=500).astype(np.float32)
    assert half_type((values.view(np.uint32) >> 16).astype(np.uint16)) == "bfloat16"
    assert half_type(values.astype(np.float16).view(np.uint16)) == "float16"


def test_files_named_after_their_tensor(tmp_path: Path) -> None:
    A.tofile(tmp_path / "blk0_q_2x4.f32")
    B.astype(np.float16).tofile(tmp_path / "blk1_q_2_3.f16")
    A.astype(np.float16).tofile(tmp_path / "logits.bin")
    (tmp_path / "logits.json").write_text('{"shape": [2, 4], "dtype": "half"}')
    np.array([5, 7], np.int32).tofile(tmp_path / "tokens.bin")
    dump = read_dump(tmp_path)
    found = arrays(dump)
    assert dump.tokens == (5, 7) and set(found) == {"blk0_q", "blk1_q", "logits"}
    assert np.array_equal(found["blk0_q"], A) and np.array_equal(found["blk1_q"], B)
    assert np.array_equal(found["logits"], A)


def test_a_file_for_each_step(tmp_path: Path) -> None:
    for step, rows in enumerate((A, A[:1], A[1:])):
        rows.tofile(tmp_path / f"d.step{step}.bin")
    entries = [{"name": "q", "file": f"d.step{s}.bin", "shape": [n, 4], "start": 0} for s, n in enumerate((2, 1, 1))]
    (tmp_path / "d.json").write_text(json.dumps({"tokens": [5, 7, 9, 11], "tensors": entries}))
    dump = read_dump(tmp_path / "d.json")
    assert dump.steps == (2, 1, 1) and np.array_equal(arrays(dump)["q"], np.concatenate([A, A]))


def test_a_short_file_and_a_file_without_a_description(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(A.tobytes())
    (tmp_path / "a.json").write_text(json.dumps(JSON))
    with pytest.raises(AssayError, match=r"layers\.1\.q: ends at byte 56, the file has 32"):
        read_dump(tmp_path / "a.bin")
    (tmp_path / "a.json").write_text('{"note": "nothing"}')
    with pytest.raises(AssayError, match=r"found a.bin with 32 bytes.*manifest.json beside it"):
        read_dump(tmp_path / "a.bin")
