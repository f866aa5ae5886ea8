"""Mistakes of authors of engines, planted in engines apart, are described: from a dump, ten values and layers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.result import Diagnosis
from tests import planting
from tests.author_mistakes import FAMILIES, LLAMA, Answers, Llama, Relative
from tests.models import others
from tests.verify.diagnosis.test_second_families import TOKENS as FAMILY_TOKENS
from tests.verify.diagnosis.test_second_families import seen

TOKENS, STEPS = (1, 270, 2, 17, 300, 281, 290, 33), (6, 1, 1)  # an end id lies inside
STYLES = ("full", "last", "layers")
# A run of the graph cannot read what a later layer left; only a dump that has those rows shows it.
NEEDS_ALL = ("layers share one cache",)


@pytest.fixture(scope="module")
def model(stories260k: Path) -> Model:
    return load(open_file(stories260k))


def describes(found: Diagnosis, answers: Answers) -> bool:
    return any(c.fault == fault and re.search(words, c.how) for c in found.causes for fault, words in answers.items())


def styled(case: object, style: str) -> object:
    return pytest.param(case, style, marks=[pytest.mark.slow] if style != "full" else [])


@pytest.mark.parametrize(
    ("mistake", "style"),
    [styled(m, style) for m in LLAMA for style in STYLES if style == "full" or m not in NEEDS_ALL],
)
def test_a_mistake_of_a_llama_is_described(model: Model, tmp_path: Path, mistake: str, style: str) -> None:
    engine = Llama(model.file.path, mistake)
    with np.errstate(all="ignore"):
        engine.run(list(TOKENS), STEPS)
    run = planting.Case(mistake, (), tuple(engine.parts))
    dump = planting.dump(run, style, model, tmp_path, TOKENS, STEPS)
    found = diagnose(model, dump, weights=planting.weights_of(model.file))
    assert describes(found, LLAMA[mistake]), found


@pytest.mark.parametrize("style", STYLES)
def test_the_engine_without_a_mistake_is_healthy(model: Model, tmp_path: Path, style: str) -> None:
    engine = Llama(model.file.path)
    engine.run(list(TOKENS), STEPS)
    dump = planting.dump(planting.Case("healthy", (), tuple(engine.parts)), style, model, tmp_path, TOKENS, STEPS)
    assert diagnose(model, dump, weights=planting.weights_of(model.file))


@pytest.mark.parametrize(("case", "style"), [styled(case, style) for case in FAMILIES for style in STYLES])
def test_a_mistake_of_another_family_is_described(case: tuple[str, str], style: str, tmp_path: Path) -> None:
    name, mistake = case
    path = tmp_path / "model.gguf"
    others.make(name, path)
    model = load(open_file(path))
    with np.errstate(all="ignore"):
        trace = Relative(path, mistake).run(list(FAMILY_TOKENS))
    known = {node: value for node, value in trace.items() if node in model.graph}
    found = diagnose(model, seen(model, known, FAMILY_TOKENS, range(len(FAMILY_TOKENS)), style))
    assert describes(found, FAMILIES[case]), found


@pytest.mark.parametrize("style", ["full", "last"])
def test_experts_listed_by_index_with_their_own_weights_are_no_fault(style: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    others.make("qwen3moe", path)
    model = load(open_file(path))
    trace = Relative(path, "experts by index, weights too").run(list(FAMILY_TOKENS))
    known = {node: value for node, value in trace.items() if node in model.graph}
    assert diagnose(model, seen(model, known, FAMILY_TOKENS, range(len(FAMILY_TOKENS)), style))
