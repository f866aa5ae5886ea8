"""What other tools write: real files of PyTorch, transformers, ONNX and MLX, made once from one tiny model.

`tests/data/importers` holds them: the model of `tiny_model` run in transformers with five tokens. The folders of sglang
and Neuron are files of `torch.save` under the names and in the structure that these tools give them; ONNX Runtime's are
TensorProtos that the onnx package serialised.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.formats.folders import file_tags
from assay.verify.dumps.formats.module_names import REWRITINGS, module_name
from assay.verify.dumps.formats.pickle_data import PickledObject, PickleError, read_pickle
from assay.verify.dumps.formats.tensor_text import printed_tensor
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.judge.verdict import judge
from tests import tiny

FILES = Path(__file__).parents[2] / "data" / "importers"
IDS = (1, 260, 270, 12, 265)


def tiny_model(folder: Path, seed: int = 1) -> Model:
    path = folder / f"{seed}.gguf"
    return load(open_file(tiny.make(path, n_embd=32, n_ff=32, n_head=4, n_head_kv=2, tied=False, seed=seed)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """The model of the files, and one with other weights."""
    folder = tmp_path_factory.mktemp("importers")
    return tiny_model(folder), tiny_model(folder, 2)


READ = {  # file: nodes that are found, verdict
    "hooks.pt": (23, {"embd", "l_out-0", "Qcur_proj-1", "ffn_out-0", "result_output"}, "same"),
    "debug_tree_FULL_TENSORS.json": (28, {"ffn_inp-0", "kqv_out-1", "l_out-1", "result_output"}, "same"),
    "sglang": (4, {"attn_out-0", "l_out-0", "attn_out-1", "l_out-1"}, "same"),
    "neuron": (2, {"ffn_out-0", "ffn_out-1"}, "same"),
    "ort": (4, {"attn_norm-0", "Qcur_proj-0", "ffn_up-0", "ffn_out-1"}, "same"),
    "numeric_gap.csv": (3, {"ffn_up-0", "ffn_out-0", "attn_norm-1"}, "same"),
    "mlx.npz": (2, {"ffn_up-1", "ffn_gate-1"}, "noise"),
    "mlx.safetensors": (2, {"ffn_up-1", "ffn_gate-1"}, "noise"),
}


@pytest.mark.parametrize("name", READ)
def test_real_files_are_read_and_right(models: tuple[Model, Model], name: str) -> None:
    count, some, verdict = READ[name]
    own_ids = read_dump(FILES / name).tokens
    assert own_ids in ((), IDS)
    dump = load_dump(FILES / name, models[0], tokens=() if own_ids else IDS)
    assert len(dump.by_name) == count and some <= set(dump.by_name), (list(dump.by_name), dump.unmatched)
    assert judge(models[0], dump).verdict == verdict
    if name != "numeric_gap.csv":  # whose names mean nothing: values decide, and these are no values of the other model
        assert judge(models[1], load_dump(FILES / name, models[1], tokens=() if own_ids else IDS)).verdict == "wrong"


def test_a_split_residual_stream_is_added(models: tuple[Model, Model]) -> None:
    dump = load_dump(FILES / "sglang", models[0])
    assert any("two parts" in note for note in dump.notes)
    hooks = load_dump(FILES / "hooks.pt", models[0])
    assert np.allclose(np.ravel(dump.values("l_out-0")), np.ravel(hooks.values("l_out-0")), atol=1e-5)


def test_a_database_is_read_as_the_files_are(models: tuple[Model, Model], tmp_path: Path) -> None:
    path = tmp_path / "execution-trace.db"
    with sqlite3.connect(path) as base:
        base.execute("create table Tensors (Step int, Name text, Value TensorProto, primary key (Step, Name))")
        names = {file.stem: file.read_bytes() for file in (FILES / "ort").iterdir()}
        for stem, data in names.items():
            name = "input_ids" if stem == "input_ids" else stem
            base.execute("insert into Tensors values (0, ?, ?)", (name, data))
    dump = read_dump(path)
    assert dump.tokens == IDS and len(dump.observations) == len(names) - 1
    with sqlite3.connect(tmp_path / "other.db") as base:
        base.execute(
            "create view Tensors as with recursive c(x) as (select 1 union all select x from c) select x from c"
        )
    with pytest.raises(AssayError, match="without the table Tensors"):
        read_dump(tmp_path / "other.db")


def test_every_type_stride_and_nesting() -> None:
    dump = read_dump(FILES / "types.pt")
    found = {obs.name: obs.array() for obs in dump.observations}
    expected = np.arange(-6, 6).reshape(3, 4)
    assert len([n for n in found if n.startswith("types.")]) == 15
    for name, value in found.items():
        if name.startswith("types.") and name != "types.bool":
            assert np.array_equal(value, np.abs(expected) if "uint" in name else expected), name
    assert np.array_equal(found["nested[0][0]"], expected.T) and found["nested[0][1].a"].tolist() == [[-2, 0], [2, 4]]
    assert "sparse" in dump.notes[0]


@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_in_a_pickle(protocol: int) -> None:
    dump = read_dump(FILES / f"numpy{protocol}.pkl")
    assert dump.tokens == (1, 2, 3)
    for obs in dump.observations:
        assert np.array_equal(obs.array(), np.arange(6).reshape(2, 3)), obs.name


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import pathlib; pathlib.Path('harm').touch()",))


def test_no_code_of_a_pickle_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 4, 5):
        found = read_pickle(pickle.dumps({"x": Harmful()}, protocol), {})
        assert isinstance(found["x"], PickledObject) and found["x"].made_by.endswith(".exec")
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"x": Harmful()}, 2))
    with pytest.raises(AssayError, match="holds no tensors"):
        read_dump(tmp_path / "x.pkl")
    assert not (tmp_path / "harm").exists()


def test_hostile_pickles_are_refused() -> None:
    deep = b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."
    assert read_pickle(deep, {}) is not None  # depth costs nothing
    assert read_pickle(b"\x80\x02N\x72\xff\xff\xff\x7f.", {}) is None  # a memo of two thousand million entries
    for data in (
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02a.",
        b"\x80\x02h\x05.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02Nb.",
    ):
        with pytest.raises(PickleError):
            read_pickle(data, {})
    with pytest.raises(PickleError, match="operations"):
        read_pickle(b"\x80\x02" + b"N0" * (1 << 20), {})


def broken(change: Any, path: Path) -> Path:
    """hooks.pt with its members changed."""
    with zipfile.ZipFile(FILES / "hooks.pt") as old, zipfile.ZipFile(path, "w") as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))
    return path


def test_damaged_torch_files(tmp_path: Path) -> None:
    short = broken(lambda n, d: d[: len(d) // 2] if "/data/" in n else d, tmp_path / "a.pt")
    with pytest.raises(AssayError, match=r"needs \d+ bytes of storage"):
        read_dump(short)
    cut = broken(lambda n, d: d[:-40] if n.endswith("data.pkl") else d, tmp_path / "b.pt")
    with pytest.raises(AssayError, match="cannot be read as data"):
        read_dump(cut)
    raw = (FILES / "hooks.pt").read_bytes()
    (tmp_path / "c.pt").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(AssayError):
        read_dump(tmp_path / "c.pt")


def test_steps_of_a_folder_are_joined(models: tuple[Model, Model], tmp_path: Path) -> None:
    """Step 0 and the same tokens again as step 1; a file of rank 1 is left out."""
    for file in (FILES / "sglang").iterdir():
        shutil.copy(file, tmp_path / file.name)
        shutil.copy(file, tmp_path / file.name.replace("step=0", "step=1"))
        shutil.copy(file, tmp_path / file.name.replace("rank=0", "rank=1"))
    dump = read_dump(tmp_path)
    assert dump.tokens == IDS * 2 and dump.steps == (5, 5)
    assert {(obs.rows, (obs.shape or ())[0]) for obs in dump.observations} == {(None, 10)}
    assert "ranks above 0" in dump.notes[0]
    for file in tmp_path.glob("*step=1*name=input_ids*"):
        file.unlink()
    assert read_dump(tmp_path).steps == (5,) and any("only the first" in note for note in read_dump(tmp_path).notes)


@pytest.mark.parametrize("row", REWRITINGS, ids=lambda row: row.example[0])
def test_wrapped_names(row: Any) -> None:
    import re

    written, meant = row.example
    assert re.sub(row.pattern, row.replacement, written) == meant
    assert module_name("model.layers.0.mlp") == "model.layers.0.mlp"


def test_file_names() -> None:
    tags = file_tags("forward_pass_id=3___rank=1___name=attn_out___dump_index=9___layer_id=4")
    assert (tags.name, tags.step, tags.rank) == ("layers.4.attn_out", 3, 1)
    tags = file_tags("captured_tensors_tkg_step_2_module_layers.1.mlp.gate_output")
    assert (tags.name, tags.step) == ("layers.1.mlp.gate_output", 2)
    assert file_tags("l_out-0").name == "l_out-0"


def test_printed_tensors() -> None:
    cut = printed_tensor("tensor([[0, 1, 2, ..., 7, 8, 9]], dtype=torch.int32)", (1, 10))
    assert cut is not None and cut.index == (0, 1, 2, 7, 8, 9) and not cut.whole
    whole = printed_tensor("tensor([[1., 2.],\n        [3e-1, nan]], device='cuda:0')")
    assert whole is not None and whole.shape == (2, 2) and whole.texts == ("1.", "2.", "3e-1", "nan")
    assert all(printed_tensor(text) is None for text in ("1.0 2.0", "tensor(]1.0[)", "tensor([[1.0)", "tensor()"))
    assert printed_tensor("tensor([1., 2.])", (3,)) is None and printed_tensor("tensor([[1], [2, 3]])") is None


def test_saved_logits(models: tuple[Model, Model], tmp_path: Path) -> None:
    """`llama-debug --save-logits`: raw logits of the last token beside raw ids."""
    logits = load_dump(FILES / "hooks.pt", models[0]).values("result_output")
    assert logits is not None
    np.asarray(logits[-1], "<f4").tofile(tmp_path / "llamacpp-tiny.bin")
    np.asarray(IDS, "<i4").tofile(tmp_path / "llamacpp-tiny-tokens.bin")
    for path in (tmp_path, tmp_path / "llamacpp-tiny.bin"):
        dump = load_dump(path, models[0])
        assert dump.tokens == IDS and judge(models[0], dump).verdict == "same"


def test_a_gap_table_that_is_cut_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "gap.csv"
    path.write_text('aot_ops,runtime_intermediate_output,gap\n"[a]","tensor([1.0, ..., 2.0])",0\n')
    with pytest.raises(AssayError, match="set_printoptions"):
        read_dump(path)


def test_trees_that_are_no_trees(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for tree in (
        {"module_path": 1},
        {"module_path": "a", "children": 5},
        {"module_path": "a", "outputs": {"shape": "x"}},
    ):
        path.write_text(json.dumps(tree))
        with pytest.raises(AssayError, match="no values"):
            read_dump(path)
    outside = {"module_path": "m.norm", "outputs": {"shape": "[2]", "dtype": "torch.float32", "value": "../../x"}}
    path.write_text(json.dumps(outside))
    with pytest.raises(AssayError, match="is missing"):
        read_dump(path)


def test_arrays_without_a_type_are_bfloat16(tmp_path: Path) -> None:
    """MLX and ml_dtypes write bfloat16 as two bytes without a type."""
    values = np.array([1.0, -2.5, 0.0], np.float32)
    made = io.BytesIO()
    np.save(made, (values.view(np.uint32) >> 16).astype("<u2"))
    (tmp_path / "x.npy").write_bytes(made.getvalue().replace(b"'<u2'", b"'<V2'"))
    np.save(tmp_path / "tokens.npy", np.array(IDS))
    assert read_dump(tmp_path).observations[0].array().tolist() == values.tolist()
