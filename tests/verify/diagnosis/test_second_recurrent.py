"""The second recurrent engine: right by llama.cpp's recorded values, and every planted fault shows."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import load_dump
from tests import recurrent_planting as planting
from tests.recurrent_mistakes import MIXERS, Mixer
from tests.second_recurrent import Recurrent

FOLDER = planting.folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no golden recurrent models; set ASSAY_SHARED")
AGREES = 2e-11  # NMSE of llama.cpp's float32 nodes against float64
SHOWS = 1e-9  # NMSE of logits; st-f16 gives 1e-8


def nmse(found, right):
    return float(np.sum(np.square(found - right)) / max(np.sum(np.square(right)), 1e-300))


@pytest.mark.parametrize("name", planting.MODELS)
def test_every_node_state_and_call_agrees_with_llama_cpp(name):
    path = FOLDER / f"{name}.gguf"
    made, right = planting.planted(path, real=np.float64), planting.recorded(path)
    for call, (part, golden) in enumerate(zip(made.parts, right.parts, strict=True)):
        for node, value in golden.items():
            assert part[node].shape == value.shape, (call, node)
            assert nmse(part[node], value.astype(np.float64)) < AGREES, (call, node)


@pytest.mark.parametrize("name", planting.DRAFT)
def test_the_draft_head_agrees_with_llama_cpp(name):
    golden = planting.golden(FOLDER / f"{name}.gguf")
    nodes = Recurrent(FOLDER / f"{name}.gguf", real=np.float64).draft(golden["tokens"], golden["mtp/hidden"])
    for key, value in golden.items():
        if key.startswith("mtp/") and key != "mtp/hidden":
            assert nmse(nodes[key[4:]], value.astype(np.float64)) < AGREES, key


def test_a_long_prompt_agrees_with_llama_cpp():
    path = FOLDER / "qwen35.gguf"
    golden = planting.golden(path)
    made = Recurrent(path, real=np.float64).run(list(golden["long_tokens"]), (150,))[0]["result_output"]
    assert nmse(made[golden["long_rows"]], golden["long_result_output"].astype(np.float64)) < AGREES


def logits(path, *bugs):
    case = planting.planted(path, *bugs, real=np.float64)
    return np.concatenate([part["result_output"] for part in case.parts])


def test_every_planted_fault_moves_the_logits_of_its_first_model():
    rights = {}
    for fault, models in planting.PLANTED.items():
        path = FOLDER / f"{models[0]}.gguf"
        draft = fault.startswith("mtp-")
        if (path, draft) not in rights:
            if draft:
                rights[path, draft] = planting.golden(path)["mtp/result_output"].astype(np.float64)
            else:
                rights[path, draft] = logits(path)
        right, found = rights[path, draft], logits(path, fault)
        assert nmse(found, right) > SHOWS, fault
        if fault.split("/")[0] in planting.SECOND_CALL:
            assert nmse(found[: planting.STEPS[0]], right[: planting.STEPS[0]]) < 1e-25, f"{fault} shows in a prompt"


def test_states_in_sixteen_bits_differ_and_float32_does_not():
    path = FOLDER / "mamba2.gguf"
    right = logits(path)
    moved = {kind: nmse(planting.planted(path, state=kind).parts[2]["result_output"], right[-1:]) for kind in
             ("f32", "f16", "bf16")}  # fmt: skip
    assert moved["f32"] < 1e-11 < moved["f16"] < moved["bf16"] < 1e-3


def diagnosed(tmp_path, style, *bugs, seconds=math.inf, **options):
    path = FOLDER / "qwen35.gguf"
    model = load(open_file(path))
    ids = planting.tokens_of(path)
    case = planting.planted(path, *bugs, **options)
    make = getattr(planting, style)
    return diagnose(model, load_dump(make(case, tmp_path, ids, planting.STEPS), model), seconds=seconds)


@pytest.mark.parametrize(
    ("case", "style"),
    [
        *((case, "full") for case in MIXERS),
        *(pytest.param(case, style, marks=pytest.mark.slow) for case in MIXERS for style in ("last", "layers")),
    ],
)
def test_a_mistake_of_a_mixer_is_described(tmp_path, case, style):
    name, mistake = case
    path = FOLDER / f"{name}.gguf"
    model, ids = load(open_file(path)), planting.tokens_of(path)
    run = planting.Case(mistake, (), tuple(Mixer(path, mistake).run(ids, planting.STEPS)))
    found = diagnose(model, load_dump(getattr(planting, style)(run, tmp_path, ids, planting.STEPS), model))
    assert any(re.search(MIXERS[case].get(c.fault, "$^"), c.how) for c in found.causes), found


def test_matrices_in_bfloat16_are_healthy(tmp_path):
    found = diagnosed(tmp_path, "last", weights="bf16")
    assert found.verdict == "healthy" and "every value is what matrices in bfloat16 gives" in found.notes, found


def test_a_draft_taken_back_from_keys_alone_is_no_fault_of_the_window(tmp_path):
    """The window alone explains the first nodes; the state explains all of them."""
    found = diagnosed(tmp_path, "last", "st-rollback")
    assert found.causes[0].fault == "st-rollback" and found.causes[0].equivalent == ("st-pad-enters",), found


@pytest.mark.parametrize(
    ("bug", "fault", "sure"),
    [
        ("st-leak/other", "st-leak", 0.99),
        pytest.param("st-rollback/draft", "st-rollback", 0.33, marks=pytest.mark.slow),
    ],
)
def test_tokens_that_nobody_knows_are_told_by_the_states_before_the_calls(tmp_path, bug, fault, sure):
    found = diagnosed(tmp_path, "layers_and_states", bug, shows_before=True, seconds=20)
    cause = found.causes[0]
    assert cause.fault == fault and "cache_r_before-0" in cause.how and len(cause.nodes) >= 4, found
    assert cause.confidence == pytest.approx(sure, abs=0.01)


def test_states_before_the_calls_are_right(tmp_path):
    """They are no evidence against an engine that is right, nor where another fault gives the values."""
    assert diagnosed(tmp_path, "layers_and_states", shows_before=True).verdict == "healthy"


@pytest.mark.parametrize(
    ("bug", "said"), [("st-leak/other", "another request left"), ("st-rollback/draft", "drafted tokens or padding")]
)
def test_without_them_the_answer_says_what_would_settle_it(tmp_path, bug, said):
    found = diagnosed(tmp_path, "layers", bug, seconds=4)
    assert found.verdict == "unexplained"
    (note,) = [n for n in found.notes if said in n]
    assert "dump cache_r_before-0 and the like" in note
