"""Forms of printing that are read without a model: web pages, data frames, debuggers, records, decode steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.html_text import as_plain_text
from assay.verify.dumps.printed.log_reader import read_log

FORMS = {
    "a web page with a table below each heading": (
        "<!doctype html><html><body><p>tokens: <code>1 2 3</code></p><h2>block 0</h2><table><thead><tr><th>node</th>"
        "<th>shape</th><th>sum</th><th>L2</th></tr></thead><tbody>\n"
        "<tr><td>o_proj</td><td>3&times;4</td><td>-1.5</td><td>2.5</td></tr>\n"
        "<tr><td>down_proj</td><td>3&times;4</td><td>0.5</td><td>3.5</td></tr></tbody></table></body></html>",
        ["attn_out-0 sum -1.5", "attn_out-0 norm 2.5", "ffn_out-0 sum 0.5", "ffn_out-0 norm 3.5"],
    ),
    "a data frame with two indices": (
        "              count      mean       std\nlayer node                              \n"
        "0     o_proj    768  0.072149  0.509783\n      resid1    768  0.004699  1.128350\n"
        "1     o_proj    768  0.122646  0.722464\n",
        [
            "attn_out-0 mean 0.072149", "attn_out-0 std 0.509783", "ffn_inp-0 mean 0.004699", "ffn_inp-0 std 1.12835",
            "attn_out-1 mean 0.122646", "attn_out-1 std 0.722464",
        ],
    ),
    "texts of the best tokens are no names": (
        'layer 0 o_proj l2=2.5\nbest:\n  21.5  614  " up"\n  20.5  935  " gate"\n',
        ["attn_out-0 norm 2.5"],
    ),
    "an attention head as a column": (
        "stage\tlayer\thead\tl2\te0\te1\nquery\t0\t0\t13.5\t-0.5\t3.5\nquery\t0\t1\t15.5\t-0.25\t1.5\n",
        [
            "Qcur_proj-0|Qcur_biased-0|Qcur-0 norm 13.5", "Qcur_proj-0|Qcur_biased-0|Qcur-0 first -0.5 3.5",
            "Qcur_proj-0|Qcur_biased-0|Qcur-0 norm 15.5", "Qcur_proj-0|Qcur_biased-0|Qcur-0 first -0.25 1.5",
        ],
    ),
    "a row and its end in nested JSON": (
        '{"prefill": {"blocks": [{"layer": 0, "kind": "conv", "taps": {"ffn_norm": {"shape": [3, 4], "mean": 0.5, '
        '"lastToken": {"first2": [0.5, 1.5], "last2": [2.5, 3.5]}}}}]}}\n',
        [
            "ffn_norm-0 mean 0.5", "prefill.blocks.0.taps.ffn_norm first 0.5 1.5 row -1",
            "prefill.blocks.0.taps.ffn_norm last 2.5 3.5 row -1",
        ],
    ),
    "a matrix with a column for each token": (
        "ids = [5, 6, 7]\nlayer 0 out\n4×3 Matrix{Float32}:\n  0.5   1.5   2.5\n -0.5  -1.5  -2.5\n  ⋮     ⋮     ⋮\n"
        "  3.5   4.5   5.5\n",
        [
            "l_out-0 at 0:0.5 1:-0.5 3:3.5 row 0", "l_out-0 at 0:1.5 1:-1.5 3:4.5 row 1",
            "l_out-0 at 0:2.5 1:-2.5 3:5.5 row 2",
        ],
    ),
    "chosen experts with their weights are no logits": (
        "layer,pos,id,node,v0,v1\n0,0,5,l_out,0.5,1.5\n0,0,5,picked,3:0.75,1:0.25\n", ["l_out-0 first 0.5 1.5 row 0"],
    ),
    "elements beside a column of layers": ("layer,norm_p0,h0,h1\n2,1.5,0.5,0.25\n", [
        "l_out-2 norm 1.5 row 0", "l_out-2 first 0.5 0.25",
    ]),
}  # fmt: skip


def read(text: str, folder: Path) -> Dump:
    return read_log(folder / "x.log", text=text)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read(form: str, tmp_path: Path) -> None:
    text, means = FORMS[form]
    found = [o.summary.partition(" row?")[0] for o in read(text, tmp_path).observations]
    assert sorted(found) == sorted(means)


@pytest.mark.parametrize(
    "heading",
    [
        '{"event":"decode","step":1,"token":130}',
        'time=2026-11-16T22:40:11.160+01:00 level=DEBUG msg="step" phase=gen1 token=130',
        "engine.ts:132 decode #1 id=130",
        "11-18 10:31:44.235 14077 14112 I Engine: decode token=130 pos=3",
    ],
)
def test_a_decode_step(heading: str, tmp_path: Path) -> None:
    dump = read(f"tokens: [5, 6, 7]\nlayer 0 out: 0.5 1.5\n{heading}\nlayer 0 out: 2.5 3.5\n", tmp_path)
    assert [(token, [o.summary for o in seen]) for token, seen in dump.later] == [(130, ["l_out-0 first 2.5 3.5"])]


@pytest.mark.parametrize(
    "line",
    [
        "sampled token 130 at step 1",
        "=== prefill step=0 position=2 token=7",
        "step 3 of 10",
    ],
)
def test_no_decode_step(line: str, tmp_path: Path) -> None:
    dump = read(f"tokens: [5, 6, 7]\nlayer 0 out: 0.5 1.5\n{line}\nlayer 1 out: 2.5 3.5\n", tmp_path)
    assert not dump.later


@pytest.mark.parametrize("words", ["conv_state", "ssm state", "state.wkv", "delta cache", "recurrentState"])
def test_a_kept_state_is_no_row_of_a_token(words: str, tmp_path: Path) -> None:
    dump = read(f"layer 0 out: 0.5 1.5 2.5\nlayer 0 {words}: 3.5 4.5 5.5\n", tmp_path)
    assert [o.summary for o in dump.observations] == ["l_out-0 first 0.5 1.5 2.5"]


def test_tokens_and_positions_of_a_debugger(tmp_path: Path) -> None:
    text = (
        "(gdb) p *batch.token@3\n$1 = {5, 6, 7}\n(gdb) p *batch.pos@3\n$2 = {8188, 8189, 8190}\nlayer 0 out: 0.5 1.5\n"
    )
    dump = read(text, tmp_path)
    assert (dump.tokens, dump.positions) == ((5, 6, 7), (8188, 8189, 8190))


def test_a_text_with_a_comparison_is_no_page() -> None:
    text = "layer 0 <out>: 0.5 < 1.5\n"
    assert as_plain_text(text) == text


def test_ids_of_experts_are_no_tokens(tmp_path: Path) -> None:
    lines = ('{"at": "layers.0.o_proj", "l2": 2.5}', '{"at": "layers.0.router_idx", "ids": [[4, 5]]}')
    assert read("\n".join(lines), tmp_path).tokens == ()


def test_calls_of_a_document_are_decode_steps(tmp_path: Path) -> None:
    calls = (
        '{"phase": "prompt", "fed": [5, 6, 7], "pos": 2, "top": [{"id": 3, "logit": 9.5}, {"id": 4, "logit": 8.5}]},\n'
        '{"phase": "decode", "fed": [3], "pos": 3, "top": [{"id": 8, "logit": 7.5}, {"id": 9, "logit": 6.5}]}'
    )
    found = read('{"engine": "mine",\n"calls": [' + calls + "]}\n", tmp_path)
    assert found.tokens == (5, 6, 7)
    assert [o.summary.partition(" row?")[0] for o in found.observations] == ["result_output top 3:9.5 4:8.5"]
    assert [token for token, _ in found.later] == [3]
