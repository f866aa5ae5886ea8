"""What strangers' engines printed (bench/strangers/cases): right engines are right, wrong ones wrong at their node."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.judge.verdict import judge

CASES = Path(__file__).parents[3] / "bench" / "strangers" / "cases"
FIRST = {  # None: the engine is right
    "A-01": None, "A-02": "Qcur-0", "A-03": None, "A-07": None, "A-08": "ffn_moe_out-0", "A-09": "l_out-0",
    "A-10": "kqv_out-0", "B-06": "attn_out-0", "B-07": "kqv_out-0", "B-09": "attn_out-0", "D-06": "result_output",
    "E-06": None, "E-07": "result_output", "F-01": None, "F-03": "ffn_inp-2", "F-06": None, "F-08": "kqv_out-0",
    "F-09": None, "F-12": None, "F-13": "kq_soft_max-0", "F-17": None, "F-19": "kq_soft_max-0", "F-20": None,
    "F-21": "result_output", "F-22": "ffn_swiglu-3", "F-23": None, "F-24": "kq-0", "F-26": None, "F-27": "embd",
    "F-29": None, "F-35": None, "F-37": None, "F-39": "attn_norm-2", "H-01": None, "H-02": None, "H-05": "kqv_out-0",
    "K-01": None, "K-02": None, "K-03": "kq_soft_max-0", "K-04": None, "K-05": None, "K-06": None,
    "K-07": "ffn_out-0", "K-08": None, "K-09": None, "K-10": "ffn_swiglu-0", "K-11": None, "K-12": None,
    "K-14": None, "K-15": None, "K-17": None, "K-20": None, "K-23": None, "K-24": None, "K-26": None, "K-27": None,
    "K-29": None, "K-30": None, "K-31": "Qcur_proj-3", "K-32": None, "K-33": None, "K-34": None, "K-35": "kda_out-0",
    "K-36": None, "K-37": None, "K-38": "result_output", "K-39": None, "K-40": None, "L-03": "embd", "L-05": None,
    "L-06": "ffn_norm-3", "L-07": "kq_soft_max-0", "L-09": "kqv_out-0", "L-10": "ffn_swiglu-0", "L-11": "kqv_out-3",
    "L-13": "ffn_moe_out-0", "L-14": "conv_output_biased-0", "L-15": "kqv_out-0", "L-16": None,
    "Q-05": "Vcur-0", "Q-06": "l_out-3", "Q-07": "ffn_moe_out-0", "Q-08": None, "Q-10": "kqv_out-0", "R-04": None,
    "R-06": "attn_out-0", "R-08": "ffn_moe_out-1", "R-10": None,
    "M-01": None, "M-02": "kqv_out-4", "M-08": "conv_output_raw-0", "M-09": "kqv_out-0", "S-01": None,
    "S-02": "ffn_out-0", "S-03": None, "S-04": None, "S-05": "attn_out-0", "S-06": None, "S-07": "ffn_out-0",
    "S-08": None, "S-09": "l_out-0", "S-10": None, "S-11": "result_output", "S-12": None, "S-13": None,
    "S-14": "ffn_out-0", "S-15": None, "S-16": None, "S-17": "attn_out-0", "S-18": None, "S-19": "result_output",
    "S-20": None, "S-21": None, "S-22": None, "S-23": None, "S-24": "attn_out-0", "S-25": None, "V-03": "attn_out-0",
    "J-02": "conv_output_silu-0", "V-04": None, "V-08": "Qcur-5", "V-10": "ffn_inp-0", "Y-01": None, "Y-04": None,
    "Y-06": "ffn_moe_out-0", "Y-08": "final_output-0", "Y-09": "kqv_out-0", "Z-02": None, "Z-04": None, "Z-07": None,
    "Z-10": None,
}  # fmt: skip


@pytest.mark.parametrize("case", FIRST)
def test_the_first_wrong_node(shared_dir: Path, case: str) -> None:
    truth = tomllib.loads((CASES / case / "truth.toml").read_text())
    assert truth["healthy"] == (FIRST[case] is None)
    path = min((CASES / case).glob("evidence*"), key=lambda p: "manifest" in p.name)
    model = load(open_file(shared_dir / "data" / truth["model"]))
    own = read_dump(path).tokens
    found = judge(model, load_dump(path, model, tokens=() if own else truth["tokens"]))
    assert (found.first_wrong.name if found.first_wrong is not None else None) == FIRST[case]
