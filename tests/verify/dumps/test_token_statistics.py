"""Nested lists with a statistic of each token below a heading that says so, as languages print their objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.naming.phrases import split_words
from assay.verify.dumps.naming.statistic_names import statistic_of_each_token
from assay.verify.dumps.observation import STATISTICS, Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


def js(value: Any, indent: int = 0) -> str:
    """As Node's console.log prints an object: few numbers a line, keys without quotes."""
    pad = "  " * indent
    if isinstance(value, list):
        rows = [", ".join(map(str, value[i : i + 2])) for i in range(0, len(value), 2)]
        return "[\n" + ",\n".join(f"{pad}    {row}" for row in rows) + f"\n{pad}  ]"
    return "{\n" + ",\n".join(f"{pad}  {k}: {js(v, indent + 1)}" for k, v in value.items()) + f"\n{pad}}}"


def rust(value: Any, indent: int = 0) -> str:
    """As Rust's {:#?} prints a struct: a number a line."""
    pad = "    " * indent
    if isinstance(value, list):
        return "[\n" + "".join(f"{pad}    {rust(v, indent + 1)},\n" for v in value) + f"{pad}]"
    if not isinstance(value, dict):
        return str(value)
    return "Norms {\n" + "".join(f"{pad}    {k}: {rust(v, indent + 1)},\n" for k, v in value.items()) + f"{pad}}}"


def tree(truth: Dump, kind: str, factor: float, keys: tuple[str, str, str]) -> dict[str, Any]:
    def of(node: str) -> list[float]:
        rows = np.asarray(truth.values(node), np.float64).reshape(len(TOKENS), -1) * factor
        return [round(STATISTICS[kind](row), 5) for row in rows]

    layers = {f"layer{i}": {keys[1]: of(f"ffn_inp-{i}"), keys[2]: of(f"l_out-{i}")} for i in (0, 1)}
    return {keys[0]: of("embd"), **layers}


FORMS: dict[str, tuple[str, Any, str, tuple[str, str, str]]] = {
    "console.log": ("norms per token ", js, "norm", ("embedNorms", "afterAttention", "afterMlp")),
    "console.log, rms": ("rms per token: ", js, "rms", ("embed", "afterAttention", "afterMlp")),
    "Python's dict": ("l2 norms by position: ", repr, "norm", ("embed", "after_attn", "after_mlp")),
    "Rust's {:#?}": ("rms at each position = ", rust, "rms", ("embed", "after_attention", "after_mlp")),
    "JSON": (
        "norms_per_token = ",
        lambda value: json.dumps(value, indent=2),
        "norm",
        ("embed", "after_attention", "after_mlp"),
    ),
}


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("form", FORMS)
def test_the_heading_says_what_the_lists_are(
    model: Model, truth: Dump, tmp_path: Path, form: str, factor: float
) -> None:
    """With a factor, the values match nothing: the heading alone says that they are statistics."""
    heading, write, kind, keys = FORMS[form]
    text = js(list(TOKENS)) + f" length {len(TOKENS)}\n" + heading + write(tree(truth, kind, factor, keys))
    (tmp_path / "x.log").write_text(f"token ids {text}\nlayer 0 attn_norm first=[9.5, 8.5, 7.5, 6.5, 5.5, 4.5]\n")
    dump = load_dump(tmp_path / "x.log", model)
    assert dump.tokens == tuple(TOKENS)
    assert {o.kind for o in dump.observations if o.name != "attn_norm-0"} == {kind}
    assert {o.kind for o in dump.observations if o.name == "attn_norm-0"} <= {"first"}
    assert {o.row for o in dump.by_name["embd"]} == set(range(len(TOKENS)))
    if factor == 1.0:
        assert {"embd", "ffn_inp-0", "ffn_inp-1", "l_out-0", "l_out-1"} <= set(dump.by_name)
    else:
        found = judge(model, dump).first_wrong
        assert found is not None and found.name == "embd"


def test_the_heading_ends_where_its_bracket_closes() -> None:
    text = "norms per token {\n  layer0: [0.5, 1.5]\n}\nlayer 1 out: [0.5, 1.5]\n"
    found = read_log(Path("log"), (), text).observations
    assert [o.of_each_token for o in found] == ["norm", ""]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("norms per token", "norm"),
        ("rms of x at each position", "rms"),
        ("absMax by token", "absmax"),
        ("l2 norms by position", "norm"),
        ("l2 norm of each token", "norm"),
        ("tokens per second", ""),
        ("norm of the last token", ""),
        ("mean and rms of every token", ""),
    ],
)
def test_words_for_a_statistic_of_each_token(words: str, kind: str) -> None:
    assert statistic_of_each_token(split_words(words.split())) == kind


def test_words_behind_an_array_over_several_lines() -> None:
    text = "token ids [\n  5, 6, 7,\n  8, 9\n] length 5\nlayer 0 out [\n  0.5,\n  1.5\n] (first 2)\n"
    dump = read_log(Path("log"), (), text)
    assert dump.tokens == (5, 6, 7, 8, 9)
    assert [o.summary for o in dump.observations] == ["l_out-0 first 0.5 1.5"]
