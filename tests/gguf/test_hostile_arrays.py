"""Metadata with very many small arrays and strings, and names with very many digits: bounded time, one line."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from assay import cli
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.cursor import MAX_DEPTH, MAX_INNER_ARRAYS, Cursor
from assay.gguf.mixes import layer_of
from assay.gguf.writer import Tensor, write
from assay.graph.names import split
from tests import tiny

DIGITS = "9" * 5000
EMPTY = struct.pack("<IQ", 0, 0)  # an array of no bytes


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items


def file_of(path: Path, value: bytes) -> Path:
    """A file with one key, whose value is an array."""
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"a.b") + struct.pack("<I", 9) + value)
    return path


@pytest.mark.parametrize("item", [EMPTY, array(8, 1, text(b"")), array(9, 2, EMPTY * 2)], ids=["empty", "text", "pair"])
def test_a_million_arrays_inside_an_array(tmp_path: Path, item: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path / "a.gguf", array(9, 1_000_000, item * 1_000_000))
    started = time.monotonic()
    assert cli.main(["inspect", "--fast", str(path)]) == 2
    assert time.monotonic() - started < 15, "it took half a minute on an idle machine before"
    error = capsys.readouterr().err
    assert f"a.gguf: a.b: too many arrays inside arrays (at most {MAX_INNER_ARRAYS})" in error
    assert error.count("\n") == 1


def test_arrays_inside_arrays_are_read(tmp_path: Path) -> None:
    value = array(9, 2, array(4, 2, struct.pack("<II", 1, 2)) + array(8, 2, text(b"x") + text(b"")))
    first, second = open_file(file_of(tmp_path / "a.gguf", value)).metadata["a.b"]
    assert first.tolist() == [1, 2] and second == ["x", ""]
    deep = EMPTY
    for _ in range(MAX_DEPTH):
        deep = array(9, 1, deep)
    with pytest.raises(AssayError, match="nested more than"):
        open_file(file_of(tmp_path / "b.gguf", deep))


@pytest.mark.parametrize("seed", range(8))
def test_strings_of_any_length_are_found(seed: int) -> None:
    """Runs of empty strings, short and long ones, in any order."""
    rng = np.random.default_rng(seed)
    lengths = [
        int(n) for run in range(40) for n in [rng.choice([0, 0, 1, 7, 255, 256, 300])] * int(rng.integers(1, 60))
    ]
    strings = ["é" * (n // 2) + "\0" * (n % 2) for n in lengths]
    data = b"".join(text(s.encode()) for s in strings)
    cursor = Cursor("a", data, "<")
    assert cursor.strings(len(strings), "a") == strings and cursor.pos == len(data)
    for cut in (1, 8, len(data) // 2):
        with pytest.raises(AssayError, match="ends too early"):
            Cursor("a", data[:-cut], "<").strings(len(strings) + (cut == 8), "a")


def test_a_layer_has_few_digits() -> None:
    assert layer_of("blk.12.x") == 12 and layer_of(f"blk.{DIGITS}.x") == -1
    assert split("l_out-7") == ("l_out", 7) and split(f"l_out-{DIGITS}") == (f"l_out-{DIGITS}", None)
    assert split(f"cache_k_l{DIGITS}")[1] is None


def test_a_tensor_with_thousands_of_digits_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.make(tmp_path / "a.gguf", n_layer=1, tied=False)
    given = open_file(path)
    tensors = [Tensor(t.name, t.shape, t.type, bytes(given.raw(t.name))) for t in given.tensors.values()]
    name = "blk.1" + "x" * 40
    extra = Tensor(name, tensors[-1].shape, tensors[-1].type, tensors[-1].data)
    metadata = {key: given.metadata.typed(key) for key in given.metadata}
    write(path, metadata, [*tensors, extra])
    long = f"blk.{DIGITS}.x".encode()
    data = path.read_bytes().replace(text(name.encode()), text(long))
    path.write_bytes(data[: data.index(long)] + data[data.index(long) :])
    for command in (["quantize", str(path), str(tmp_path / "b.gguf"), "Q8_0"], ["inspect", str(path)]):
        cli.main(command)
        error = capsys.readouterr().err
        assert "Traceback" not in error and all(len(line) < 1000 for line in error.splitlines())


@pytest.mark.parametrize("name", [f"l_out-{DIGITS}", f"model.layers.{DIGITS}.mlp", f"layer{DIGITS}_out", DIGITS])
@pytest.mark.parametrize("kind", ["npz", "jsonl", "log"])
def test_a_dump_with_thousands_of_digits(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.make(tmp_path / "a.gguf", n_layer=1)
    rows = np.linspace(-1, 1, 192, dtype=np.float32).reshape(3, 64)
    dump = tmp_path / f"d.{kind}"
    if kind == "npz":
        np.savez(dump, **{"tokens": np.array([1, 5, 6]), name: rows, "l_out-0": rows})  # type: ignore[arg-type]
    elif kind == "jsonl":
        lines = [{"assay_dump": 1, "engine": "x", "tokens": [1, 5, 6]}]
        lines += [{"name": n, "shape": [3, 64], "first": [0.1], "rms": 0.5} for n in (name, "l_out-0")]
        dump.write_text("\n".join(map(json.dumps, lines)) + "\n")
    else:
        dump.write_text(
            f"tokens: 1 5 6\n{name}: rms=0.5 first=[0.1, 0.2]\nl_out-0: rms=0.5\nlayer {DIGITS}\n  ffn_out: 0.1 0.2\n"
            f"[{DIGITS}] 0.1\nrow {DIGITS}: 0.1\ntoken {DIGITS} logit 0.5\nL{DIGITS}: 0.5\nshape=[{DIGITS},3]\n"
        )
    assert cli.main(["diff", str(model), str(dump)]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
