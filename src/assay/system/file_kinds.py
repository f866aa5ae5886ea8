"""Kinds of files by their first bytes: the name that an error uses, and what to do with it as a model.

A row of BINARY_KINDS and TEXT_KINDS is a test, a name with its article, and the advice where a GGUF model is expected.
The first row that takes the bytes decides. `is_text` says whether bytes are text of any encoding. `marked_encoding`
reads the byte order mark that Windows PowerShell and Notepad write.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HEAD = 4096  # bytes that decide
GGUF = b"GGUF"
_CONVERT = "convert the folder that it is in: assay convert FOLDER OUT.gguf"
_UNPACK = "unpack it and name the .gguf file in it"
_OTHER_MODEL = "get the model as GGUF, or as safetensors for `assay convert`"
_NO_MODEL = "name the .gguf file of a model"


@dataclass(frozen=True)
class FileKind:
    """`name`: with its article. `advice`: what to do where a model is expected."""

    takes: Callable[[bytes], object]
    name: str
    advice: str


def _starts(*marks: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(marks)


def _text(pattern: bytes) -> Callable[[bytes], object]:
    """A text that begins so, after a mark and blanks; upper and lower case are the same."""
    found = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,64}(?:" + pattern + rb")", re.IGNORECASE)
    return found.match


def _is_safetensors(head: bytes) -> bool:
    """The length of a JSON header, then the header."""
    return head[8:10] in (b'{"', b"{}", b"{ ") and 2 <= int.from_bytes(head[:8], "little") < 1 << 32


def _is_onnx(head: bytes) -> bool:
    """Protocol buffers: the version of the format, then the name of the program that wrote it."""
    return head[:1] == b"\x08" and head[1:2] < b"\x20" and head[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x3a")


BINARY_KINDS = (
    FileKind(lambda head: head[:4] == GGUF and not is_text(head), "a GGUF model", "give it as MODEL"),
    FileKind(
        lambda head: head[:4] in (b"lmgg", b"tjgg", b"fmgg", b"algg") and b"\0" in head,
        "a GGML file, the format before GGUF", _OTHER_MODEL,
    ),
    FileKind(_is_safetensors, "a safetensors file", _CONVERT),
    FileKind(
        lambda head: head[:4] == b"PK\3\4" and b"data.pkl" in head,
        "a PyTorch checkpoint", "get the model as GGUF, or save it as safetensors and run `assay convert`",
    ),
    FileKind(lambda head: head[:4] == b"PK\3\4" and b".npy" in head[:128], "a NumPy archive (.npz)", _NO_MODEL),
    FileKind(_starts(b"PK\3\4"), "a zip archive", _UNPACK),
    FileKind(
        lambda head: head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"),
        "a pickle, such as an old PyTorch checkpoint", _OTHER_MODEL,
    ),
    FileKind(_starts(b"\x1f\x8b"), "a gzip file", _UNPACK),
    FileKind(_starts(b"\xfd7zXZ\0"), "an xz file", _UNPACK),
    FileKind(_starts(b"\x28\xb5\x2f\xfd"), "a zstd file", _UNPACK),
    FileKind(_starts(b"7z\xbc\xaf\x27\x1c"), "a 7z archive", _UNPACK),
    FileKind(_starts(b"Rar!\x1a\7"), "a RAR archive", _UNPACK),
    FileKind(lambda head: head[:3] == b"BZh" and head[4:10] == b"1AY&SY", "a bzip2 file", _UNPACK),
    FileKind(lambda head: head[257:262] == b"ustar", "a tar archive", _UNPACK),
    FileKind(_starts(b"\x93NUMPY"), "a NumPy array (.npy)", _NO_MODEL),
    FileKind(_starts(b"\x89PNG\r\n"), "a PNG picture", "give a picture with --image FILE"),
    FileKind(_starts(b"\xff\xd8\xff"), "a JPEG picture", "give a picture with --image FILE"),
    FileKind(_starts(b"GIF87a", b"GIF89a"), "a GIF picture", "give a picture with --image FILE"),
    FileKind(lambda head: head[:4] == b"RIFF" and head[8:12] == b"WEBP", "a WebP picture",
             "give a picture with --image FILE"),
    FileKind(_starts(b"%PDF-"), "a PDF document", _NO_MODEL),
    FileKind(_starts(b"\x89HDF\r\n"), "an HDF5 file, such as a Keras model", _OTHER_MODEL),
    FileKind(_starts(b"SQLite format 3\0"), "an SQLite database", _NO_MODEL),
    FileKind(lambda head: head[4:8] == b"TFL3", "a TensorFlow Lite model", _OTHER_MODEL),
    FileKind(_starts(b"\x7fELF", b"MZ\x90\0"), "a program", _NO_MODEL),
    FileKind(_is_onnx, "an ONNX model", _OTHER_MODEL),
    FileKind(lambda head: len(head) > 3 and not any(head), "a file of zeros",
             "its download did not finish; download it again"),
)  # fmt: skip
TEXT_KINDS = (
    FileKind(
        _starts(b"version https://git-lfs.github.com/spec"),
        "a Git LFS pointer, which stands for a file that is not here",
        "run `git lfs pull` in its folder, or `assay pull hf:OWNER/REPO:FILE`",
    ),
    FileKind(_text(b"<!doctype html|<html"), "a web page",
             "the site sent a page, such as its login or an error; download the file itself"),
    FileKind(_text(rb"<\?xml|<error>"), "an XML document", "the site may have sent an error; download the file again"),
    FileKind(_text(rb'\{\s{0,64}"metadata"[^}]{0,400}"total_size'), "the index of a safetensors model", _CONVERT),
    FileKind(_text(rb'\{[^\0]{0,4000}"(?:architectures|model_type)"'), "the configuration of a model, without weights",
             _CONVERT),
    FileKind(_text(rb"(?:#[^\n]{0,400}\n\s{0,64}){0,32}from\s{1,8}\S"), "an Ollama Modelfile",
             "give the file or the name behind FROM"),
    FileKind(_text(rb"[{\[]"), "a JSON file", _NO_MODEL),
)  # fmt: skip
_POINTER = next(kind for kind in TEXT_KINDS if "LFS" in kind.name)


def kind_of(head: bytes) -> FileKind | None:
    """The kind of a file that begins so; None for text without a kind of its own, and for unknown bytes."""
    return next((kind for kind in BINARY_KINDS + TEXT_KINDS if kind.takes(head)), None)


def unlike_text(head: bytes) -> str:
    """The name of a file that is known to hold no text; empty for text, and for unknown bytes."""
    if is_text(head):
        return _POINTER.name if _POINTER.takes(head) else ""
    return next((kind.name for kind in BINARY_KINDS if kind.takes(head)), "")


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_MOST_STRANGE = 0.02  # share of a text's characters that have no form


def marked_encoding(head: bytes) -> tuple[str, int]:
    """The encoding that a byte order mark states, and the mark's length; UTF-8 and 0 without a mark.

    Numbers can begin with the bytes of a mark. As UTF-16 they have many characters without a form.
    """
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            text = codecs.getincrementaldecoder(encoding)("replace").decode(head[len(mark) : HEAD])
            strange = sum(not (c.isprintable() or c.isspace() or c == "\x1b") or c == "\ufffd" for c in text)
            if encoding == "utf-8" or strange <= _MOST_STRANGE * len(text):
                return encoding, len(mark)
    return "utf-8", 0


def is_text(head: bytes) -> bool:
    """Whether bytes are text: marked, or UTF-8 without NUL. The last character may be cut."""
    head = head[:HEAD]
    encoding, mark = marked_encoding(head)
    if mark and encoding != "utf-8":
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def first_bytes(path: Path) -> bytes:
    """The bytes of a file that decide its kind."""
    with open(path, "rb") as file:
        return file.read(HEAD)
