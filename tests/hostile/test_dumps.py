"""Dumps of every format that lie about themselves: one line, before anything large is read or computed."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hostile.conftest import Bounded, bounded, one_line

HEADER = {"assay_dump": 1, "tokens": [1, 5, 6]}


def lines(*items: Any) -> bytes:
    return "\n".join(json.dumps(item) for item in (HEADER, *items)).encode()


def npy(header: str, data: bytes = bytes(64)) -> bytes:
    text = header.encode() + b" " * 8 + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, flags: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    raw = bytearray(out.getvalue())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while flags and (start := raw.find(mark, start)) >= 0:
            raw[start + at] |= flags
            start += 4
    return bytes(raw)


def safetensors(header: Any, data: bytes = bytes(64)) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def damaged(raw: bytes) -> bytes:
    at = raw.index(b".npy") + 30
    return raw[:at] + bytes(b ^ 0xFF for b in raw[at : at + 40]) + raw[at + 40 :]


F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s,), }"
TOKENS = npy("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", np.array([1, 5, 6]).tobytes())
CASES: dict[str, tuple[str, bytes | Callable[[], bytes]]] = {
    "an index that is true": ("x.jsonl", lines({"name": "embd", "at": [[True, 1.0]]})),
    "an index of 10^30": ("x.jsonl", lines({"name": "embd", "at": [[10**30, 1.0]]})),
    "a shape of true": ("x.jsonl", lines({"name": "embd", "shape": [True], "values": [1.0]})),
    "a shape of 10^400": ("x.jsonl", lines({"name": "embd", "shape": [10**400], "rms": 1.0})),
    "a dtype that is a list": ("x.jsonl", lines({"name": "embd", "file": "a", "dtype": ["f32"], "shape": [1]})),
    "a number of 400 digits": ("x.jsonl", lines({"name": "embd", "rms": 10**400})),
    "a first of 400 digits": ("x.jsonl", lines({"name": "embd", "first": [10**400]})),
    "values of 400 digits": ("x.jsonl", lines({"name": "embd", "values": [10**400]})),
    "a file that is no file": ("x.jsonl", lines({"name": "embd", "file": "\0", "shape": [1]})),
    "a file outside": ("x.jsonl", lines({"name": "embd", "file": "../x", "shape": [1]})),
    "an escape in a name": ("x.jsonl", lines({"name": "\x1b]0;a\x07", "nonsense": 1})),
    "a hundred thousand tokens": ("x.jsonl", json.dumps({"assay_dump": 1, "tokens": [1] * 100_000}).encode()
                                  + b'\n{"name": "embd", "rms": 1.0}'),
    "eight thousand tokens": ("x.jsonl", json.dumps({"assay_dump": 1, "tokens": [1] * 8192}).encode()
                              + b'\n{"name": "l_out-0", "rms": 1.0}'),
    "encrypted": ("x.npz", npz({"tokens": TOKENS}, zipfile.ZIP_STORED, flags=1)),
    "compressed another way": ("x.npz", npz({"tokens": TOKENS}, zipfile.ZIP_BZIP2)),
    "damaged": ("x.npz", damaged(npz({"tokens": TOKENS, "embd": npy(F4 % 16)}))),
    "a header of minus signs": ("x.npz", npz({"tokens": npy("-" * 30_000 + "1")})),
    "a header of brackets": ("x.npz", npz({"tokens": npy("(" * 30_000)})),
    "a shape of true in a header": ("x.npz", npz({"tokens": TOKENS, "embd": npy(F4 % "True")})),
    "a shape of names": ("x.npz", npz({"tokens": TOKENS, "embd": npy(F4 % "a")})),
    "a hundred axes": ("x.npz", npz({"tokens": TOKENS, "embd": npy(F4 % ", ".join("1" * 60))})),
    "objects": ("x.npz", npz({"tokens": npy(F4.replace("<f4", "|O") % 1)})),
    # Made when they are needed: every process of a run imports this file.
    "a bomb": ("x.npz", lambda: npz({"tokens": TOKENS, "embd": npy(F4 % 16_000_000, bytes(64_000_000))})),
    "a bomb of tokens": ("x.npz", lambda: npz({"tokens": npy(F4 % 16_000_000, bytes(64_000_000))})),
    "a hundred axes, safely": ("x.safetensors", safetensors(
        {"tokens": {"dtype": "I64", "shape": [1] * 101, "data_offsets": [0, 8]}})),
    "a dtype that is a number": ("x.safetensors", safetensors(
        {"tokens": {"dtype": 5, "shape": [1], "data_offsets": [0, 8]}})),
    "a shape that is true": ("x.safetensors", safetensors(
        {"tokens": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}})),
    "offsets that are text": ("x.safetensors", safetensors(
        {"tokens": {"dtype": "U8", "shape": [1], "data_offsets": "ab"}})),
    "escapes in names": ("x.safetensors", safetensors(
        {"\x1b[31mX": {"dtype": "F32", "shape": [7], "data_offsets": [0, 24]}})),
    "an eval callback without a shape": ("x.txt", b"ggml_debug:  a = (f32)  ADD(b) = {,}\n  [ 1.0, 2.0 ],\n"),
    "superscript digits": ("x.txt", "layer ¹ attn_norm rms=1.0\nlayer 0 rms=²\n".encode()),
}  # fmt: skip


@cache
def file_of(case: str) -> tuple[str, bytes]:
    """The name and the bytes of a case."""
    name, raw = CASES[case]
    return name, raw() if callable(raw) else raw


@pytest.mark.parametrize("case", CASES)
def test_one_line_from_both_verbs(here: Any, model: Path, tmp_path: Path, case: str) -> None:
    name, raw = file_of(case)
    (tmp_path / name).write_bytes(raw)
    for verb in ("diff", "diagnose"):
        one_line(here(verb, model, tmp_path / name))


@pytest.mark.parametrize("case", ["a bomb", "a bomb of tokens", "a hundred thousand tokens", "eight thousand tokens"])
def test_what_is_refused_costs_nothing(assay: Bounded, model: Path, tmp_path: Path, case: str) -> None:
    name, raw = file_of(case)
    (tmp_path / name).write_bytes(raw)
    assert len(raw) < 1 << 20
    one_line(assay("diff", model, tmp_path / name, memory=64 << 20))


def test_a_read_only_cache_is_no_error_and_a_wrong_one_is_not_believed(model: Path, tmp_path: Path) -> None:
    dump = tmp_path / "t.safetensors"
    home = tmp_path / "home"
    run = ("-m", "assay")
    assert bounded(*run, "trace", model, "--tokens", "1,5,6", "-o", dump, ASSAY_HOME=str(home)).returncode == 0
    first = bounded(*run, "diff", model, dump, "--json", ASSAY_HOME=str(home))
    assert first.returncode == 0, first.stderr[-500:]
    kept = [path for path in home.rglob("*") if path.is_file()]
    assert kept, "the noise is remembered"
    assert not list(home.rglob("hashes/*")), "a hash is never taken from a note"
    for content in (b"", b"\x93NUMPY", kept[0].read_bytes()[:-8], bytes(len(kept[0].read_bytes()))):
        for path in kept:
            path.write_bytes(content)
        again = bounded(*run, "diff", model, dump, "--json", ASSAY_HOME=str(home))
        assert again.returncode == 0 and again.stdout == first.stdout
    sealed = tmp_path / "file"
    sealed.write_text("no folder can be made here")
    last = bounded(*run, "diff", model, dump, "--json", ASSAY_HOME=str(sealed))
    assert last.returncode == 0 and last.stdout == first.stdout, last.stderr[-500:]
