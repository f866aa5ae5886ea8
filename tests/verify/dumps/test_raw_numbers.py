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
    "a.lst": "# little-endian float32, a.bin\n# prompt: 5 7\n# what\tlayer\tpos\toffset(floats)\tcount\n"
    "# --- pos 0: token 5\nq\t0\t0\t0\t4\nq\t1\t0\t8\t3\n# --- pos 1: token 7\nq\t0\t1\t4\t4\nq\t1\t1\t11\t3\n",
    "a.info": "# tokens 5 7\n# float32, off in bytes\n# off cnt shape tag\n0 8 2x4 layers.0.q\n32 6 2x3 layers.1.q\n",
    "a.list": "# tokens 5 7\ntag;layer;first byte [bytes];dims\nq;0;0;[2, 4]\nq;1;32;[2, 3]\n",
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


@pytest.mark.parametrize("half", [False, True])
def test_rows_of_tokens_and_heads(tmp_path: Path, half: bool) -> None:
    """Weights of attention have an entry for each head and row; those of decode steps are longer."""
    rows, index, at, numbers = [(5, 0), (7, 1), (9, 2)], ["# prompt: 5 7", "what layer pos head offset count"], 0, []
    for token, pos in rows:
        index.append(f"# --- pos {pos}: token {token}")
        for head in range(2):
            index.append(f"prob 0 {pos} {head} {at} {pos + 1}")
            numbers += [head + pos + key / 8 for key in range(pos + 1)]
            at += pos + 1
        if pos:
            index.append(f"logits -1 {pos} -1 {at} 4")
            numbers += [pos, 0.5, 0.25, 0.125]
            at += 4
    (tmp_path / "a.idx").write_text("\n".join(index))
    np.array(numbers, np.float16 if half else np.float32).tofile(tmp_path / "a.bin")
    found = read_dump(tmp_path / "a.bin")
    assert found.tokens == (5, 7, 9) and found.steps == (2, 1)
    probs, logits = found.observations
    assert probs.array().shape == (2, 3, 3) and probs.rows is None
    assert [list(row) for row in probs.array()[1]] == [[1, 0, 0], [2, 2.125, 0], [3, 3.125, 3.25]]
    assert logits.rows == (1, 3) and logits.array().tolist() == [[1, 0.5, 0.25, 0.125], [2, 0.5, 0.25, 0.125]]


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
