"""The table is complete, and every row of it can be planted."""

from __future__ import annotations

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.by_feeds import FEEDS
from assay.verify.dumps.observation import inputs_of
from assay.verify.faults import FAULTS, Context, FaultKind, Stage, planted
from assay.verify.faults.description import COMPOSED
from assay.verify.faults.edit_grammar import OF_ONE_LAYER
from assay.verify.faults.vision import PICTURE_PLANTS, PROMPT_PLANTS
from tests import planting
from tests.synthetic import make_kquant

ELSEWHERE = {  # rows that no tensor shows: ids are judged by `assay.text.compare`, the others by the endpoint
    Stage.TOKENIZER,
    Stage.TEMPLATE,
    Stage.SAMPLING,
    Stage.LOOP,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")))


@pytest.fixture(scope="module")
def weights(model: Model) -> Weights:
    return Weights(model.file)


def test_the_table_is_complete() -> None:
    assert len(FAULTS) == 420
    fed = {feed.fault for feed in FEEDS}
    hidden = {"st-leak", "st-pad-enters", "st-rollback"}  # other calls between the dumped ones give their values
    for fault in FAULTS.values():
        assert fault.wrong and fault.right and fault.symptom and fault.shows and fault.probe
        assert fault.kinds, fault.id
        assert (
            fault.variants
            or fault.waits
            or fault.id in PICTURE_PLANTS  # planted in the pass of a picture
            or fault.id in PROMPT_PLANTS
            or fault.stage in ELSEWHERE
            or fault.id in fed
            or fault.id in hidden
            or fault.id in {*COMPOSED, *OF_ONE_LAYER}  # composed for a place (`edit_grammar`)
            or fault.kinds == (FaultKind.CHOICE,)
        ), fault.id
        assert fault.links or fault.evidence in ("N", "T"), fault.id
        for label, address in fault.links:
            assert label and address.startswith(("https://", "http://"))


def test_every_variant_can_be_planted(model: Model, weights: Weights) -> None:
    """No edit crashes, and nearly all change the logits or a node before them."""
    env = inputs_of(planting.TOKENS, range(len(planting.TOKENS)))
    names = [node.name for node in model.graph]
    right = interpret(model.graph, weights, env, names)
    context = Context(model, planting.STEPS)
    touched = silent = 0
    for fault in FAULTS.values():
        for variant in fault.variants:
            p = variant.search.grid()[0] if variant.search and variant.search.grid() else 4.0
            made = planted(context, variant, p)
            if not made.touched:
                continue
            with np.errstate(all="ignore"):
                values = interpret(made.graph, weights, env, names, functions=made.functions)
            touched += 1
            same = all(values[n].shape == right[n].shape and np.allclose(values[n], right[n]) for n in names)
            silent += same and "65504" not in variant.label  # values this large are in tests of overflows
    assert touched > 190
    assert silent < 12


def test_the_second_engine_agrees_when_healthy(model: Model, weights: Weights) -> None:
    case = planting.second(model.file.path)
    env = inputs_of(planting.TOKENS, range(len(planting.TOKENS)))
    found = np.concatenate([part["result_output"] for part in case.parts])
    expected = interpret(model.graph, weights, env, ["result_output"])["result_output"]
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
