"""Raw numbers behind a text in one file: the text describes them, in the notations of a manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.verify.dumps.formats.headed_raw import is_headed_raw
from assay.verify.dumps.load import read_dump

A = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
B = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
# What stands before A and B. `{at}` is the length of the text, where offsets count from the beginning of the file.
TEXTS = {
    "pairs": "MYDUMP 1\nmodel x.gguf\nids 5 7\ndtype f32le\nq l=0 pos=0 n=4 off=0\nq l=0 pos=1 n=4 off=16\n"
    "q l=1 pos=0 n=3 off=32\nq l=1 pos=1 n=3 off=44\nEND\n",
    "numbers": "tokens: 5 7\nlayers.0.q offset=0 shape=2x4 float32\nlayers.1.q offset=8 shape=2x3 float32\n---\n",
    "in order": "# tokens 5 7\nq layer=0 tok=0 floats=4\nq layer=0 tok=1 floats=4\nq layer=1 tok=0 floats=3\n"
    "q layer=1 tok=1 floats=3\n\n",
    "table": "prompt: 5 7\nname layer pos offset count\nq 0 0 0 4\nq 0 1 16 4\nq 1 0 32 3\nq 1 1 44 3\nDATA\n",
    "json": '{"tokens": [5, 7], "tensors": [{"name": "layers.0.q", "shape": [2, 4], "offset": 0}, '
    '{"name": "layers.1.q", "shape": [2, 3], "offset": 32}]}',
}


def written(folder: Path, text: str, pad: int = 0) -> Path:
    path = folder / "run.dump"
    path.write_bytes(text.encode() + bytes(pad) + A.tobytes() + B.tobytes())
    return path


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("pad", [0, 5])
def test_the_text_is_a_manifest(tmp_path: Path, kind: str, pad: int) -> None:
    dump = read_dump(written(tmp_path, TEXTS[kind], pad))
    assert dump.tokens == (5, 7)
    found = {obs.name: obs.array() for obs in dump.observations}
    assert np.array_equal(found["layers.0.q"], A) and np.array_equal(found["layers.1.q"], B)


def test_offsets_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    text = "ids 5 7\nlayers.0.q f32 2x4 {:04}\nlayers.1.q f32 2x3 {:04}\nEND\n"
    n = len(text.format(0, 0))
    found = {o.name: o.array() for o in read_dump(written(tmp_path, text.format(n, n + 32))).observations}
    assert np.array_equal(found["layers.0.q"], A) and np.array_equal(found["layers.1.q"], B)


@pytest.mark.parametrize("change", ["short", "text", "log"])
def test_other_files(tmp_path: Path, change: str) -> None:
    path = written(tmp_path, TEXTS["pairs"])
    if change == "short":
        path.write_bytes(path.read_bytes()[:-4])
    elif change == "text":
        path.write_text(TEXTS["pairs"])
    else:
        path.write_bytes(b"layer 0 out: 0.5 1.5\nlayer 1 out: 0.5 1.5\n\0\0")
    assert not is_headed_raw(path)
