"""Logs of a prompt and of decode steps, rows that a heading gives, raw files with a manifest, names by their words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.decode_steps import step_of
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

PROMPT, NEXT = TOKENS[:4], TOKENS[4:]
SHOWN = {
    "attn_norm": "input_ln",
    "Qcur": "q_rot",
    "attn_out": "attn_o_proj",
    "ffn_inp": "after_attn",
    "l_out": "layer_out",
}


@pytest.fixture(scope="module")
def decoded(model: Model) -> Dump:
    return take_trace(ReferenceEngine(model), TOKENS, nodes="^(embd|attn_norm|Qcur-|attn_out|ffn_inp|l_out)")


def printed(dump: Dump, rows: slice) -> str:
    """Sums over all rows of the step beside the first values of its last row."""
    lines = []
    for obs in dump.observations:
        role, _, layer = obs.name.partition("-")
        value = obs.array()[rows].reshape(len(range(*rows.indices(len(TOKENS)))), -1)
        name = f"[L{int(layer):02}] {SHOWN[role]}" if layer else "[L-1] tok_emb"
        first = " ".join(f"{x:.6f}" for x in value[-1, :3])
        lines.append(f"  {name} sum= {value.sum():.6f}  l2= {np.linalg.norm(value):.6f}  last_tok[0..2]= {first}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "head", ["--- decode step {k}, token {t}, n_past {p}", "== decode {k}: 1 token(s) [{t}], position {p}"]
)
@pytest.mark.parametrize("late", [0, 1])
def test_decode_steps_of_a_log(model: Model, decoded: Dump, tmp_path: Path, head: str, late: int) -> None:
    """With `late`, the second step prints the values of the first again."""
    text = f"prompt ids: {' '.join(map(str, PROMPT))}\n--- prefill\n{printed(decoded, slice(0, 4))}\n"
    for k, token in enumerate(NEXT):
        at = 4 + k - (late if k == 1 else 0)
        text += head.format(k=k + 1, t=token, p=4 + k) + "\n" + printed(decoded, slice(at, at + 1)) + "\n"
    (tmp_path / "run.log").write_text(text)
    dump = load_dump(tmp_path / "run.log", model)
    assert dump.tokens == tuple(TOKENS) and dump.steps == (4, 1, 1)
    assert {o.rows for o in dump.by_name["l_out-0"]} == {(0, 4), (3, 4), (4, 5), (5, 6)}
    found = judge(model, dump)
    assert found.verdict == ("wrong" if late else "same")


def test_rows_by_the_heading_of_a_token(model: Model, decoded: Dump, tmp_path: Path) -> None:
    text = f"prompt = {PROMPT}\n"
    for i, token in enumerate(TOKENS):
        text += f"\n== token #{i} (id {token})\nlayer | |attn_out| | |layer_out|\n"
        for layer in (0, 1):
            sizes = [np.linalg.norm(decoded.values(f"{n}-{layer}")[i]) for n in ("attn_out", "l_out")]  # type: ignore[index]
            text += f"{layer} | {sizes[0]:.6f} | {sizes[1]:.6f}\n"
    (tmp_path / "run.log").write_text(text)
    dump = load_dump(tmp_path / "run.log", model)
    assert dump.steps == (4, 1, 1) and {o.rows for o in dump.observations} == {(i, i + 1) for i in range(6)}
    assert judge(model, dump).verdict == "same"


@pytest.mark.parametrize("kind", ["lines", "json"])
def test_raw_numbers_with_a_manifest(model: Model, decoded: Dump, tmp_path: Path, kind: str) -> None:
    data, lines, items = b"", [f"# tokens {' '.join(map(str, TOKENS))}"], []
    for obs in decoded.observations:
        role, _, layer = obs.name.partition("-")
        name, value = SHOWN.get(role, "x0"), obs.array().reshape(len(TOKENS), -1).astype("<f4")
        items.append(
            {"name": name, "layer": int(layer or -1), "offset": len(data), "shape": value.shape, "dtype": "f32"}
        )
        for row, part in enumerate(value):
            at = len(data) + row * part.nbytes
            lines.append(f"{name}.{layer or -1} tok={row} offset={at} count={part.size} f32")
        data += value.tobytes()
    (tmp_path / "run.bin").write_bytes(data)
    made = "\n".join(lines) if kind == "lines" else json.dumps({"token_ids": TOKENS, "tensors": items})
    (tmp_path / ("run.manifest.txt" if kind == "lines" else "run.json")).write_text(made)
    dump = load_dump(tmp_path / "run.bin", model)
    assert len(dump.by_name) == len(decoded.by_name) and judge(model, dump).verdict == "same"
    (tmp_path / "run.bin").write_bytes(data[:-4])
    with pytest.raises(AssayError, match="it is truncated"):
        read_dump(tmp_path / "run.bin")


def test_a_manifest_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(64))
    (tmp_path / "x.manifest.txt").write_text("offsets are in the file\n")
    with pytest.raises(AssayError, match="no array whose name and shape are known"):
        read_dump(tmp_path / "x.bin")


def test_an_array_whose_values_match_nothing_is_named_by_its_words(model: Model, decoded: Dump, tmp_path: Path) -> None:
    wrong = np.asarray(decoded.values("ffn_inp-1")) * 3
    np.savez(tmp_path / "d.npz", tokens=TOKENS, embed=decoded.values("embd"), **{"layers.1.hidden_after_attn": wrong})
    dump = load_dump(tmp_path / "d.npz", model)
    assert set(dump.by_name) == {"embd", "ffn_inp-1"} and any("by its words" in note for note in dump.notes)
    assert judge(model, dump).verdict == "wrong"


def test_records_of_another_kind(model: Model, decoded: Dump, tmp_path: Path) -> None:
    """JSON lines without assay's header: a token, a layer, a name and data in each."""
    items: list[dict[str, object]] = [{"prompt": TOKENS, "model": "tiny"}]
    for row in range(len(TOKENS)):
        for obs in decoded.observations:
            role, _, layer = obs.name.partition("-")
            data = np.ravel(obs.array()[row]).astype(np.float32).tolist()
            items.append({"tok": row, "layer": int(layer or -1), "name": SHOWN.get(role, "embed"), "data": data})
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, items)))
    dump = load_dump(tmp_path / "run.jsonl", model)
    assert len(dump.by_name) == len(decoded.by_name) and judge(model, dump).verdict == "same"


