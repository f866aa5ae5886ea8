"""An index behind a name, where the words name a statistic: it counts layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import STATISTICS, Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.numbered_names import with_numbered_names
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

NODES = (("embd", "embd"), ("h_mid[0]", "ffn_inp-0"), ("h_out[0]", "l_out-0"), ("h_mid[1]", "ffn_inp-1"),
         ("h_out[1]", "l_out-1"), ("h_final", "result_norm"))  # fmt: skip
FORMS = {
    "one line": ("norm", "norms at last token: {all}\n", "{name}={value:.5f}", "  "),
    "dots": ("rms", "rms (last position): {{{all}}}\n", "'{name}': {value:.5f}", ", "),
    "title and lines": ("norm", "L2 norms, last token\n  {all}\n", "{name} = {value:.5f}", "\n  "),
    "columns": ("absmax", "max abs of the last row:\n{all}\n", "{name:<12} {value:12.5f}", "\n"),
}


@pytest.mark.parametrize("index", ["[{}]", ".{}", "({})", "#{}"])
@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_every_layer_on_a_line(model: Model, truth: Dump, tmp_path: Path, form: str, index: str) -> None:
    kind, around, each, between = FORMS[form]
    shown = []
    for name, node in NODES:
        value = np.asarray(truth.values(node), np.float64)[-1].reshape(-1)
        name = name.replace("[0]", index.format(0)).replace("[1]", index.format(1))
        shown.append(each.format(name=name, value=STATISTICS[kind](value)))
    (tmp_path / "x.log").write_text(f"prompt {list(TOKENS)}\n" + around.format(all=between.join(shown)))
    dump = load_dump(tmp_path / "x.log", model)
    found = {(o.name, o.kind, o.row) for o in dump.observations}
    assert found == {(node, kind, len(TOKENS) - 1) for _, node in NODES}
    assert judge(model, dump).verdict == "same"


@pytest.mark.parametrize(
    "text",
    [
        "layer 0 out: x[0]=0.5 x[1]=0.25\n",  # elements
        "norms per token: h[0]=0.5 h[1]=0.25 out[0]=1.5 out[1]=2.5\n",
        "layer 1 rms: q[0]=0.5 q[1]=0.25 k[0]=1.5 k[1]=2.5\n",  # heads
        "h_mid[0]=0.5 h_out[0]=0.25\n",  # of which statistic is not said
    ],
)
def test_other_indices_stay(text: str) -> None:
    assert with_numbered_names(text) == text


def test_a_title_without_the_row_leaves_it_open() -> None:
    found = read_log(Path("log"), (), "rms: mid[0]=0.5 out[0]=1.5 mid[1]=2.5 out[1]=3.5\n").observations
    assert [o.summary for o in found] == [
        "ffn_inp-0 rms 0.5",
        "l_out-0 rms 1.5",
        "ffn_inp-1 rms 2.5",
        "l_out-1 rms 3.5",
    ]
