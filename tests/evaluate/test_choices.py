"""Multiple choice: every shape of file, and a choice by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli import main
from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.evaluate.choices import Question, answer_all, item, read
from assay.evaluate.continuations import loglikelihoods, pair
from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from tests import tiny

SHAPES: list[tuple[dict[str, Any], Question]] = [
    (
        {"activity_label": "Rowing", "ctx_a": "A man [step] rows.", "ctx_b": "he", "endings": ["stops.", "[x] sinks."],
         "label": "1"},
        Question("Rowing: A man rows. He", (" stops.", "  sinks."), 1),
    ),
    (
        {"question": "Why?", "choices": {"text": ["so", "no"], "label": ["A", "B"]}, "answerKey": "B"},
        Question("Question: Why?\nAnswer:", (" so", " no"), 1),
    ),
    (
        {"question": " 1+1? ", "choices": ["1", "2", "3", "4"], "answer": 1, "subject": "abstract_algebra"},
        Question(
            "The following are multiple choice questions (with answers) about abstract algebra.\n\n1+1?\nA. 1\nB. 2\n"
            "C. 3\nD. 4\nAnswer:", (" A", " B", " C", " D"), 1, True,
        ),
    ),
    (
        {"doc": {}, "target": 1, "arguments": {"gen_args_1": {"arg_0": "Q", "arg_1": " b"},
                                               "gen_args_0": {"arg_0": "Q", "arg_1": " a"}}},
        Question("Q", (" a", " b"), 1),
    ),
    ({"doc": {}, "target": "0", "arguments": [["Q", " a"], ["Q", " b"]]}, Question("Q", (" a", " b"), 0)),
    ({"query": "Q", "choices": ["a", "b"], "gold": 0}, Question("Q", (" a", " b"), 0)),
]  # fmt: skip


@pytest.mark.parametrize(("row", "expected"), SHAPES)
def test_shapes(row: dict[str, Any], expected: Question) -> None:
    assert item(row) == expected


def test_files(tmp_path: Path) -> None:
    rows = [row for row, _ in SHAPES]
    lines, listed, served = tmp_path / "a.jsonl", tmp_path / "b.json", tmp_path / "c.json"
    lines.write_text("\n".join(map(json.dumps, rows)))
    listed.write_text(json.dumps(rows))
    served.write_text(json.dumps({"rows": [{"row_idx": i, "row": row} for i, row in enumerate(rows)]}))
    assert read(lines) == read(listed) == read(served) == [found for _, found in SHAPES]


@given(st.one_of(st.binary(max_size=60), st.builds(lambda x: json.dumps(x).encode(), st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(
        st.sampled_from(["endings", "ctx", "label", "question", "choices", "answer", "doc", "arguments", "target"]),
        c, max_size=5)))))  # fmt: skip
def test_any_bytes_give_questions_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "x.json"
    path.write_bytes(data)
    try:
        read(path)
    except AssayError as error:
        assert str(path) in str(error)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("choices") / "tiny.gguf")


def test_by_hand(model: Path) -> None:
    """A shared context longer than a page, endings of different lengths: the same as each alone, in one go."""
    file = open_file(model)
    engine, tokenizer = ReferenceEngine(load(file)), Tokenizer.from_gguf(file)
    context = "hello world the word " * 4
    endings = [" in on", " the a hello world", " er"]
    requests = [pair(tokenizer, context, ending) for ending in endings]
    assert {request[0] for request in requests} == {requests[0][0]}
    for (before, ending), found in zip(requests, loglikelihoods(engine, requests), strict=True):
        ids = np.array([*before, *ending], np.int32)
        pages = np.arange(engine.n_pages, dtype=np.int32)
        logits = engine.forward([Chunk(ids[:-1], 0, pages, "all")])[0].logits[-len(ending) :]
        logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        assert found.logprob == pytest.approx(sum(logp[i, t] for i, t in enumerate(ending)), rel=1e-9)
        assert found.greedy == (logp.argmax(axis=1).tolist() == list(ending))
    answers = answer_all(engine, tokenizer, [Question(context, tuple(endings), 0)]).answers
    assert answers[0].choice == int(np.argmax(answers[0].logprobs))
    assert answers[0].choice_norm == int(np.argmax(np.array(answers[0].logprobs) / [5, 17, 2]))


def test_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"query": "hello", "choices": ["world", "the"], "gold": 0}) + "\n")
    assert main(["eval", str(model), "--choices", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 1
    path.write_text("{}")
    assert main(["eval", str(model), "--choices", str(path)]) == 2
    assert "docs/reference/eval.md" in capsys.readouterr().err