def test_logits_of_the_last_token_and_of_those_generated(model: Model, tmp_path: Path) -> None:
    trace = take_trace(ReferenceEngine(model), TOKENS, nodes="^result_output")
    logits = np.asarray(trace.values("result_output"))
    np.savez(tmp_path / "d.npz", prompt_ids=PROMPT, generated=[*NEXT, 9], last_logits=logits[3:])
    dump = load_dump(tmp_path / "d.npz", model)
    assert dump.tokens == tuple(TOKENS) and dump.steps == (4, 1, 1) and judge(model, dump).verdict == "same"
    np.savez(tmp_path / "e.npz", token_ids=TOKENS, logits=logits[-1:] * 2)
    assert judge(model, load_dump(tmp_path / "e.npz", model)).verdict == "wrong"


def test_queries_that_are_called_q_alone(model: Model, tmp_path: Path) -> None:
    trace = take_trace(ReferenceEngine(model), TOKENS, nodes="^(Qcur|Kcur)")
    for stage in ("", "_proj"):
        values = {f"layers.{i}.{a.lower()}": trace.values(f"{a}cur{stage}-{i}") for i in (0, 1) for a in "QK"}
        np.savez(tmp_path / "d.npz", tokens=TOKENS, **values)  # type: ignore[arg-type]
        dump = load_dump(tmp_path / "d.npz", model)
        assert set(dump.by_name) == {f"{a}cur{stage}-{i}" for i in (0, 1) for a in "QK"}
        assert judge(model, dump).verdict == "same"


def test_habits_of_printing_elements_and_logits() -> None:
    text = f"prompt [{' '.join(map(str, PROMPT))}]\nt3\tblk0\tquery\tsum=8.5\tx[0]=1.25\tx[-1]=-2.5\n"
    found = {o.kind: o for o in read_log(Path("log"), (), text).observations}
    assert found["sum"].rows == (3, 4) and found["last"].data == (-2.5,)
    text = 'top 3 logits: 704 " Paris" 14.75; 45 "a;b" 9.5; 51 " La" 8.25\n'
    (top,) = read_log(Path("log"), (), text).observations
    assert top.name == "result_output" and dict(top.data) == {704: 14.75, 45: 9.5, 51: 8.25}


def test_a_call_with_its_ids_begins_a_step(tmp_path: Path) -> None:
    """The calls say which ids were fed and how many precede them, as people print their own functions."""
    (tmp_path / "a.log").write_text(
        "forward([5, 6, 7]) nPast=0\nlayer 0 out first=[0.25, 0.5]\n"
        "forward([8]) nPast=3\nlayer 0 out first=[0.75, 1.5]\nforward([9]) nPast=4\nlayer 0 out first=[2.5, 3.5]\n"
    )
    dump = read_log(tmp_path / "a.log")
    assert dump.tokens == (5, 6, 7)
    assert [obs.data for obs in dump.observations] == [(0.25, 0.5)]
    assert [(token, [obs.data for obs in seen]) for token, seen in dump.later] == [
        (8, [(0.75, 1.5)]),
        (9, [(2.5, 3.5)]),
    ]


