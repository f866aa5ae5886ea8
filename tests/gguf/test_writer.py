"""The writer against the own reader and against gguf-py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import TYPES, Tensor, Typed, ValueType, by_name, open_file, write
from assay.gguf.types import SCALARS
from assay.gguf.writer import infer

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0x7FF), min_size=1, max_size=30)


def scalar(type_: ValueType) -> st.SearchStrategy[Any]:
    code = SCALARS[type_]
    if type_ is ValueType.BOOL:
        return st.booleans()
    if code[0] == "f":
        return st.floats(width=8 * int(code[1]), allow_nan=False)
    limits = np.iinfo(code)
    return st.integers(int(limits.min), int(limits.max))


typed_scalars = st.one_of(
    text.map(lambda s: Typed(ValueType.STRING, s)),
    *(scalar(t).map(lambda v, t=t: Typed(t, v)) for t in SCALARS),
)
typed_arrays = st.one_of(
    st.lists(text, max_size=9).map(lambda s: Typed(ValueType.ARRAY, s, ValueType.STRING)),
    *(st.lists(scalar(t), max_size=9).map(lambda v, t=t: Typed(ValueType.ARRAY, v, t)) for t in SCALARS),
)
shapes = st.lists(st.integers(1, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    out = []
    for name in draw(st.lists(names, max_size=4, unique=True)):
        type_ = draw(
            st.sampled_from([t for t in TYPES.values() if t.name not in ("Q8_1", "Q2_0")])
        )  # the peer does not read these
        shape = (*draw(shapes), type_.block_size * draw(st.integers(1, 2)))
        seed = draw(st.integers(0, 99))
        size = int(np.prod(shape)) // type_.block_size * type_.type_size
        data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
        out.append(Tensor(name, shape, type_, data.tobytes() if seed % 2 else lambda data=data: data))
    return out


@given(
    metadata=st.dictionaries(names.map("k.".__add__), st.one_of(typed_scalars, typed_arrays), max_size=6),
    table=tensors(),
    alignment=st.sampled_from([None, 1, 8, 32, 256]),
)
@example(metadata={"k.0": Typed(ValueType.ARRAY, [], ValueType.STRING)}, table=[], alignment=None)
@settings(max_examples=120)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, Typed],
    table: list[Tensor],
    alignment: int | None,
) -> None:
    path = tmp_path_factory.mktemp("w") / "x.gguf"
    extra = {} if alignment is None else {"general.alignment": Typed(ValueType.UINT32, alignment)}
    write(path, metadata | extra, table)
    file = open_file(path)
    assert list(file.metadata) == [*metadata, *extra]
    for key, typed in metadata.items():
        assert file.metadata.types(key) == (typed.type, typed.item)
        value = file.metadata[key]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == typed.value
    peer = gguf.GGUFReader(path)
    for key, typed in metadata.items():
        if typed.value != []:  # gguf-py cannot give the contents of an empty array
            assert peer.fields[key].contents() == typed.value
    assert [t.name for t in peer.tensors] == list(file.tensors) == [t.name for t in table]
    for tensor, theirs in zip(table, peer.tensors, strict=True):
        ours = file.tensors[tensor.name]
        assert (ours.shape, ours.type) == (tensor.shape, tensor.type)
        assert ours.offset == theirs.data_offset and ours.offset % (alignment or 32) == 0
        wanted = tensor.data() if callable(tensor.data) else tensor.data
        assert file.raw(tensor.name).tobytes() == theirs.data.tobytes() == bytes(wanted)


@pytest.mark.parametrize(
    ("value", "type_", "item"),
    [
        (True, ValueType.BOOL, None),
        (7, ValueType.UINT32, None),
        (-7, ValueType.INT32, None),
        (1 << 32, ValueType.UINT64, None),
        (-(1 << 40), ValueType.INT64, None),
        (0.5, ValueType.FLOAT32, None),
        ("x", ValueType.STRING, None),
        (np.float64(2), ValueType.FLOAT64, None),
        (np.uint8(2), ValueType.UINT8, None),
        (np.bool_(True), ValueType.BOOL, None),
        ([1, 2], ValueType.ARRAY, ValueType.INT32),
        ([1, 1 << 40], ValueType.ARRAY, ValueType.INT64),
        ([1, 2.5], ValueType.ARRAY, ValueType.FLOAT32),
        (["a"], ValueType.ARRAY, ValueType.STRING),
        ([True], ValueType.ARRAY, ValueType.BOOL),
        (np.zeros(2, ">i2"), ValueType.ARRAY, ValueType.INT16),
        ([["a"]], ValueType.ARRAY, ValueType.ARRAY),
    ],
)
def test_default_types(value: object, type_: ValueType, item: ValueType | None) -> None:
    typed = infer(value)
    assert (typed.type, typed.item) == (type_, item)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1 << 64, "no 64-bit integer"),
        (Typed(ValueType.UINT8, 256), "k: does not fit uint8"),
        (Typed(ValueType.UINT32, 1.0), "k: does not fit uint32"),
        (Typed(ValueType.BOOL, 1), "k: does not fit bool"),
        (Typed(ValueType.ARRAY, np.array([300]), ValueType.UINT8), "k: does not fit uint8"),
        (Typed(ValueType.STRING, 1), "cannot be written as string"),
        (Typed(ValueType.ARRAY, "abc", ValueType.STRING), "cannot be written as array"),
        (1e300, "does not fit float32"),
        (None, "no metadata type for NoneType"),
        (["a", 1], "elements of different types"),
    ],
)
def test_values_that_do_not_fit(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(AssayError, match=message):
        write(tmp_path / "x.gguf", {"k": value})
    assert list(tmp_path.iterdir()) == []


F32 = by_name("F32")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([Tensor("a", (2,), F32, b"\0" * 8)] * 2, "a: the tensor appears twice"),
        ([Tensor("a", (2,), F32, b"\0" * 9)], "9 bytes of data for shape .2. of F32 .expected 8"),
        ([Tensor("a", (2, 0), F32, b"")], "shape .2, 0."),
        ([Tensor("a", (1,) * 5, F32, b"\0" * 4)], "1 to 4 positive dimensions"),
        ([Tensor("a", (), F32, b"\0" * 4)], "1 to 4 positive dimensions"),
        ([Tensor("a" * 64, (1,), F32, b"\0" * 4)], "a name of 64 bytes"),
        ([Tensor("a", (33,), by_name("Q8_0"), b"")], "row of 33 elements"),
    ],
)
def test_tensors_that_cannot_be(tmp_path: Path, table: list[Tensor], message: str) -> None:
    with pytest.raises(AssayError, match=message):
        write(tmp_path / "x.gguf", {}, table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("alignment", [0, 3, 1 << 31, -8, Typed(ValueType.UINT64, 32), "32"])
def test_alignments_that_cannot_be(tmp_path: Path, alignment: object) -> None:
    with pytest.raises(AssayError, match=r"general.alignment"):
        write(tmp_path / "x.gguf", {"general.alignment": alignment})


def test_data_are_asked_for_one_at_a_time(tmp_path: Path) -> None:
    asked: list[str] = []

    def give(name: str) -> np.ndarray:
        asked.append(name)
        return np.ones(4, np.float32)

    table = [Tensor(n, (4,), F32, lambda n=n: give(n)) for n in "abc"]
    assert asked == []
    write(tmp_path / "x.gguf", {}, table)
    assert asked == ["a", "b", "c"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write(path, {"a": 1})
    before = path.read_bytes()

    def fail() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, {"a": 2}, [Tensor("t", (1,), F32, fail)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="is a directory"):
        write(tmp_path, {})
    with pytest.raises(AssayError, match=r"cannot be written .no such file or directory"):
        write(tmp_path / "none" / "x.gguf", {})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AssayError, match=r"cannot be written .not a directory"):
        write(tmp_path / "file" / "x.gguf", {})
    if os.path.exists("/dev/full") and os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(AssayError, match=r"cannot be written .permission denied"):
            write(tmp_path / "locked" / "x.gguf", {})


def test_a_real_model_survives_a_copy_byte_for_byte(stories260k: Path, tmp_path: Path) -> None:
    file = open_file(stories260k)
    table = [Tensor(t.name, t.shape, t.type, lambda n=n: file.raw(n)) for n, t in file.tensors.items()]
    write(tmp_path / "copy.gguf", {k: file.metadata.typed(k) for k in file.metadata}, table)
    assert (tmp_path / "copy.gguf").read_bytes() == stories260k.read_bytes()
