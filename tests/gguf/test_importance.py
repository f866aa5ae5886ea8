"""Importance matrices: both formats, against llama.cpp's layout, and a quantised file that follows one."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli import main
from assay.engines.contract import Chunk, pages_for
from assay.errors import AssayError
from assay.evaluate import importance_sums
from assay.evaluate.importance_sums import collect
from assay.evaluate.pieces import TextWindow
from assay.gguf import codecs, open_file
from assay.gguf.importance import Importance, ImportanceEntry, read, write
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.runtime.opening import Opened, OpenOptions
from tests import tiny
from tests.models import others

MATRIX = Importance(
    {
        "blk.0.attn_q.weight": ImportanceEntry(np.arange(1, 5, dtype=np.float32)[None] * 8, np.array([8], np.float32)),
        "blk.0.ffn_up_exps.weight": ImportanceEntry(np.ones((3, 4), np.float32), np.array([2, 0, 4], np.float32)),
    },
    chunks=2, chunk_size=4, datasets=("text.txt",),
)  # fmt: skip


def same(a: Importance, b: Importance) -> None:
    assert a.entries.keys() == b.entries.keys()
    for name, entry in a.entries.items():
        np.testing.assert_allclose(entry.means.reshape(-1), b.entries[name].means.reshape(-1), rtol=1e-6)


def test_gguf_as_llamacpp_lays_it_out(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", MATRIX)
    found = read(tmp_path / "m.gguf")
    same(found, MATRIX)
    assert (found.chunks, found.chunk_size, found.datasets) == (2, 4, ("text.txt",))
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert tensors["blk.0.ffn_up_exps.weight.in_sum2"].shape.tolist() == [4, 3]
    assert tensors["blk.0.ffn_up_exps.weight.counts"].shape.tolist() == [1, 3]


def test_the_older_form(tmp_path: Path) -> None:
    write(tmp_path / "m.dat", MATRIX)
    same(read(tmp_path / "m.dat"), MATRIX)
    raw = (tmp_path / "m.dat").read_bytes()
    assert struct.unpack("<ii19sii", raw[:35]) == (2, 19, b"blk.0.attn_q.weight", 2, 4)
    np.testing.assert_array_equal(np.frombuffer(raw[35:51], "<f4"), [2, 4, 6, 8])  # means times calls


@given(st.binary(max_size=80))
def test_any_bytes_give_a_matrix_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "x.dat"
    path.write_bytes(data)
    try:
        read(path)
    except AssayError as error:
        assert path.name in str(error)


def test_of_another_model() -> None:
    assert MATRIX.of("blk.9.attn_q.weight", (4, 4)) is None
    with pytest.raises(AssayError, match="another model"):
        MATRIX.of("blk.0.attn_q.weight", (4, 5))


def test_from_a_text_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The matrix holds the mean squares of what each matrix multiplies, and the file that is quantised with it is
    nearer where they are large."""
    model = tiny.make(tmp_path / "f32.gguf", n_embd=256, n_ff=256)
    text = tmp_path / "text.txt"
    text.write_text("hello world the word in on a " * 60)
    matrix = tmp_path / "m.gguf"
    assert main(["imatrix", str(model), "-f", str(text), "-o", str(matrix), "--window", "64", "--chunks", "2"]) == 0
    found = read(matrix)
    assert len(found.entries) == 2 * 7
    assert {int(e.counts[0]) for e in found.entries.values()} == {128}
    capsys.readouterr()
    losses = []
    name = "blk.1.ffn_down.weight"
    with open_file(model) as file:
        weights = found.of(name, file.tensors[name].shape)
        assert weights is not None
        for importance in (None, found):
            quantize(file, tmp_path / "out.gguf", mix_by_name("Q3_K_S"), importance=importance)
            with open_file(tmp_path / "out.gguf") as out:
                assert out.tensors[name].type.name == "Q3_K"
                losses.append(float(np.sum(weights * np.square(out.decode(name) - file.decode(name)))))
    assert losses[1] < losses[0]


def test_experts_are_weighed_each_by_their_own(tmp_path: Path) -> None:
    model = tiny.make(tmp_path / "f32.gguf", n_embd=256, n_ff=256, n_expert=4, n_expert_used=2)
    text = tmp_path / "text.txt"
    text.write_text("hello world the word in on a " * 60)
    assert main(["imatrix", str(model), "-f", str(text), "-o", str(tmp_path / "m.gguf"), "--window", "64"]) == 0
    found = read(tmp_path / "m.gguf")
    entry = found.entries["blk.0.ffn_down_exps.weight"]
    assert entry.sums.shape[0] == len(entry.counts) == 4
    assert entry.counts.sum() == 2 * found.chunks * found.chunk_size
    with open_file(model) as file:
        quantize(file, tmp_path / "out.gguf", mix_by_name("Q2_K"), importance=found)
        with open_file(tmp_path / "out.gguf") as out:
            name = "blk.0.ffn_down_exps.weight"
            kind = out.tensors[name].type
            assert kind.name == "Q3_K"
            for i, means in enumerate(entry.means):
                expected = codecs.encode(kind, file.decode(name)[i], means)
                np.testing.assert_array_equal(out.raw(name)[i], expected)


