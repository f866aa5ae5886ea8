"""Causes in words about this engine: the file's and the dump's values, the line to look for, best guess below 0.5."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.advice import relations_of_prints
from assay.verify.diagnosis.fault_trials import EvidenceUnit, FaultTrials
from assay.verify.diagnosis.relations import Relation
from assay.verify.diagnosis.result import Cause, Diagnosis
from assay.verify.diagnosis.wording import LANGUAGES, facts, words
from assay.verify.dumps.observation import Dump, Observation, inputs_of, number_in_words
from assay.verify.dumps.resolve import resolve
from assay.verify.faults import CODE, FAULTS, Stage
from assay.verify.judge.verdict import judge


def cause(fault: str, how: str, node: str = "Qcur-0", confidence: float = 0.9) -> Cause:
    return Cause(fault, node, how, (node,), confidence, 1.0, (), 10.0, 0.1)


def test_the_values_are_the_files_and_the_dumps(model: Model) -> None:
    said = words(cause("rope-base", "base 500000"), model)
    base = f"{model.hparams.rope.base:.9g}"
    assert said.wrong == f"your base is 500000; this file says llama.rope.freq_base = {base}"
    assert said.fix == f"base = {base}, read from llama.rope.freq_base"
    assert "attention.layer_norm_rms_epsilon" in words(cause("eps-value", "eps = 1e-06"), model).wrong
    pairs = words(cause("rope-type", "pairs (i, i + d/2)"), model).wrong
    assert pairs.endswith("this file (llama) is made for neighbouring pairs (2i, 2i + 1)")
    assert words(cause("w-transposed", "", "Qcur_proj-0"), model).wrong.startswith("blk.0.attn_q.weight is stored as [")
    assert words(cause("rope-base", "base 500000")).wrong == FAULTS["rope-base"].wrong  # no model, no values


def test_every_fault_has_a_line_to_look_for_in_three_languages(model: Model) -> None:
    assert set(CODE) <= {*FAULTS, *Stage}
    for id in FAULTS:
        said = words(cause(id, "times 2"), model)
        assert list(said.look_for) == list(LANGUAGES.values()), id
        assert said.wrong and said.right and "{" not in (said.wrong + said.fix).replace("{0", "")


# What a diagnosis of a picture knows beside it (`diagnose_picture`).
OF_PICTURES = {
    "projector", "filter", "fits", "mean", "std", "width", "height", "merge", "patch", "eps", "act", "head_dim",
}  # fmt: skip


@pytest.mark.parametrize("key", ["yours", "fix"])
def test_sentences_name_only_what_is_known(model: Model, key: str) -> None:
    known = facts(cause("rope-base", "base 2", "Qcur_proj-0"), model) | {"window": 1, "n_ff": 1}
    for id, row in CODE.items():
        for name in re.findall(r"{(\w+)}", row.get(key, "")):
            assert name in known or (id.startswith("vis-") and name in OF_PICTURES), (id, name)


def test_below_half_it_is_a_best_guess(model: Model) -> None:
    weak = cause("rope-base", "base 500000", confidence=0.3)
    found = Diagnosis("inconclusive", "Qcur-0", ("Qcur-0",), (weak,), "")
    text = answer.text(found, model)
    assert "best guess: rope-base" in text and "cause" not in text
    doubled = Relation("ratio", "every printed number is 2 times what it should be", 0.0)
    assert "what can be said: every printed number is 2 times" in answer.text(
        replace(found, relations=(doubled,)), model
    )
    text = answer.text(replace(found, verdict="fault", causes=(replace(weak, confidence=0.8),)), model)
    assert "cause: rope-base" in text and "your base is 500000" in text and "look for a line like" in text


def test_a_printed_number_is_named_by_what_it_is() -> None:
    assert number_in_words(Observation("l_out-0", "rms", 2.0, (3, 4)), 0) == "the rms of row 3"
    assert number_in_words(Observation("l_out-0", "sum", 2.0), 0) == "the sum of all rows"
    assert number_in_words(Observation("l_out-0", "first", (1.0, 2.0), (5, 6)), 1) == "value 1 of the first 2 of row 5"
    assert number_in_words(Observation("l_out-0", "top", ((7, 2.0),), (0, 3)), 0) == "element 7 of rows 0 to 2"


def test_one_factor_of_all_printed_numbers_is_said(model: Model) -> None:
    tokens = (1, 5, 9)
    env = inputs_of(tokens, range(3))
    value = interpret(model.graph, Weights(model.file), env, ["l_out-1"])["l_out-1"]
    row = tuple((1.37 * value[-1, :4]).tolist())
    seen = (Observation("l_out-1", "first", row, (2, 3)),)
    dump = resolve(Dump("test", tokens, (0, 1, 2), (3,), seen, "test"), model)
    trials = FaultTrials(model, dump, judge(model, dump, cache=False)).from_tokens()
    unit = EvidenceUnit("l_out-1", tuple(node.name for node in model.graph))
    assert [r.text for r in relations_of_prints(trials, unit)] == [
        "every printed number is 1.37 times what it should be"
    ]
