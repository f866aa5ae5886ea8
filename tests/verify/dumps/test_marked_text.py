"""Dumps and logs that Windows PowerShell saved: every reader of text reads UTF-16 and marked UTF-8 like UTF-8."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.load import load_dump, read_dump, read_map
from assay.verify.dumps.observation import Dump
from tests.verify.conftest import TOKENS
from tests.verify.dumps.test_eval_callback import print_like_llamacpp

DATA = Path(__file__).parents[2] / "data"
ARRAY = {"name": "l_out-0", "shape": [2, 2], "data": [0.5, 1.25, -2.5, 3.75]}
SAVED = {
    "a log": (DATA / "logs" / "note1.txt").read_text("utf-8"),
    "JSON lines": '{"assay_dump": 1, "tokens": [1, 2]}\n{"name": "l_out-0", "rms": 1.25}\n',
    "arrays of JSON": "".join(json.dumps({**ARRAY, "name": f"l_out-{i}"}) + "\n" for i in range(3)),
    "a table": "# tokens: 1 2 3\n" + "".join(f"{i},{i}.5,{i}.25,{i}.125\n" for i in range(3)),
    "a table of tensors": (DATA / "importers" / "numeric_gap.csv").read_text("utf-8"),
    "a tree of calls": (DATA / "importers" / "debug_tree_FULL_TENSORS.json").read_text("utf-8"),
}
MARKS = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff", "utf-8": b"\xef\xbb\xbf"}


def said(dump: Dump) -> tuple[object, ...]:
    values = [o.array().tolist() if callable(o.data) else o.data for o in dump.observations]
    names = [(o.name, o.side, o.row, o.kind) for o in dump.observations]
    return dump.tokens, names, values, len(dump.unread), replace(dump, observations=(), unread=()).notes


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("kind", SAVED)
def test_the_encoding_does_not_matter(kind: str, encoding: str, tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain" / "dump.txt", tmp_path / "marked" / "dump.txt"
    for path, data in ((plain, SAVED[kind].encode()), (marked, MARKS[encoding] + SAVED[kind].encode(encoding))):
        path.parent.mkdir()
        path.write_bytes(data)
    expected = read_dump(plain)
    assert said(read_dump(marked)) == said(expected)
    assert expected.observations or expected.unread


def test_an_eval_callback_in_utf_16(model: Model, truth: Dump, tmp_path: Path) -> None:
    path = print_like_llamacpp(truth, model, tmp_path / "dump.txt")
    expected = said(load_dump(path, model, tokens=TOKENS))
    path.write_text(path.read_text("utf-8"), "utf-16")
    assert said(load_dump(path, model, tokens=TOKENS)) == expected


def test_a_map_in_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"h0": "l_out-0"}', "utf-16")
    assert read_map(path) == {"h0": "l_out-0"}


@pytest.mark.parametrize(
    ("data", "name"),
    [(b"GGUF\3\0\0\0" + bytes(90), "a GGUF model"), (b"\x1f\x8b\x08\0" + bytes(90), "a gzip file"),
     (b"\x89PNG\r\n\x1a\n\0\0", "a PNG picture"),
     (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer")],
)  # fmt: skip
def test_what_is_no_dump_is_named(data: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "given.log"
    path.write_bytes(data)
    with pytest.raises(AssayError, match=rf"given.log: is {name}.*\(expected a log or a dump\); .*assay diagnose"):
        read_dump(path)
