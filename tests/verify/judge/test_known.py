"""What is known about a node, for each amount of evidence: the text, the JSON and the notes say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import answer
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.judge import text
from assay.verify.judge.known import ABSENT, KINDS, known, sentence, tally, told
from assay.verify.judge.verdict import compare, judge
from tests import planting
from tests.synthetic import make_kquant


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")))


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("full", {"own": 6, "inherited": 46, "same": 5}),
        ("last", {"between": 2, "differs": 50, "same": 5}),  # ten values and an rms of each node: no inputs
        ("layers", {"own": 2, "between": 1, "inherited": 2}),  # the first layer is computed from the tokens
        ("logits", {"between": 1}),
    ],
)
def test_a_node_is_wrong_on_its_own_inputs_only_if_these_were_dumped(
    model: Model, tmp_path: Path, style: str, expected: dict[str, int]
) -> None:
    diff = judge(model, planting.dump(planting.second(model.file.path, "rope-type"), style, model, tmp_path))
    assert tally(diff.nodes) == expected == diff.to_dict()["known"]
    assert [n["known"] for n in diff.to_dict()["nodes"]] == [n.known.id for n in diff.nodes]
    said = text.text(diff, model, 99)
    assert ("wrong on their own inputs" in said) == (expected.get("own", 0) > 1)
    assert "unknown " not in said.replace("inputs unknown", "")
    assert told(diff.nodes) in said


def test_a_partial_dump_is_not_told_as_a_whole_one(model: Model, tmp_path: Path) -> None:
    dump = planting.dump(planting.second(model.file.path, "rope-type"), "last", model, tmp_path)
    notes: list[str] = []
    found = diagnose(model, dump, progress=notes.append)
    assert len(found.wrong_nodes) == 52
    said = answer.text(found, model)
    assert "50 that cannot be judged by themselves" in notes[0]
    assert "first of 52 that differ (2 own or before, 50 inputs unknown)" in said
    assert not any("wrong on their own inputs" in face for face in (notes[0], said))
    assert found.diff is not None
    first = next(n for n in found.diff.nodes if n.name == "Qcur-0")
    assert sentence(first) == "wrong; the mistake is in one of 4 operations, embd to Qcur-0"
    assert "operations, embd to Qcur-0" in repr(first)


@pytest.mark.parametrize("style", ["full", "layers"])
def test_diagnosis_and_diff_count_the_same_nodes(model: Model, tmp_path: Path, style: str) -> None:
    dump = planting.dump(planting.second(model.file.path, "rope-type"), style, model, tmp_path)
    notes: list[str] = []
    found = diagnose(model, dump, progress=notes.append)
    said = answer.text(found, model)
    assert told(judge(model, dump).nodes) in notes
    if style == "full":
        assert "first of 6 wrong on their own inputs" in said
    else:
        assert "first of 5 that differ (2 own, 1 own or before, 2 inherited)" in said


def test_without_a_model_nothing_tells_whose_fault_it_is(model: Model, tmp_path: Path) -> None:
    a, b = (
        planting.dump(planting.second(model.file.path, *bugs), "full", model, tmp_path / str(i))
        for i, bugs in enumerate([(), ("rope-type",)])
    )
    diff = compare(a, b)
    assert diff.first_wrong is not None and diff.first_wrong.known.id == "differs"
    assert "nothing tells whose fault it is" in text.text(diff)


def test_every_kind_has_a_sign_or_is_the_plain_one() -> None:
    assert known(None) is ABSENT
    assert [kind.id for kind in KINDS if not kind.mark] == ["same"]
    assert len({kind.id for kind in KINDS}) == len(KINDS)
    assert told([]) == "no node is wrong"
