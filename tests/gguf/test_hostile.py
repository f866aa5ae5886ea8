"""Bad files, one by one: every class of fault that real loaders have fallen to ends in one clear line.

The bytes are laid by hand here, not by the writer, which refuses to write most of them. Memory is bounded by a
test of its own; time by the sizes: each of these files is a few hundred bytes, so whatever believed one of
its counts would not come back.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import open_file

U8, I8, U32, I32, F32, BOOL, STR, ARR, U64 = 0, 1, 4, 5, 6, 7, 8, 9, 10
MAX = (1 << 64) - 1
Q4_0, Q8_0, TYPE_I8 = 2, 8, 24


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def string(s: bytes | str) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return u64(len(raw)) + raw


def pair(key: bytes | str, type_: int, value: bytes) -> bytes:
    return string(key) + u32(type_) + value


def array(item: int, count: int, items: bytes = b"") -> bytes:
    return u32(item) + u64(count) + items


def tensor(
    name: bytes | str, dims: tuple[int, ...], type_: int = 0, offset: int = 0, n_dims: int | None = None
) -> bytes:
    count = len(dims) if n_dims is None else n_dims
    return string(name) + u32(count) + b"".join(map(u64, dims)) + u32(type_) + u64(offset)


def gguf(
    *pairs: bytes,
    tensors: tuple[bytes, ...] = (),
    data: bytes = bytes(256),
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    head = b"GGUF" + u32(version)
    head += u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def aligned(type_: int, value: bytes) -> bytes:
    return gguf(pair("general.alignment", type_, value), tensors=(tensor("t", (8,)),))


def nested(depth: int) -> bytes:
    return array(ARR, 1) * depth + array(U8, 1, b"\0")


TINY = gguf(
    pair("general.architecture", STR, string("llama")),
    pair("n", U32, u32(7)),
    pair("tokens", ARR, array(STR, 3, string("a") + string("") + string("é"))),
    pair("scores", ARR, array(F32, 2, struct.pack("<2f", 1, 2))),
    tensors=(tensor("a", (8, 2)), tensor("b", (32,), Q8_0, 64)),
    data=bytes(64 + 34),
)

BAD = {
    # class of fault: (bytes, part of the message)
    "empty": (b"", "the file is empty"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "wrong magic": (b"GGML" + bytes(64), "not a GGUF file .found first bytes b'GGML'"),
    "html page": (b"<!DOCTYPE html><html>", "not a GGUF file"),
    "version 0": (gguf(version=0), "version 0 is not supported"),
    "version 1": (gguf(version=1), "version 1 is not supported"),
    "version 4": (gguf(version=4), "version 4 is not supported"),
    "1: pair count wraps": (gguf(n_pairs=MAX), "key-value count: impossible count .found 18446744073709551615"),
    "1: pair count times size wraps": (gguf(n_pairs=(1 << 64) // 40 + 1), "key-value count: impossible count"),
    "1: pair count beyond the file": (gguf(n_pairs=1000), "key-value count: impossible count"),
    "2: tensor count wraps": (gguf(n_tensors=MAX), "tensor count: impossible count"),
    "2: tensor count times overhead wraps": (gguf(n_tensors=(1 << 64) // 376 + 1), "tensor count: impossible"),
    "3: five dimensions": (gguf(tensors=(tensor("t", (1,) * 5),)), "t: too many dimensions .found 5"),
    "3: endless dimensions": (gguf(tensors=(tensor("t", (1,), n_dims=2**32 - 1),)), "too many dimensions"),
    "4: key length 2^64-1": (gguf(u64(MAX) + b"k", n_pairs=1), "key 0 of 1: impossible length"),
    "4: key longer than the file": (gguf(u64(60000) + b"k", n_pairs=1), "key 0 of 1: the file ends too early"),
    "4: string length 2^64-1": (gguf(pair("k", STR, u64(MAX))), "k: the file ends too early"),
    "4: string length 2^63": (gguf(pair("k", STR, u64(1 << 63))), "k: the file ends too early"),
    "4: array count 2^64-1": (gguf(pair("k", ARR, array(U8, MAX))), "k: impossible count"),
    "4: array count times size wraps": (gguf(pair("k", ARR, array(U64, 1 << 61))), "k: impossible count"),
    "4: string count 2^61": (gguf(pair("k", ARR, array(STR, 1 << 61))), "k: impossible count"),
    "4: strings beyond the file": (gguf(pair("k", ARR, array(STR, 30)), data=b"\7" * 300), "file ends too early"),
    "4: strings end short": (gguf(pair("k", ARR, array(STR, 2, string("abc"))), data=b""), "k: "),
    "4: nested without end": (gguf(pair("k", ARR, nested(1000))), "k: arrays are nested more than 4 deep"),
    "4: nested count": (gguf(pair("k", ARR, array(ARR, 1 << 60))), "k: impossible count"),
    "5: sum of padded sizes wraps": (
        gguf(tensors=(tensor("a", (2**62,), TYPE_I8), tensor("b", (2**62,), TYPE_I8, 2**62))),
        "a: the data reach beyond the end of the file",
    ),
    "6: overhead plus size wraps": (gguf(tensors=(tensor("t", (2**63 - 32,), TYPE_I8),)), "reach beyond the end"),
    "7: bytes of a quantised tensor wrap": (
        gguf(tensors=(tensor("t", (32, 2**59), Q4_0),)),
        "t: the data reach beyond the end",
    ),
    "8: padding wraps to 0": (gguf(tensors=(tensor("t", (2**64 - 1,), TYPE_I8),)), "reach beyond the end"),
    "9: dimension 0": (gguf(tensors=(tensor("t", (8, 0)),)), "t: a dimension is 0 .shape .0, 8."),
    "9: row of 0": (gguf(tensors=(tensor("t", (0, 8), Q8_0),)), "t: a dimension is 0"),
    "10: dims (2^63-1, 2)": (gguf(tensors=(tensor("t", (2**63 - 1, 2), TYPE_I8),)), "reach beyond the end"),
    "11: alignment 0": (aligned(U32, u32(0)), "general.alignment: impossible .found 0"),
    "11: alignment 3": (aligned(U32, u32(3)), "general.alignment: impossible .found 3"),
    "11: alignment 2^31": (aligned(U32, u32(1 << 31)), "general.alignment: impossible"),
    "11: alignment a string": (aligned(STR, string("32")), "general.alignment: wrong type .found string"),
    "11: alignment 64 bits": (aligned(U64, u64(32)), "general.alignment: wrong type .found uint64"),
    "11: alignment an array": (aligned(ARR, array(U32, 1, u32(32))), "general.alignment: wrong type"),
    "12: product wraps to small": (
        gguf(tensors=(tensor("t", (2**32, 2**32, 1)),)),
        "t: the data reach beyond the end of the file",
    ),
    "12: product wraps to 4": (gguf(tensors=(tensor("t", (2**32 + 1, 2**32 - 1, 4)),)), "reach beyond the end"),
    "12: offset 2^32": (gguf(tensors=(tensor("t", (8,), 0, 1 << 32),)), "t: the data reach beyond the end"),
    "13: one byte beyond the end": (gguf(tensors=(tensor("t", (64,)),), data=bytes(255)), "256 bytes at 64"),
    "13: offset plus size wraps": (gguf(tensors=(tensor("t", (8,), 0, MAX - 31),)), "reach beyond the end"),
    "offset not aligned": (
        gguf(tensors=(tensor("t", (8,), 0, 4),)),
        "t: offset 4 is not a multiple of the alignment 32",
    ),
    "unknown value type": (gguf(pair("k", 13, u64(0))), "k: unknown value type .found 13"),
    "unknown array type": (gguf(pair("k", ARR, array(77, 1, u64(0)))), "unknown value type .found 77"),
    "unknown tensor type": (gguf(tensors=(tensor("t", (8,), 999),)), "t: tensor type 999 is unknown"),
    "withdrawn tensor type": (gguf(tensors=(tensor("t", (32,), 31),)), "type 31 is the withdrawn Q4_0_4_4"),
    "key twice": (gguf(pair("k", U8, b"\0"), pair("k", U8, b"\0")), "k: the key appears twice"),
    "tensor twice": (
        gguf(tensors=(tensor("t", (8,)), tensor("t", (8,), 0, 32))),
        "t: the tensor appears twice",
    ),
    "tensors overlap": (
        gguf(tensors=(tensor("a", (16,)), tensor("b", (8,), 0, 32))),
        "b: overlaps a .begins at 128, which ends at 160",
    ),
    "tensors in the same place": (gguf(tensors=(tensor("a", (8,)), tensor("b", (8,)))), "overlaps"),
    "row not whole blocks": (gguf(tensors=(tensor("t", (33,), Q8_0),)), "t: a row of 33 elements is not a whole"),
    "key of escapes": (gguf(pair("a\n\x1b[2J", 13, b"\0")), r"a\\n\\x1b\[2J: unknown value type"),
    "key of 60,000 bytes": (gguf(pair("k" * 60_000, 13, b"\0")), "k…k+: unknown value type"),
    "key not UTF-8": (gguf(pair(b"\xff", U8, b"\0")), "not valid UTF-8 .byte 0xff"),
    "tensor name not UTF-8": (gguf(tensors=(tensor(b"\xc3", (8,)),)), "not valid UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(AssayError, match=message) as caught:
        open_file(path)
    text = str(caught.value)
    assert "\n" not in text and "bad.gguf" in text


BAD_VALUES = {
    # found when the caller reads the value
    "14: block count a string": (pair("k", STR, string("22")), "get_int", "found string, expected integer"),
    "14: block count a float": (pair("k", F32, struct.pack("<f", 22)), "get_int", "found float32"),
    "14: epsilon NaN": (pair("k", F32, struct.pack("<f", np.nan)), "get_float", "not a finite number"),
    "15: scores of the wrong type": (pair("k", ARR, array(I32, 1, u32(0))), "get_float", "array of 1 int32"),
    "bool 2": (pair("k", BOOL, b"\2"), "get_bool", "not a bool .found byte 2"),
    "bools 0 and 9": (pair("k", ARR, array(BOOL, 2, b"\0\x09")), "metadata", "not a bool .found byte 9"),
    "string not UTF-8": (pair("k", STR, string(b"ab\xff")), "get_str", "k: not valid UTF-8 .byte 0xff at 2"),
    "element not UTF-8": (pair("k", ARR, array(STR, 1, string(b"\xff"))), "metadata", "an element is not valid"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_value(tmp_path: Path, name: str) -> None:
    data, getter, message = BAD_VALUES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(gguf(data))
    file = open_file(path)
    with pytest.raises(AssayError, match=message):
        file.metadata["k"] if getter == "metadata" else getattr(file, getter)("k")


def test_sixteen_bit_truths_are_not_narrowed(tmp_path: Path) -> None:
    """Row 16: a token longer than 65,535 bytes and more than 65,535 tokens come back whole."""
    tokens = ["x" * 70_000, *map(str, range(70_000))]
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf(pair("t", ARR, array(STR, len(tokens), b"".join(map(string, tokens))))))
    assert open_file(path).get_array("t", kind=str) == tokens


def read_everything(path: Path) -> None:
    file = open_file(path)
    for key in file.metadata:
        file.metadata[key]
        file.metadata.describe(key)
    for name, info in file.tensors.items():
        assert file.raw(name).nbytes == info.nbytes


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(TINY)
    read_everything(path)
    for length in range(len(TINY)):
        path.write_bytes(TINY[:length])
        with pytest.raises(AssayError):
            read_everything(path)


INTERESTING = st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80", bytes(8), b"\xff" * 8, u64(1 << 63), u64(9), u32(9)])
EDITS = st.lists(
    st.tuples(st.integers(0, len(TINY) - 1), st.one_of(st.binary(min_size=1, max_size=8), INTERESTING)),
    min_size=1,
    max_size=5,
)


@given(EDITS, st.booleans())
@settings(max_examples=400)
def test_any_bytes_give_a_model_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]], insert: bool
) -> None:
    data = bytearray(TINY)
    for at, new in edits:
        data[at : at if insert else at + len(new)] = new
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(data)
    try:
        read_everything(path)
    except AssayError as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_random_bytes_after_a_good_header(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz2.gguf"
    for counts in (u64(0) + u64(1), u64(1) + u64(0), b""):
        path.write_bytes(b"GGUF" + u32(3) + counts + tail)
        try:
            read_everything(path)
        except AssayError as error:
            assert str(error).startswith("fuzz2.gguf: ")


def test_memory_stays_small(tmp_path: Path) -> None:
    """No count in a bad file is believed: refusing all of them takes less than a megabyte each."""
    path = tmp_path / "bad.gguf"
    for name, (data, _) in BAD.items():
        path.write_bytes(data)
        tracemalloc.start()
        with pytest.raises(AssayError):
            open_file(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20, name


def test_a_million_empty_strings_are_walked(tmp_path: Path) -> None:
    """The string array that is slowest to walk, in a sparse file."""
    path = tmp_path / "zeros.gguf"
    head = gguf(pair("k", ARR, array(STR, 1 << 20)), data=b"")
    with open(path, "wb") as out:
        out.write(head[: 24 + 8 + 1 + 4 + 12])
        out.truncate(len(head) + (8 << 20))
    assert open_file(path).metadata.length("k") == 1 << 20


def test_strings_are_counted_over_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many arrays, each within its limit, are no way round the limit."""
    monkeypatch.setattr("assay.gguf.cursor.MAX_STRINGS", 5)
    path = tmp_path / "many.gguf"
    three = array(STR, 3, string("x") * 3)
    path.write_bytes(gguf(pair("a", ARR, three)))
    assert open_file(path).get_array("a", kind=str) == ["x"] * 3
    path.write_bytes(gguf(pair("a", ARR, three), pair("b", ARR, three)))
    with pytest.raises(AssayError, match="b: more than 5 strings and arrays"):
        open_file(path)


def test_things_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="no such file"):
        open_file(tmp_path / "none.gguf")
    with pytest.raises(AssayError, match="is a directory"):
        open_file(tmp_path)
    with pytest.raises(AssayError, match="cannot be opened"):
        open_file("a\0b.gguf")
    with pytest.raises(AssayError, match=r"cannot be opened .file name too long"):
        open_file("x" * 5000)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(AssayError, match="not a regular file"):
        open_file(tmp_path / "pipe.gguf")
    with pytest.raises(AssayError, match="not a regular file"):
        open_file("/dev/null")


def test_a_split_name_cannot_lead_elsewhere(tmp_path: Path) -> None:
    """Row 22: the other parts are looked for beside the named one, and nowhere else."""
    folder = tmp_path / "inner"
    folder.mkdir()
    path = folder / "..-00001-of-99999.gguf"
    path.write_bytes(TINY)
    with pytest.raises(AssayError, match=r"split.count: the file lacks this key"):
        open_file(path)
