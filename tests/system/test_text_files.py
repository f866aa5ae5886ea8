"""Text that others saved: byte order marks are honoured, and what is no text is refused by name."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.system.file_kinds import is_text, kind_of, marked_encoding
from assay.system.text_files import as_utf8, decode_text, open_text, read_text

WORDS = "layer 0 out: rms=1.0312 “ﬁrst” 中文 😀\nPrompt: Привет\n"
MARKED = {
    "utf-8": b"\xef\xbb\xbf", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0", "utf-32-be": b"\0\0\xfe\xff",
}  # fmt: skip


def archive(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(name, "x")
    return out.getvalue()


def arrays(*, several: bool) -> bytes:
    out = io.BytesIO()
    (np.savez if several else np.save)(out, np.zeros(3))
    return out.getvalue()


def tensors() -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


# What a file is, and whether it could be a text to read.
FILES = {
    "GGUF model": b"GGUF\3\0\0\0" + bytes(40),
    "GGML file": b"lmgg\1\0\0\0" + bytes(40),
    "safetensors file": tensors(),
    "PyTorch checkpoint": archive("archive/data.pkl"),
    "zip archive": archive("model.gguf"),
    "NumPy archive": arrays(several=True),
    "NumPy array": arrays(several=False),
    "pickle": pickle.dumps({"a": 1}),
    "gzip file": gzip.compress(b"layer 0"),
    "PNG picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "PDF document": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n",
    "ONNX model": b"\x08\x09\x12\x07pytorch\x1a\x052.1.0:\xff\xff",
    "file of zeros": bytes(100),
    "SQLite database": b"SQLite format 3\0" + bytes(20),
}


@pytest.mark.parametrize("encoding", MARKED)
def test_a_byte_order_mark_states_the_encoding(encoding: str, tmp_path: Path) -> None:
    data = MARKED[encoding] + WORDS.encode(encoding)
    assert decode_text(data, "x") == WORDS
    assert as_utf8(data) == WORDS.encode()
    path = tmp_path / "saved.txt"
    path.write_bytes(MARKED[encoding] + WORDS.replace("\n", "\r\n").encode(encoding))
    assert read_text(path) == WORDS
    with open_text(path) as file:
        assert [line.decode().rstrip() for line in file] == WORDS.splitlines()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=200))
def test_text_is_text_in_every_encoding(text: str) -> None:
    assert decode_text(text.encode(), "x", lenient=True) == text or not is_text(text.encode())
    if text.isprintable():
        for encoding, mark in MARKED.items():
            data = mark + text.encode(encoding)
            assert decode_text(data, "x") == text
            assert as_utf8(data) == text.encode()


def test_a_long_file_is_recoded_in_pieces(tmp_path: Path) -> None:
    lines = [f"{i} 😀" * (i % 90) for i in range(4000)]
    path = tmp_path / "long.txt"
    path.write_bytes(b"\xff\xfe" + "\n".join(lines).encode("utf-16-le"))
    with open_text(path) as file:
        assert file.read().decode().split("\n") == lines


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_text_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "given.txt"
    path.write_bytes(FILES[name])
    for read in (read_text, open_text):
        with pytest.raises(AssayError, match=rf"given.txt: is an? .*{name}.* \(expected a log\); print one$"):
            read(path, "a log; print one")  # type: ignore[operator]


def test_a_text_may_begin_like_a_binary_file() -> None:
    """A log of a loader begins with GGUF, and a comment with MZ."""
    for text in (b"GGUF version 3\nlayer 0: 1.5", b"MZ is a name", b"BZh91AY", b"%PDF-less", b"PK\n"):
        assert decode_text(text, "x") == text.decode()


def test_a_wrong_byte_does_not_make_a_text_binary() -> None:
    """A page or JSON in Latin-1 is a text with a wrong byte, not another kind of file."""
    for text in (b"<html>caf\xe9", b'{"a": "caf\xe9"}', b"from caf\xe9"):
        assert decode_text(text, "x", lenient=True) == text.decode("utf-8", "replace")
        with pytest.raises(AssayError, match="not valid UTF-8"):
            decode_text(text, "x")


def test_numbers_are_not_taken_for_marked_text() -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1, 100):
        for _ in range(50):
            data = b"\xff\xfe" + (rng.normal(size=200) * scale).astype("<f4").tobytes()
            assert marked_encoding(data) == ("utf-8", 0)


def test_a_pointer_of_git_lfs_is_neither_a_model_nor_a_text() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
    kind = kind_of(pointer)
    assert kind is not None and "git lfs pull" in kind.advice
    with pytest.raises(AssayError, match="Git LFS pointer"):
        decode_text(pointer, "x")


def test_wrong_bytes_name_their_place() -> None:
    with pytest.raises(AssayError, match=r"x: not valid UTF-8 \(byte 0xe9 at offset 3\); save it as UTF-8"):
        decode_text(b"caf\xe9", "x")
    with pytest.raises(AssayError, match=r"x: not valid UTF-16 \(byte 0x00 at offset 4\)"):
        decode_text(b"\xff\xfea\0\0\xd8", "x")
    assert decode_text(b"caf\xe9", "x", lenient=True) == "caf\ufffd"
