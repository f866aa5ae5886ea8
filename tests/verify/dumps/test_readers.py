"""Every format gives the same values; any bytes give a dump or a clear error."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.dumps.reader_table import DumpReader, DumpSource, register_reader, unregister_reader
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS, changed
from tests.verify.dumps.writing import HEADER, arrays, as_folder, as_json, as_npz, as_raw, as_safetensors, lines


@pytest.mark.parametrize("write", [as_json, as_raw, as_npz, as_folder, as_safetensors])
def test_every_format_gives_the_same_values(
    model: Model, truth: Dump, tmp_path: Path, write: Callable[[Dump, Path], Path]
) -> None:
    dump = load_dump(write(truth, tmp_path), model)
    assert dump.tokens == tuple(TOKENS) and not dump.unmatched and not dump.notes
    for name, value in arrays(truth).items():
        assert np.array_equal(np.asarray(dump.values(name), np.float32), value), name
    assert judge(model, dump).verdict == "same"


BAD_LINES: dict[str, tuple[list[Any], str]] = {
    "no header": ([{"name": "embd", "rms": 1.0}], "begin the file with a header line"),
    "other version": ([{**HEADER, "assay_dump": 9}], "version 9"),
    "no tokens": ([{"assay_dump": 1}], "tokens must be a list"),
    "token text": ([{**HEADER, "tokens": ["a"]}], "whole numbers"),
    "positions": ([{**HEADER, "positions": [0]}], "1 positions for 6 tokens"),
    "phase": ([{**HEADER, "phase": "warmup"}], "phase must be"),
    "begins in the middle": ([{**HEADER, "tokens": [5], "positions": [7], "phase": "decode"}], "tokens before it"),
    "no name": ([HEADER, {"rms": 1.0}], 'no "name"'),
    "says nothing": ([HEADER, {"name": "embd"}], "holds no observation"),
    "unknown field": ([HEADER, {"name": "embd", "avg": 1}], "unknown field 'avg'"),
    "wrong count": ([HEADER, {"name": "embd", "shape": [6, 64], "values": [1.0, 2.0]}], "2 values for shape"),
    "wrong shape": ([HEADER, {"name": "embd", "shape": [6, 63], "values": [0.5] * 378}], "does not fit embd"),
    "ragged": ([HEADER, {"name": "embd", "values": [[1.0], [1.0, 2.0]]}], "nested evenly"),
    "row": ([HEADER, {"name": "embd", "row": 6, "rms": 1.0}], "row 6 is outside"),
    "index": ([HEADER, {"name": "embd", "row": 0, "at": [[64, 1.0]]}], "index 64 is outside the 64"),
    "pairs": ([HEADER, {"name": "embd", "at": [[1.5, 1.0]]}], "pairs"),
    "text": ([HEADER, {"name": "embd", "rms": "big"}], "rms: not a number"),
    "twice": ([HEADER, {"name": "embd", "rms": 1.0}, {"name": "embd", "rms": 2.0}], "given before"),
    "ten gigabytes": ([HEADER, {"name": "embd", "shape": [50000, 50000], "values": [1.0]}], "1 values for shape"),
    "ten gigabytes in a file": ([HEADER, {"name": "embd", "shape": [50000, 50000], "file": "x.bin"}], "no such file"),
    "outside": ([HEADER, {"name": "embd", "shape": [1], "file": "../x"}], "beside the dump"),
    "other vocabulary": ([{**HEADER, "tokens": [1, 99999]}, {"name": "embd", "rms": 1.0}], "another model"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_lines(model: Model, tmp_path: Path, case: str) -> None:
    items, message = BAD_LINES[case]
    with pytest.raises(AssayError, match=re.escape(message)) as error:
        load_dump(lines(tmp_path / "d.jsonl", *items), model)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("write", [as_json, as_npz, as_safetensors])
def test_not_a_number_is_named(model: Model, truth: Dump, tmp_path: Path, write: Any) -> None:
    def spoil(value: np.ndarray) -> None:
        value[2, 5] = np.nan

    told = load_dump(write(changed(truth, "ffn_up-0", spoil), tmp_path), model).not_finite
    assert told is not None and (told.node, told.what, told.count, told.size) == ("ffn_up-0", "NaN", 1, 576)
    assert told.at == (2, 5) and told.row == 2


@pytest.mark.parametrize("write", [as_json, as_npz, as_safetensors])
def test_truncated_files(model: Model, truth: Dump, tmp_path: Path, write: Callable[[Dump, Path], Path]) -> None:
    path = write(truth, tmp_path)
    data = path.read_bytes()
    for keep in (0.02, 0.5, 0.99):
        path.write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(AssayError):
            judge(model, load_dump(path, model))


def test_claims_of_ten_gigabytes(model: Model, tmp_path: Path) -> None:
    header = np.lib.format.header_data_from_array_1_0(np.zeros(1, np.float32)) | {"shape": (50000, 50000)}
    with open(tmp_path / "embd.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(64))
    np.save(tmp_path / "tokens.npy", np.array(TOKENS))
    with pytest.raises(AssayError, match="claims 10000000000 bytes"):
        load_dump(tmp_path, model)
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.write(tmp_path / "embd.npy", "embd.npy")
        archive.write(tmp_path / "tokens.npy", "tokens.npy")
    with pytest.raises(AssayError, match="claims 10000000000 bytes"):
        load_dump(tmp_path / "d.npz", model)
    entry = {"embd": {"dtype": "F32", "shape": [50000, 50000], "data_offsets": [0, 10**10]}}
    text = json.dumps(entry).encode()
    (tmp_path / "d.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with pytest.raises(AssayError, match="claims 10000000000 bytes"):
        load_dump(tmp_path / "d.safetensors", model)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_dump_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    for name in ("fuzz.jsonl", "fuzz.npz", "fuzz.safetensors", "fuzz.log"):
        path = path.with_name(name)
        path.write_bytes(data)
        try:
            read_dump(path)
        except AssayError as error:
            assert "\n" not in str(error)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["name", "shape", "values", "first", "at", "rms", "top", "row", "file", "dtype", "tokens", "positions", "phase",
         "assay_dump"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(_JSON, max_size=4))
def test_any_json_gives_a_dump_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, items: list[Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_text(json.dumps(HEADER) + "\n" + "".join(json.dumps(i) + "\n" for i in items))
    try:
        read_dump(path)
    except AssayError as error:
        assert "\n" not in str(error)


def test_another_package_adds_a_format(tmp_path: Path) -> None:
    """A row with a test of the first bytes and a function is all that a new format needs."""
    (tmp_path / "x.frob").write_bytes(b"FROB l_out-0 1.5")

    def read(source: DumpSource) -> Dump:
        _, name, value = source.head.decode().split()
        return Dump("frob", (1,), (0,), (1,), (Observation(name, "rms", float(value)),), str(source.path))

    with pytest.raises(AssayError):
        read_dump(tmp_path / "x.frob")
    reader = DumpReader("frob", 95, lambda source: source.head.startswith(b"FROB"), read)
    register_reader(reader)
    try:
        assert [o.summary for o in read_dump(tmp_path / "x.frob").observations] == ["l_out-0 rms 1.5"]
        with pytest.raises(ValueError, match="is taken by 'frob'"):
            register_reader(reader)
    finally:
        unregister_reader("frob")
