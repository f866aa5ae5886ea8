"""The reader against gguf-py on real files, and against the writer in every dialect."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import TYPES, Tensor, Typed, ValueType, Writer, by_name, open_file, write
from assay.gguf.cursor import Cursor

REAL = [
    "models/stories260K-f32.gguf",
    "models/stories15M-q8_0.gguf",
    "vocab/ggml-vocab-llama-spm.gguf",
    pytest.param("vocab/ggml-vocab-llama-bpe.gguf", marks=pytest.mark.slow),  # gguf-py takes seconds
]


@pytest.mark.parametrize("name", REAL)
def test_reads_what_gguf_py_reads(shared_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_dir / "data" / name
    with monkeypatch.context() as plain:  # it cuts a slice for every string, and slices of a memory map are slow
        plain.setattr(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8))
        peer = gguf.GGUFReader(path)
    file = open_file(path)
    fields = {k: f for k, f in peer.fields.items() if not k.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        value = file.metadata[key]
        assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents(), key
    assert list(file.tensors) == [t.name for t in peer.tensors]
    for tensor in peer.tensors:
        info = file.tensors[tensor.name]
        assert info.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (info.type.id, info.offset, info.nbytes) == (
            tensor.tensor_type,
            tensor.data_offset,
            tensor.n_bytes,
        )
        assert file.raw(tensor.name).tobytes() == tensor.data.tobytes()


def test_the_type_table_is_ggml_s() -> None:
    from gguf.constants import GGML_QUANT_SIZES

    peer = {int(t): (t.name, *GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType}
    peer[9] = ("Q8_1", 32, 36)  # gguf-py still has the float32 scales that ggml's block_q8_1 gave up
    assert peer.items() <= {t.id: (t.name, t.block_size, t.type_size) for t in TYPES.values()}.items()
    for type_ in TYPES.values():
        assert type_.layout is None or np.dtype(type_.layout).itemsize == type_.type_size, type_
        assert by_name(type_.name.lower()) is type_


def test_opening_decodes_no_vocabulary(shared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> list[str]:
        raise AssertionError("decoded strings that the caller did not ask for")

    monkeypatch.setattr(Cursor, "strings", forbidden)
    file = open_file(shared_dir / "data" / "vocab" / "ggml-vocab-llama-bpe.gguf")
    assert file.metadata.length("tokenizer.ggml.tokens") == 128256
    assert file.get_str("general.architecture") == "llama"
    with pytest.raises(AssertionError):
        file.metadata["tokenizer.ggml.tokens"]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from([b"", b"\0" * 7, b"\0" * 30, b"x" * 255, b"y" * 256, b"\1" + b"\0" * 7]),
        ),
        max_size=80,
    ),
    st.sampled_from(["<", ">"]),
    st.binary(max_size=9),
)
@settings(max_examples=150)
def test_strings_are_found_whatever_is_in_them(items: list[bytes], order: str, rest: bytes) -> None:
    data = b"".join(struct.pack(order + "Q", len(s)) + s for s in items)
    cursor = Cursor("x", data + rest or b"\0", order)
    found: list[np.ndarray] = []
    cursor._walk_strings(len(items), "x", found)
    assert cursor.pos == len(data)
    offsets = [int(at) for part in found for at in part]
    assert [data[at + 8 : at + 8 + len(s)] for at, s in zip(offsets, items, strict=True)] == items
    cursor.pos = 0
    with pytest.raises(AssayError):
        cursor._walk_strings(len(items) + 2, "x")


def test_many_strings_over_several_windows() -> None:
    items = [f"token {i}" if i % 1000 else "long " * 100 for i in range(150_000)]
    data = b"".join(struct.pack("<Q", len(s)) + s.encode() for s in items)
    assert len(data) > 2 << 20
    assert Cursor("x", data, "<").strings(len(items), "x") == items


METADATA = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.float": 0.5,
    "a.int": -7,
    "a.big": 1 << 40,
    "a.strings": ["a", "", "é" * 200],
    "a.floats": np.array([1.5, -2.5], np.float32),
    "a.bools": [True, False],
    "a.nested": [["x"], ["y", "z"]],
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_every_dialect_means_the_same(tmp_path: Path, version: int, byteorder: str) -> None:
    rng = np.random.default_rng(0)
    blocks = {
        t.name: rng.integers(0, 256, (3, 2 * t.type_size), np.uint8) for t in TYPES.values() if t.layout is not None
    }
    tensors = [Tensor(n, (3, 2 * by_name(n).block_size), by_name(n), b) for n, b in blocks.items()]
    path = tmp_path / "x.gguf"
    Writer(version, byteorder).write(path, METADATA, tensors)
    with open_file(path) as file:
        assert (file.version, file.byteorder) == (version, byteorder)
        assert file.get_int("a.big") == 1 << 40
        assert file.get_array("a.strings", kind=str) == METADATA["a.strings"]
        assert file.get_array("a.floats", kind=float).tolist() == [1.5, -2.5]
        assert file.metadata["a.nested"] == [["x"], ["y", "z"]]
        for name, data in blocks.items():
            assert file.raw(name).tobytes() == data.tobytes(), name
            assert file.tensors[name].shape == (3, 2 * by_name(name).block_size)


def test_big_endian_numbers_from_gguf_py_decode_right(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_file(path)
    assert file.byteorder == "big"
    assert np.array_equal(file.decode("f32"), values)
    assert np.array_equal(file.decode("f16"), values.astype(np.float16).astype(np.float32))


def test_a_big_endian_type_without_definition_is_refused(tmp_path: Path) -> None:
    data = np.zeros(66, np.uint8)
    with pytest.raises(AssayError, match="IQ2_XXS has no defined big-endian form"):
        Writer(byteorder="big").write(tmp_path / "x", {}, [Tensor("t", (256,), by_name("IQ2_XXS"), data)])


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write(path, {}, [Tensor("t", (2,), by_name("F32"), np.array([1, 2], np.float32))])
    with open_file(path) as file:
        raw = file.raw("t")
    assert raw.view(np.float32).tolist() == [1, 2]
    assert not raw.flags.writeable
    with pytest.raises(AssayError, match="closed"):
        file.raw("t")
    with pytest.raises(AssayError, match="no such tensor"):
        file.raw("nothing")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.get_int("a.float"), "a.float: wrong type .found float32, expected integer"),
        (lambda f: f.get_int("a.bool"), "a.bool: wrong type .found bool, expected integer"),
        (lambda f: f.get_int("a.none"), "a.none: the file lacks this key"),
        (lambda f: f.get_int("a.strings", 3), "found array of 3 string, expected integer"),
        (lambda f: f.get_float("a.int"), "found int32, expected float"),
        (lambda f: f.get_float("a.nan"), "a.nan: not a finite number"),
        (lambda f: f.get_bool("a.int"), "found int32, expected bool"),
        (lambda f: f.get_str("a.int"), "found int32, expected string"),
        (lambda f: f.get_array("a.int"), "found int32, expected array of integer"),
        (lambda f: f.get_array("a.floats"), "found array of 2 float32, expected array of integer"),
        (lambda f: f.get_array("a.floats", kind=str), "expected array of string"),
    ],
)
def test_getters_check_types(tmp_path: Path, call: object, message: str) -> None:
    path = tmp_path / "x.gguf"
    write(path, METADATA | {"a.nan": float("nan")})
    file = open_file(path)
    with pytest.raises(AssayError, match=message):
        call(file)  # type: ignore[operator]
    assert file.get_int("a.none", None) is None
    assert file.get_array("a.none", (), kind=str) == ()
    assert file.get_int("a.int") == -7


def split(folder: Path, change: dict[int, dict[str, object]] | None = None, count: int = 3) -> list[Path]:
    """A model of `count` parts, two tensors each; `change` overrides metadata of a part."""
    paths = []
    for no in range(count):
        metadata: dict[str, object] = {
            "split.no": Typed(ValueType.UINT16, no),
            "split.count": Typed(ValueType.UINT16, count),
            "split.tensors.count": Typed(ValueType.INT32, 2 * count),
        }
        if no == 0:
            metadata |= {"general.architecture": "llama"}
        metadata |= (change or {}).get(no, {})
        prefix = metadata.pop("prefix", f"p{no}")
        tensors = [Tensor(f"{prefix}.{i}", (4,), by_name("F32"), np.full(4, 10 * no + i, np.float32)) for i in (0, 1)]
        paths.append(folder / f"m-{no + 1:05}-of-{count:05}.gguf")
        write(paths[-1], metadata, tensors)
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole_model(tmp_path: Path, opened: int) -> None:
    file = open_file(split(tmp_path)[opened])
    assert list(file.tensors) == ["p0.0", "p0.1", "p1.0", "p1.1", "p2.0", "p2.1"]
    assert file.get_str("general.architecture") == "llama"
    assert file.decode("p2.1").tolist() == [21] * 4
    assert file.tensors["p1.0"].part == 1
    assert file.size == sum(p.stat().st_size for p in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: {"split.no": 2}}, "m-00002-of-00003.gguf: split.no: disagrees with the file name .found 2, expected 1"),
        ({1: {"split.count": 4}}, "split.count: disagrees"),
        ({1: {"split.count": "3"}}, "split.count: wrong type"),
        ({2: {"split.tensors.count": 7}}, "split.tensors.count: disagrees with the parts .found 7"),
        ({1: {"prefix": "p0"}}, "p0.0: the tensor is also in m-00001-of-00003.gguf"),
        ({2: {"general.alignment": 64}}, "alignment: disagrees with part 1 .found 64, expected 32"),
    ],
)
def test_parts_that_disagree(tmp_path: Path, change: dict[int, dict[str, object]], message: str) -> None:
    paths = split(tmp_path, change)
    with pytest.raises(AssayError, match=message):
        open_file(paths[0])


def test_parts_that_are_missing_or_misnamed(tmp_path: Path) -> None:
    paths = split(tmp_path)
    renamed = tmp_path / "model.gguf"
    paths[1].rename(renamed)
    with pytest.raises(AssayError, match="part 2 of 3 is missing"):
        open_file(paths[2])
    with pytest.raises(AssayError, match="one of 3 parts but is not named so"):
        open_file(renamed)
    alone = tmp_path / "n-00001-of-00002.gguf"
    write(alone, {})
    with pytest.raises(AssayError, match=r"split.count: the file lacks this key"):
        open_file(alone)