def test_keys_and_values_count_tokens_by_what_is_seen_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sum against its definition, token by token, on the reference engine; and the file follows it."""
    model = tiny.make(tmp_path / "f32.gguf", n_embd=256, n_ff=256)
    ids = np.array([1, *np.random.default_rng(2).integers(3, 259, 47)], np.int32)
    pieces = [TextWindow(0, ids, 0, 1), TextWindow(1, ids[::-1].copy(), 0, 1)]
    options = OpenOptions("cpu", "exact", ctx_size=64)
    found = collect(Opened(open_file(model), options).engine(), pieces)
    assert {n for n, e in found.entries.items() if e.seen is not None} == {
        f"blk.{i}.attn_{part}.weight" for i in (0, 1) for part in "kv"
    }
    reference = Opened(open_file(model), OpenOptions("reference", ctx_size=64)).engine()
    name = "blk.1.attn_v.weight"
    (input_,) = (node.inputs[0] for node in reference.graph if name in node.weights)
    expected = np.zeros(256)
    for piece in pieces:
        pages = np.arange(pages_for(len(ids)), dtype=np.int32)
        nodes = reference.forward([Chunk(piece.tokens, 0, pages, "all")], {input_, "kq_soft_max-1"})[0].nodes
        share = np.square(nodes["kq_soft_max-1"].astype(np.float64)).sum(axis=(0, 1))
        assert share[0] > 3 * share.mean()  # no token is seen by more than the first
        for s in range(len(ids)):
            expected += share[s] / share.mean() * np.square(nodes[input_][s].astype(np.float64))
    entry = found.entries[name]
    assert entry.seen is not None
    np.testing.assert_allclose(entry.seen[0], expected, rtol=1e-4)
    assert np.abs(entry.seen / entry.sums - 1).max() > 0.1  # another matrix than llama.cpp's

    monkeypatch.setattr(importance_sums, "HELD", 1)  # a softmax at a time
    again = collect(Opened(open_file(model), options).engine(), pieces).entries[name]
    np.testing.assert_array_equal(again.seen, entry.seen)
    np.testing.assert_array_equal(again.sums, entry.sums)

    for form, kept in (("m.gguf", entry.seen), ("m.dat", entry.sums)):  # the older form has no place for it
        write(tmp_path / form, found)
        weights = read(tmp_path / form).of(name, (128, 256))
        np.testing.assert_allclose(weights, kept / entry.counts, rtol=1e-6)
    with open_file(model) as file:
        quantize(file, tmp_path / "out.gguf", mix_by_name("Q2_K"), importance=read(tmp_path / "m.gguf"))
        with open_file(tmp_path / "out.gguf") as out:
            kind = out.tensors[name].type
            encoded = [codecs.encode(kind, file.decode(name), w[0]) for w in (entry.weights, entry.means)]
            np.testing.assert_array_equal(out.raw(name), encoded[0])
            assert (encoded[0] != encoded[1]).any()


def test_second_sums_of_another_size_are_refused(tmp_path: Path) -> None:
    ones = np.ones((1, 4), np.float32)
    entry = ImportanceEntry(ones, np.ones(1, np.float32), np.ones((1, 3), np.float32))
    write(tmp_path / "m.gguf", Importance({"blk.0.attn_v.weight": entry}))
    with pytest.raises(AssayError, match="two sums"):
        read(tmp_path / "m.gguf")


def test_fused_and_latent_attention() -> None:
    """A matrix that makes queries too has the plain sum only; keys and values from one latent matrix share theirs."""

    def stems(arch: str) -> set[str]:
        with tempfile.TemporaryDirectory() as folder:
            others.make(arch, Path(folder) / "m.gguf")
            graph = Opened(open_file(Path(folder) / "m.gguf"), OpenOptions("reference", ctx_size=64)).engine().graph
        return {name.split(".")[2] for name in importance_sums.attended(graph)}

    assert stems("falcon") == set()
    assert stems("deepseek2") == {"attn_kv_a_mqa"}
    assert stems("gemma3") == {"attn_k", "attn_v"}


def test_the_smallest_types_ask_for_a_matrix(tmp_path: Path) -> None:
    model = tiny.make(tmp_path / "f32.gguf", n_embd=256, n_ff=256)
    with open_file(model) as file, pytest.raises(AssayError, match="assay imatrix"):
        quantize(file, tmp_path / "out.gguf", mix_by_name("IQ2_XS"))
    assert not (tmp_path / "out.gguf").exists()