def test_a_call_behind_a_loggers_name_begins_a_step(tmp_path: Path) -> None:
    """As Rust's tracing prints: a time, a level, a target, then the call with its ids and a range of positions."""
    at = "2026-11-19T17:40:19.90{}Z  INFO engine::run:"
    (tmp_path / "a.log").write_text(
        f"{at.format(1)} prefill ids=[5, 6, 7] pos=0..3\nlayer 0 out first=[0.25, 0.5]\n"
        f"{at.format(2)} decode#1 ids=[8] pos=3..4 x\nlayer 0 out first=[0.75, 1.5]\n"
        f"{at.format(3)} decode#2 ids=[9] pos=4..5 y\nlayer 0 out first=[2.5, 3.5]\n"
    )
    dump = read_log(tmp_path / "a.log")
    assert dump.tokens == (5, 6, 7) and [obs.data for obs in dump.observations] == [(0.25, 0.5)]
    assert [(token, [obs.data for obs in seen]) for token, seen in dump.later] == [
        (8, [(0.75, 1.5)]),
        (9, [(2.5, 3.5)]),
    ]


def test_a_call_elsewhere_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("tokens: [5, 6, 7]\nlayer 0 out first=[0.25, 0.5]\nforward([8]) pos=9\n")
    assert read_log(tmp_path / "a.log").later == ()


def test_a_printed_configuration_is_left_out(model: Model, tmp_path: Path) -> None:
    """A struct of sizes has words of nodes and no values."""
    log = tmp_path / "a.log"
    log.write_text(
        f'Cfg {{ arch: "llama", n_layer: 2, dim: 64, ffn: 160, hd: 16, eps: 1e-5 }}\ntokens: {list(TOKENS)}\n'
        "L00.h_out sum=-4.66730 norm=3.54099 first5=[-0.05995, -0.04007, -0.04693, 0.03387, 0.12798]\n"
    )
    dump = load_dump(log, model)
    assert {obs.name for obs in dump.observations} == {"l_out-0"}


def test_l2_of_a_legend_is_no_layer(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("tokens: [5, 6]\n(last token; |x| = l2)\nl_out-0 norm=2.5\nffn_out-0 norm=3.5\n")
    found = {obs.name: obs.data for obs in read_log(tmp_path / "a.log").observations}
    assert set(found) == {"l_out-0", "ffn_out-0"}


def test_a_step_that_counts_its_tokens_and_then_names_one() -> None:
    assert step_of("DEBUG step 1 tokens=1 feeding=[138] cache_len=10") == 138
    assert step_of("decode 2: fed 3 tokens") is None
    assert step_of("decode step 1, token in = 29889:") == 29889 == step_of("step 3: token given: 29889")


def test_ids_behind_their_number(tmp_path: Path) -> None:
    """The number in parentheses is no id, and sizes of the model are no values."""
    path = tmp_path / "a.log"
    path.write_text(
        "tiny: m.gguf  dim=64 layers=5 heads=8/4 ff=172 vocab=512 eps=1e-05 theta=10000\n"
        "prompt ids (4): 1 403 407 261\nlayer 0 out rms=1.5\n"
    )
    dump = read_log(path)
    assert dump.tokens == (1, 403, 407, 261)
    assert [o.kind for o in dump.observations] == ["rms"]


def test_names_in_a_column_called_value(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("lyr  value   n   mean   rms\n -1  x_emb   64  -0.5   0.25\n  0  x_out   64   0.5   0.75\n")
    found = {(o.name, o.kind): o.data for o in read_log(path).observations}
    assert found["embd", "rms"] == 0.25 and found["l_out-0", "mean"] == 0.5


def test_a_remark_behind_an_array(tmp_path: Path) -> None:
    """Rows of an array over several lines belong together, whatever is said behind it."""
    path = tmp_path / "a.log"
    path.write_text(">>> embed\ntensor([[ 0.5, 1.5, ..., 2.5],\n        [ 3.5, 4.5, ..., 5.5]])  # [1, 2, 40]\n")
    rows = [o.data for o in read_log(path).observations if o.kind == "first"]
    assert rows == [(0.5, 1.5), (3.5, 4.5)]


def test_a_token_beside_its_position_is_an_id(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("pos,token,layer,buffer,l2\n0,12,0,x_out,1.5\n1,140,0,x_out,2.5\n")
    assert [(o.rows, o.data) for o in read_log(path).observations] == [((0, 1), 1.5), ((1, 2), 2.5)]
