"""Reading strangers' dumps: formats, layouts, names; and a clear error for everything that is wrong with one."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.eval_callback import read_eval_callback
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.names import RULES, translate
from assay.verify.dumps.observation import Dump, from_hf, hf_order, to_hf
from assay.verify.dumps.safetensors import TensorWriter
from assay.verify.dumps.trace import take_trace, write_summary, write_trace
from assay.verify.judge.verdict import compare, judge
from tests import tiny
from tests.verify.conftest import NODES, TOKENS

HEADER = {"assay_dump": 1, "engine": "mine", "tokens": TOKENS}


def lines(path: Path, *items: Any) -> Path:
    path.write_text("".join(json.dumps(i) + "\n" for i in items))
    return path


def arrays(truth: Dump) -> dict[str, np.ndarray]:
    return {o.name: o.array().astype(np.float32) for o in truth.observations}


# -- formats --------------------------------------------------------------------------------------------------


def as_json(truth: Dump, folder: Path) -> Path:
    values = ({"name": n, "shape": list(v.shape), "values": v.ravel().tolist()} for n, v in arrays(truth).items())
    return lines(folder / "dump.jsonl", HEADER, *values)


def as_raw(truth: Dump, folder: Path) -> Path:
    items = []
    for name, value in arrays(truth).items():
        value.tofile(folder / f"{name}.bin")
        items.append({"name": name, "shape": list(value.shape), "file": f"{name}.bin", "dtype": "f32"})
    return lines(folder / "dump.jsonl", HEADER, *items)


def as_npz(truth: Dump, folder: Path) -> Path:
    np.savez_compressed(folder / "dump.npz", tokens=TOKENS, **arrays(truth))
    return folder / "dump.npz"


def as_folder(truth: Dump, folder: Path) -> Path:
    for name, value in {**arrays(truth), "tokens": np.array(TOKENS)}.items():
        np.save(folder / f"{name}.npy", value)
    return folder


def as_safetensors(truth: Dump, folder: Path) -> Path:
    save = pytest.importorskip("safetensors.numpy").save_file
    save({**arrays(truth), "tokens": np.array(TOKENS)}, folder / "dump.safetensors")
    return folder / "dump.safetensors"


@pytest.mark.parametrize("write", [as_json, as_raw, as_npz, as_folder, as_safetensors])
def test_every_format_gives_the_same_values(
    model: Model, truth: Dump, tmp_path: Path, write: Callable[[Dump, Path], Path]
) -> None:
    dump = load_dump(write(truth, tmp_path), model)
    assert dump.tokens == tuple(TOKENS) and not dump.unmatched and not dump.notes
    for name, value in arrays(truth).items():
        assert np.array_equal(np.asarray(dump.values(name), np.float32), value), name
    assert judge(model, dump).verdict == "same"


@pytest.mark.parametrize("decode", [0, 2])
def test_trace_file_round_trip(model: Model, tmp_path: Path, decode: int) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file

    path = tmp_path / "t.safetensors"
    write_trace(path, ReferenceEngine(model), TOKENS, decode=decode)
    dump, kept = load_dump(path, model), take_trace(ReferenceEngine(model), TOKENS, decode=decode)
    assert dump.steps == kept.steps == ((6,) if not decode else (4, 1, 1)) and dump.engine == "reference"
    plain = load_file(path)
    for name in kept.by_name:
        assert np.array_equal(dump.values(name), kept.values(name)), name
        assert np.array_equal(plain[name], kept.values(name)) and plain[name].dtype == np.float64
    assert not list(tmp_path.glob("*.part"))


def test_a_failed_trace_leaves_no_file(model: Model, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="outside the vocabulary"):
        write_trace(tmp_path / "t.safetensors", ReferenceEngine(model), [1, 10**6])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("decode", [0, 3])
def test_summary_is_a_dump(model: Model, tmp_path: Path, decode: int) -> None:
    path = tmp_path / "s.jsonl"
    with open(path, "w") as out:
        write_summary(out, ReferenceEngine(model, np.float32), TOKENS, decode=decode)
    dump = load_dump(path, model)
    assert dump.steps == ((6,) if not decode else (3, 1, 1, 1))
    assert {o.kind for o in dump.observations} == {"first", "rms", "mean", "min", "max", "sum", "top"}
    assert judge(model, dump).verdict == "same"


def test_steps_join(model: Model, tmp_path: Path) -> None:
    """Values given step by step become one tensor, scores over growing numbers of keys included."""
    whole = arrays(take_trace(ReferenceEngine(model), TOKENS, nodes=NODES))
    items: list[Any] = []
    for start, n in ((0, 4), (4, 1), (5, 1)):
        items.append({"assay_dump": 1, "tokens": TOKENS[start : start + n], "phase": "decode" if start else "prefill"})
        for name, value in whole.items():
            if name.startswith("kq") and not name.startswith("kqv_out"):
                value = value[:, start : start + n]
                value = value[..., : start + n] if not name.startswith("kqv") else value
            else:
                value = value[start : start + n]
            items.append({"name": name, "shape": list(value.shape), "values": value.ravel().tolist()})
    dump = load_dump(lines(tmp_path / "d.jsonl", *items), model)
    assert dump.steps == (4, 1, 1) and dump.tokens == tuple(TOKENS)
    assert dump.values("l_out-1") is not None and dump.values("kq-0") is not None
    assert judge(model, dump).verdict == "same"


# -- layouts --------------------------------------------------------------------------------------------------


def laid_out(model: Model, truth: Dump, tmp_path: Path, change: Callable[[str, np.ndarray], np.ndarray]) -> Dump:
    found = {name: change(name, value) for name, value in arrays(truth).items()}
    np.savez(tmp_path / "d.npz", tokens=TOKENS, **found)
    return load_dump(tmp_path / "d.npz", model)


@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("flat", lambda n, v: v.ravel()),
        ("batch axis", lambda n, v: v[None]),
        ("heads first", lambda n, v: v.transpose(1, 0, 2) if n.startswith(("Qcur-", "Kcur-")) else v),
        ("tokens first", lambda n, v: v.transpose(1, 0, 2) if n.startswith(("kq-", "kq_", "kqv-")) else v),
        ("features first", lambda n, v: v.T if v.ndim == 2 else v),
        ("all axes reversed", lambda n, v: v.transpose()),
        ("shape fastest first", lambda n, v: v.reshape(v.shape[::-1])),
        ("heads joined", lambda n, v: v.reshape(len(v), -1) if n.startswith(("Qcur-", "Kcur-")) else v),
        ("padded keys", lambda n, v: np.pad(v, ((0, 0), (0, 0), (0, 26))) if n.startswith(("kq-", "kq_")) else v),
        ("masked scores", lambda n, v: np.where(np.tril(np.ones((6, 6))) > 0, v, -np.inf) if n[:3] == "kq-" else v),
    ],
)
def test_layouts_are_recognised(model: Model, truth: Dump, tmp_path: Path, label: str, change: Any) -> None:
    dump = laid_out(model, truth, tmp_path, change)
    diff = judge(model, dump)
    assert diff.verdict == "same", (label, diff.first_wrong and diff.first_wrong.name, dump.notes)


def test_last_token_only_is_recognised(model: Model, truth: Dump, tmp_path: Path) -> None:
    def last(name: str, value: np.ndarray) -> np.ndarray:
        return value[:, -1] if model.graph.shapes[name][0] != "T" else value[-1]

    dump = laid_out(model, truth, tmp_path, last)
    assert {o.rows for o in dump.observations} == {(5, 6)} and any("last token only" in n for n in dump.notes)
    assert judge(model, dump).verdict == "same"


def test_hugging_face_order_of_queries_and_keys_is_no_fault(model: Model, truth: Dump, tmp_path: Path) -> None:
    width = model.hparams.n_embd_head
    dump = laid_out(model, truth, tmp_path, lambda n, v: to_hf(v, width) if n.startswith(("Qcur", "Kcur")) else v)
    assert sum("Hugging Face's order" in n for n in dump.notes) == 2
    assert judge(model, dump).verdict == "same"
    wrong = laid_out(model, truth, tmp_path, lambda n, v: to_hf(v, width) if n.startswith("Qcur-") else v)
    assert not judge(model, wrong)  # only after rotation: that is a fault


@given(st.integers(1, 40))
def test_hf_order_is_a_permutation_with_an_inverse(half: int) -> None:
    x = np.arange(2 * half * 3.0).reshape(1, -1)
    assert sorted(hf_order(2 * half)) == list(range(2 * half))
    assert np.array_equal(from_hf(to_hf(x, 2 * half), 2 * half), x)


# -- names ----------------------------------------------------------------------------------------------------


def test_foreign_names_of_one_node(model: Model) -> None:
    expected = {
        ("Qcur-0", "MUL_MAT"): "Qcur_proj-0", ("Qcur-0", "ROPE"): "Qcur-0", ("Vcur-1", "MUL_MAT"): "Vcur-1",
        ("inp_embd", ""): "embd", ("kqv_merged_cont-1", ""): "kqv_out-1", ("ffn_gate_par-0", ""): "ffn_swiglu-0",
        ("model.layers.1.self_attn.q_proj", ""): "Qcur_proj-1", ("model.layers.0.mlp.down_proj", ""): "ffn_out-0",
        ("model.layers.0.post_attention_layernorm", ""): "ffn_norm-0", ("model.norm", ""): "result_norm",
        ("lm_head", ""): "result_output", ("model.layers.1", ""): "l_out-1", ("hidden_states.1", ""): "l_out-0",
        ("hidden_states.2", ""): "result_norm", ("hidden_states.0", ""): "embd",
        ("layers.0.attention.wk", ""): "Kcur_proj-0", ("layers.1.feed_forward.w2", ""): "ffn_out-1",
        ("layer_1_output", ""): "l_out-1", ("blk.0.q_rope", ""): "Qcur-0",
    }  # fmt: skip
    for (name, op), node in expected.items():
        found = translate(name, op, model.graph)
        assert found is not None and found[0] == node, name
    for name, op in (("norm", "RMS_NORM"), ("Qcur-0", "RESHAPE"), ("Kcur-9", "ROPE"), ("something", "")):
        assert translate(name, op, model.graph) is None
    assert len(RULES) > 40


def test_hugging_face_names_end_to_end(model: Model, truth: Dump, tmp_path: Path) -> None:
    hf = {
        "model.embed_tokens": "embd", "model.layers.0.input_layernorm": "attn_norm-0",
        "model.layers.0.self_attn.q_proj": "Qcur_proj-0", "model.layers.0.self_attn.v_proj": "Vcur-0",
        "model.layers.0.self_attn": "attn_out-0", "model.layers.0.mlp": "ffn_out-0", "model.layers.0": "l_out-0",
        "model.layers.1": "l_out-1", "model.norm": "result_norm", "lm_head": "result_output",
    }  # fmt: skip
    found = arrays(truth)
    values = {name: found[node] for name, node in hf.items()}
    values["model.layers.0.self_attn.q_proj"] = to_hf(found["Qcur_proj-0"], model.hparams.n_embd_head)
    np.savez(tmp_path / "hf.npz", tokens=TOKENS, **values)
    dump = load_dump(tmp_path / "hf.npz", model)
    assert set(dump.by_name) == set(hf.values()) and judge(model, dump).verdict == "same"


def test_map_and_match_by_value(model: Model, truth: Dump, tmp_path: Path) -> None:
    found = arrays(truth)
    np.savez(tmp_path / "d.npz", tokens=TOKENS, thing=found["ffn_up-1"], other=found["l_out-0"] * 0)
    dump = load_dump(tmp_path / "d.npz", model)
    assert set(dump.by_name) == {"ffn_up-1"} and dump.unmatched == ("other",)
    assert re.match(r"thing: matched by value, taken for ffn_up-1 \(nmse .*\); next ", dump.notes[0])
    mapped = load_dump(tmp_path / "d.npz", model, {"thing": "ffn_up-0", "other": "l_out-0"})
    assert set(mapped.by_name) == {"ffn_up-0", "l_out-0"} and not mapped.unmatched
    with pytest.raises(AssayError, match="no node of the model"):
        load_dump(tmp_path / "d.npz", model, {"thing": "nonsense"})


def test_ambiguous_values_are_not_used(tmp_path: Path) -> None:
    """Two layers with equal weights: which of them a value belongs to, its values cannot tell."""
    path = tiny.make(tmp_path / "m.gguf")
    model = load(open_file(path))
    dump = take_trace(ReferenceEngine(model), [1], nodes="^(Vcur-0|kqv_out-0|kqv-0)$")
    mixed = 0.5 * (np.asarray(dump.values("Vcur-0")).ravel() + np.asarray(dump.values("Vcur-0")).ravel())
    np.savez(tmp_path / "d.npz", tokens=[1], mystery=np.repeat(mixed.reshape(2, 1, 16), 2, axis=1).reshape(1, 64))
    found = load_dump(tmp_path / "d.npz", model)  # with one token, kqv and kqv_out are the same numbers
    assert not found.by_name and found.unmatched == ("mystery",)
    assert "not used: it might be kqv-0" in found.notes[0] and "kqv_out-0" in found.notes[0]


def test_nothing_in_common_lists_both(model: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", tokens=TOKENS, foo=np.zeros(3), bar=np.ones(4))
    with pytest.raises(AssayError, match=r"no name in common.*bar.*foo|no name in common.*foo.*bar") as error:
        judge(model, load_dump(tmp_path / "d.npz", model))
    assert "attn_norm-0" in str(error.value)
    with pytest.raises(AssayError, match="no name and shape in common"):
        compare(read_dump(tmp_path / "d.npz"), replace(read_dump(tmp_path / "d.npz"), observations=()))


# -- what is wrong with a dump --------------------------------------------------------------------------------

BAD_LINES: dict[str, tuple[list[Any], str]] = {
    "no header": ([{"name": "embd", "rms": 1.0}], "first line must be"),
    "other version": ([{**HEADER, "assay_dump": 9}], "version 9"),
    "no tokens": ([{"assay_dump": 1}], "tokens must be a list"),
    "token text": ([{**HEADER, "tokens": ["a"]}], "whole numbers"),
    "positions": ([{**HEADER, "positions": [0]}], "1 positions for 6 tokens"),
    "phase": ([{**HEADER, "phase": "warmup"}], "phase must be"),
    "begins in the middle": ([{**HEADER, "tokens": [5], "positions": [7], "phase": "decode"}], "tokens before it"),
    "no name": ([HEADER, {"rms": 1.0}], 'no "name"'),
    "says nothing": ([HEADER, {"name": "embd"}], "says nothing"),
    "unknown field": ([HEADER, {"name": "embd", "avg": 1}], "unknown field 'avg'"),
    "wrong count": ([HEADER, {"name": "embd", "shape": [6, 64], "values": [1.0, 2.0]}], "2 values for shape"),
    "wrong shape": ([HEADER, {"name": "embd", "shape": [6, 63], "values": [0.5] * 378}], "does not fit embd"),
    "ragged": ([HEADER, {"name": "embd", "values": [[1.0], [1.0, 2.0]]}], "nested evenly"),
    "row": ([HEADER, {"name": "embd", "row": 6, "rms": 1.0}], "row 6 is outside"),
    "index": ([HEADER, {"name": "embd", "row": 0, "at": [[64, 1.0]]}], "index 64 is outside the 64"),
    "pairs": ([HEADER, {"name": "embd", "at": [[1.5, 1.0]]}], "pairs"),
    "text": ([HEADER, {"name": "embd", "rms": "big"}], "not a finite number"),
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


def test_not_a_number_is_named(model: Model, truth: Dump, tmp_path: Path) -> None:
    found = arrays(truth)
    found["ffn_up-0"][2, 5] = np.nan
    np.savez(tmp_path / "d.npz", tokens=TOKENS, **found)
    with pytest.raises(AssayError, match=r"ffn_up-0: 1 of 576 values are not finite, the first at \[2, 5\]"):
        judge(model, load_dump(tmp_path / "d.npz", model))
    (tmp_path / "d.jsonl").write_text(json.dumps(HEADER) + '\n{"name": "embd", "values": [NaN, 1.0]}\n')
    with pytest.raises(AssayError, match="line 2: embd: 1 of 2 values are not finite"):
        load_dump(tmp_path / "d.jsonl", model)


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


def test_other_model_other_tokens_duplicate_names(model: Model, truth: Dump, tmp_path: Path) -> None:
    other = load(open_file(tiny.make(tmp_path / "other.gguf", seed=9)))
    write_trace(tmp_path / "t.safetensors", ReferenceEngine(other), TOKENS)
    with pytest.raises(AssayError, match="trace of another model"):
        load_dump(tmp_path / "t.safetensors", model)
    wide = load(open_file(tiny.make(tmp_path / "wide.gguf", n_embd=128)))
    with pytest.raises(AssayError, match=r"does not fit embd.*another model"):
        load_dump(as_npz(truth, tmp_path), wide)
    with pytest.raises(AssayError, match=r"holds other tokens.*first differing at 1"):
        load_dump(as_npz(truth, tmp_path), model, tokens=[1, 2, 3, 4, 5, 6])
    with pytest.warns(UserWarning), zipfile.ZipFile(tmp_path / "dup.npz", "w") as archive:
        np.save(tmp_path / "embd.npy", arrays(truth)["embd"])
        archive.write(tmp_path / "embd.npy", "embd.npy")
        archive.write(tmp_path / "embd.npy", "embd.npy")
    with pytest.raises(AssayError, match="embd: the name appears twice"):
        load_dump(tmp_path / "dup.npz", model)
    np.savez(tmp_path / "none.npz", embd=arrays(truth)["embd"])
    with pytest.raises(AssayError, match="which tokens were fed"):
        load_dump(tmp_path / "none.npz", model)


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


def test_writer_keeps_order_and_place(tmp_path: Path) -> None:
    out = TensorWriter(
        tmp_path / "x", [("b", np.dtype(np.float32), (2, 4)), ("a", np.dtype(np.int32), (3,))], {"k": "v"}
    )
    out.put("a", np.array([1, 2, 3]))
    out.put("b", np.ones((2, 2)), axis=1, start=2)
    out.close()
    raw = (tmp_path / "x").read_bytes()
    assert list(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])) == ["__metadata__", "b", "a"]
    dump = read_dump((tmp_path / "x").rename(tmp_path / "x.safetensors"))
    assert np.array_equal(dump.values("b"), [[0, 0, 1, 1]] * 2) and np.array_equal(dump.values("a"), [1, 2, 3])


# -- llama-eval-callback ----------------------------------------------------------------------------------------


def print_like_llamacpp(truth: Dump, model: Model, path: Path, old: bool = False) -> Path:
    """What the tool prints of every node: three values at either end of an axis, four decimals, the sum."""
    ops = {"linear": "MUL_MAT", "rope": "ROPE", "rms_norm": "MUL", "add": "ADD", "embed": "GET_ROWS", "kq": "MUL_MAT",
           "attn_softmax": "SOFT_MAX", "kqv": "MUL_MAT", "merge_heads": "CONT", "glu": "SWIGLU"}  # fmt: skip
    text = []
    for obs in truth.observations:
        value = obs.array()
        if obs.name.startswith(("kq-", "kq_")):
            value = np.pad(value, ((0, 0), (0, 0), (0, 250)))
        value = value.reshape((1,) * (4 - value.ndim) + value.shape)
        role = re.sub(r"_proj(?=-)", "", obs.name)
        ne = ", ".join(map(str, value.shape[::-1]))
        op = ops[model.graph[obs.name].op]
        prefix = "ggml_debug" if old else "common_debug_cb_eval"
        text.append(f"{prefix}: {role:>24} = (f32) {op:>10}(a{{64, 6, 1, 1}}, b{{6, 1, 1, 1}}}}) = {{{ne}}}")

        def ends(n: int) -> list[int]:
            return [*range(min(n, 3))] if old else [*range(n)] if n <= 6 else [0, 1, 2, n - 3, n - 2, n - 1]

        for i3 in ends(value.shape[0]):
            text.append(" " * 37 + "[")
            for i2 in ends(value.shape[1]):
                text.append(" " * 38 + "[")
                for i1 in ends(value.shape[2]):
                    row = [f"{value[i3, i2, i1, i0]:12.4f}" for i0 in ends(value.shape[3])]
                    if old:
                        row.append("...")
                    elif value.shape[3] > 6:
                        row.insert(3, "...")
                    text.append(" " * 39 + "[" + ", ".join(row) + "],")
                text.append(" " * 38 + "],")
            text.append(" " * 37 + "]")
        if not old:
            text.append(" " * 37 + f"sum = {value.sum():f}")
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.mark.parametrize("old", [False, True])
def test_eval_callback_text(model: Model, truth: Dump, tmp_path: Path, old: bool) -> None:
    path = print_like_llamacpp(truth, model, tmp_path / "log.txt", old)
    dump = load_dump(path, model, tokens=TOKENS)
    assert len(dump.by_name) == len(truth.by_name) and not dump.unmatched
    assert judge(model, dump).verdict == "same"
    swapped = path.read_text().replace(" ffn_up-1 ", " x ").replace(" ffn_gate-1 ", " ffn_up-1 ")
    path.write_text(swapped.replace(" x ", " ffn_gate-1 "))
    diff = judge(model, load_dump(path, model, tokens=TOKENS))
    assert [n.name for n in diff.nodes if n.verdict == "wrong"] == ["ffn_up-1", "ffn_gate-1"]


def test_eval_callback_truncated(model: Model, truth: Dump, tmp_path: Path) -> None:
    path = print_like_llamacpp(truth, model, tmp_path / "log.txt")
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:-4]))
    with pytest.raises(AssayError, match="result_output: the printed values do not fit"):
        read_eval_callback(path)
    path.write_text(text[0])
    with pytest.raises(AssayError, match="no values are printed"):
        read_eval_callback(path)
