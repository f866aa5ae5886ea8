"""A stranger's names, layouts and steps become the model's; what cannot is refused with both sides named."""

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

from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.matching.ambiguities import choose_readings
from assay.verify.dumps.matching.reading_notes import grouped_notes
from assay.verify.dumps.observation import Dump, Observation, to_hf
from assay.verify.dumps.tracing import take_trace, write_trace
from assay.verify.judge.verdict import compare, judge
from tests import tiny
from tests.verify.conftest import NODES, TOKENS
from tests.verify.dumps.writing import arrays, as_npz, lines


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
    assert [n.partition(":")[0] for n in dump.notes if "Hugging Face's order" in n] == ["Q and K"]
    assert judge(model, dump).verdict == "same"
    wrong = laid_out(model, truth, tmp_path, lambda n, v: to_hf(v, width) if n.startswith("Qcur-") else v)
    assert not judge(model, wrong)  # only after rotation: that is a fault


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


def test_ambiguous_values_are_not_used(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Half way between the rotated and the unrotated keys: which of them is meant, the values cannot tell."""
    found = arrays(truth)
    mixed = 0.5 * (found["Kcur_proj-0"].reshape(found["Kcur-0"].shape) + found["Kcur-0"])
    np.savez(tmp_path / "d.npz", tokens=TOKENS, mystery=np.concatenate([found["Kcur-0"][:1], mixed[1:]]))
    dump = load_dump(tmp_path / "d.npz", model)
    assert not dump.by_name and dump.unmatched == ("mystery",)


def test_nodes_that_share_their_values_are_one_observation(model: Model, truth: Dump, tmp_path: Path) -> None:
    found = arrays(truth)
    merged = {f"attention {i} merged": found[f"kqv_out-{i}"] for i in range(2)}
    np.savez(tmp_path / "d.npz", tokens=TOKENS, **merged)
    dump = load_dump(tmp_path / "d.npz", model)
    assert set(dump.by_name) == {"kqv_out-0", "kqv_out-1"} and not dump.unmatched
    assert len(dump.notes) == 1 and "whose values kqv-0 shares" in dump.notes[0]
    assert dump.notes[0].startswith("attention 0 merged and attention 1 merged: matched by value, taken for kqv_out-0")
    assert judge(model, dump).verdict == "same"
    np.savez(tmp_path / "d.npz", tokens=TOKENS, heads=found["kqv-0"], kqv_out_0=found["kqv_out-0"])
    assert set(load_dump(tmp_path / "d.npz", model, {"kqv_out_0": "kqv_out-0"}).by_name) == {"kqv-0", "kqv_out-0"}


def test_notes_of_a_kind_are_one_line() -> None:
    many = [f"l_out-{i}: read as the last token's row" for i in range(30)]
    assert grouped_notes([*many, "embd: read as columns", "layers are counted from 1 there"]) == [
        "l_out-0 and 29 more: read as the last token's row",
        "embd: read as columns",
        "layers are counted from 1 there",
    ]
    lines = [f"not understood: 'x {i}'" for i in range(3)]
    assert grouped_notes(lines) == ["not understood: 'x 0' (2 more like it)"]


def test_nothing_in_common_lists_both(model: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", tokens=TOKENS, foo=np.zeros(3), bar=np.ones(4))
    with pytest.raises(AssayError, match=r"no name in common.*bar.*foo|no name in common.*foo.*bar") as error:
        judge(model, load_dump(tmp_path / "d.npz", model))
    assert "attn_norm-0" in str(error.value)
    with pytest.raises(AssayError, match="no name and shape in common"):
        compare(read_dump(tmp_path / "d.npz"), replace(read_dump(tmp_path / "d.npz"), observations=()))


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


@pytest.mark.parametrize("folder", [False, True])
def test_texts_and_flags_beside_the_arrays_are_left_out(model: Model, truth: Any, tmp_path: Path, folder: bool) -> None:
    """A name of the type and a mask are saved with the values: neither is evidence."""
    others = {"dtype": np.array("float16"), "mask": np.ones((3, 3), bool), "meta": np.array([b"x"])}
    found = {"tokens": np.array(TOKENS), **others, "embd": arrays(truth)["embd"]}
    path = tmp_path / ("d" if folder else "d.npz")
    if folder:
        path.mkdir()
        for name, value in found.items():
            np.save(path / f"{name}.npy", value)
    else:
        np.savez(path, **found)  # type: ignore[arg-type]
    assert {obs.name for obs in load_dump(path, model).observations} == {"embd"}
    alone = tmp_path / "alone.npz"
    np.savez(alone, dtype=np.array("float16"))
    with pytest.raises(AssayError, match=r"dtype: must hold numbers \(found dtype <U7\)"):
        load_dump(alone, model)


@pytest.mark.parametrize("form", ["c{}/{}", "step_{}.{}", "jsonl"])
def test_arrays_of_several_calls_are_steps(model: Model, truth: Any, tmp_path: Path, form: str) -> None:
    """A prompt and two decode calls, whose ids the caller gives."""
    cut = [(0, 4), (4, 5), (5, 6)]
    whole = arrays(truth)
    calls = [{name: whole[name][a:b] for name in ("embd", "ffn_norm-0", "l_out-1")} for a, b in cut]
    if form == "jsonl":
        path = tmp_path / "d.jsonl"
        records = [
            {"v": f"my_{name}", "block": -1, "call": i, "rows": len(value), "data": value.reshape(-1).tolist()}
            for i, call in enumerate(calls)
            for name, value in call.items()
        ]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path = tmp_path / "d.npz"
        np.savez(path, **{form.format(i, f"my_{name}"): v for i, call in enumerate(calls) for name, v in call.items()})
    dump = load_dump(path, model, tokens=TOKENS)
    assert dump.steps == (4, 1, 1) and dump.tokens == tuple(TOKENS)
    assert {"embd", "ffn_norm-0", "l_out-1"} <= {obs.name for obs in dump.observations}
    assert judge(model, dump).verdict == "same"
    with pytest.raises(AssayError, match=r"calls of 4, 1, 1 tokens \(found 5 ids, expected 6\)"):
        load_dump(path, model, tokens=TOKENS[:5])


def test_more_values_than_a_node_has_are_refused(model: Model, tmp_path: Path) -> None:
    found = {"assay_dump": 1, "tokens": list(TOKENS)}, {"name": "Vcur-0", "first": [0.5] * 100_000}
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    with pytest.raises(AssayError, match=r"more values than Vcur-0 has \(found 100000"):
        load_dump(tmp_path / "d.jsonl", model)


def test_an_index_beyond_the_values_is_one_line(model: Model, tmp_path: Path) -> None:
    """In a dump whose row is open, too: the values are asked before the index is checked."""
    path = tmp_path / "d.jsonl"
    said = [{"assay_dump": 1, "tokens": [1, 5, 6]}, {"name": "result_output", "top": [[2**31 - 1, -1.0], [6, 1.5]]}]
    path.write_text("\n".join(map(json.dumps, said)))
    with pytest.raises(AssayError, match="index 2147483647 is outside"):
        load_dump(path, model)


def test_values_after_a_fault_do_not_decide_which_row_was_printed(tmp_path: Path) -> None:
    """The first token's row often has one huge value. Beside it any small values look near, so a faulty engine's values
    must not outvote those before the fault."""
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf", n_layer=8)))
    rng, n = np.random.default_rng(1), 5
    names = ["embd", *(f"l_out-{layer}" for layer in range(8))]
    truth = {name: rng.standard_normal((n, 64)) for name in names}
    for name in names[1:]:
        truth[name][0, -1] = 1e4
    shown = [Observation("embd", "first", truth["embd"][-1, :8])]
    shown += [Observation(name, "first", rng.standard_normal(8)) for name in names[1:]]  # after the fault
    found, _ = choose_readings(shown, model, n, lambda wanted: {name: truth[name] for name in wanted})
    assert [obs.rows for obs in found] == [(n - 1, n)] * len(shown)
