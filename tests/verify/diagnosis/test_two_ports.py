"""Two ports whose one mistake is smaller than what a coarse arithmetic does to every value, on trained models.

The first is what tinygrad does with a Llama 3 file: it never reads `rope_freqs.weight`; its cache is in halves. The
second is a port that has Llama 2's base written into it. Both must be named from every tensor, from the outputs of the
layers, and from five printed values and an rms a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from tests import planting
from tests.synthetic import with_factors
from tests.verify.diagnosis.test_likelihood import printed

STORY = (1, 9038, 2501, 263, 931, 29892, 727, 471, 263, 2217)
Port = Callable[[str, Path], tuple[Model, Dump, Weights]]


def ported(path: Path, bug: str, tokens: tuple[int, ...], arithmetic: str) -> Port:
    model, steps = load(open_file(path)), (len(tokens),)
    weights = Weights(model.file)  # decoded once for all three kinds of evidence
    case = planting.second(path, bug, tokens=tokens, steps=steps, arithmetic=arithmetic)

    def dumped(evidence: str, folder: Path) -> tuple[Model, Dump, Weights]:
        if evidence == "five printed values":
            return model, load_dump(printed(case, folder / "x.jsonl", "%.6g", 5, True, -1, tokens), model), weights
        return model, planting.dump(case, evidence, model, folder, tokens, steps), weights

    return dumped


@pytest.fixture(scope="module")
def factors_ignored(stories15m: Path, tmp_path_factory: pytest.TempPathFactory) -> Port:
    file = with_factors(stories15m, tmp_path_factory.mktemp("factors") / "stories.gguf")
    return ported(file, "rope-freq-factors", STORY, "kv16")


@pytest.fixture(scope="module")
def base_of_llama_2(smollm2: Path) -> Port:
    return ported(smollm2, "rope-base", planting.SMOL_TOKENS, "f32")


EVIDENCE = pytest.mark.parametrize("evidence", ["full", "layers", "five printed values"])


def named(port: Port, evidence: str, folder: Path) -> list[tuple[str, bool]]:
    model, dump, weights = port(evidence, folder)
    result = diagnose(model, dump, weights=weights)
    return [(cause.fault, cause.confidence >= 0.9) for cause in result.causes]


@EVIDENCE
@pytest.mark.slow
def test_factors_that_are_never_read(factors_ignored: Port, tmp_path: Path, evidence: str) -> None:
    assert named(factors_ignored, evidence, tmp_path) == [("rope-freq-factors", True)]


@EVIDENCE
@pytest.mark.slow
def test_a_base_that_is_not_the_files(base_of_llama_2: Port, tmp_path: Path, evidence: str) -> None:
    assert named(base_of_llama_2, evidence, tmp_path) == [("rope-base", True)]
