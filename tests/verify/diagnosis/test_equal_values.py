"""Mistakes that give the same observed values by other nodes: all of them are named, and none is sure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from assay.engines.reference import interpret
from assay.gguf import open_file
from assay.models import load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import inputs_of
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.resolve import resolve
from assay.verify.faults.buffer_grammar import unwritten
from assay.verify.faults.fault import Context, planted
from tests import planting

TOKENS = (1, 270, 280, 17, 300, 281)
SHOWN = ("attn_norm-0", "attn_out-0", "ffn_norm-0", "ffn_out-0", "l_out-0", "ffn_out-1", "l_out-1")


def test_the_last_rows_of_gate_and_up_or_the_last_columns_of_down(stories260k: Path) -> None:
    """172 hidden values, of which a loop over lanes of 8 leaves out 4. What was printed does not show which product."""
    model = load(open_file(stories260k))
    context, weights = Context(model, (len(TOKENS),)), planting.weights_of(model.file)
    descriptions = unwritten(context, [model.graph["ffn_out-0"]])
    words = "the last columns % 8 columns of every product"
    made = planted(context, next(v for _, v in descriptions if words in v.label))
    values = interpret(made.graph, weights, inputs_of(TOKENS, range(6)), SHOWN, functions=made.functions)
    lines = [f"tokens: {list(TOKENS)}"]
    lines += [f"{name} pos {p}: norm={np.linalg.norm(values[name][p]):.5f}" for name in SHOWN for p in range(6)]
    found = diagnose(model, resolve(read_log(Path("x.log"), text="\n".join(lines)), model), weights=weights)
    (cause,) = found.causes
    assert words in cause.how and "the last rows % 8 rows of every product" in cause.how
    assert cause.confidence <= 0.5
