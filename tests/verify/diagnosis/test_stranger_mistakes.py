"""Mistakes that strangers planted, and their neighbours, are described from whole dumps, ten values and statistics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.result import Diagnosis
from tests import planting
from tests.stranger_evidence import evidence
from tests.stranger_mistakes import MISTAKES, Strange

TOKENS, STEPS = (1, 270, 280, 17, 300, 281, 290, 33), (6, 1, 1)


@pytest.fixture(scope="module")
def model(stories260k: Path) -> Model:
    return load(open_file(stories260k))


def found_in(model: Model, mistake: str, style: str, path: Path, **options: str) -> Diagnosis:
    engine = Strange(model.file.path, mistake, **options)
    engine.run(list(TOKENS), STEPS)
    dump = evidence(planting.Case(mistake, (), tuple(engine.parts)), style, model, path, TOKENS, STEPS)
    return diagnose(model, dump, weights=planting.weights_of(model.file))


def described(found: Diagnosis, mistake: str) -> bool:
    answers = MISTAKES[mistake]
    return any(re.search(answers[c.fault], c.how) for c in found.causes if c.fault in answers)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_described_from_a_whole_dump(model: Model, tmp_path: Path, mistake: str) -> None:
    found = found_in(model, mistake, "full", tmp_path)
    assert described(found, mistake), found
