"""Mistakes that strangers planted, and their neighbours, are described from whole dumps, ten values and statistics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.dumps.resolve import resolve
from tests import planting, tiny
from tests.second_engine import Engine
from tests.stranger_evidence import evidence
from tests.stranger_mistakes import FINE_TUNED, MISTAKES, Strange

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


PRINTED = (
    "head 3 zero",
    "v slot +1 in all",
    "n - 1",
    "layer 1 ffn_down of 4",
    "ffn_down last 5 rows zero",
    "frequencies in bf16",
)


BY_ROWS = [PRINTED[0], *(pytest.param(m, marks=pytest.mark.slow) for m in [*MISTAKES][1::3] if m != PRINTED[0])]


@pytest.mark.parametrize("mistake", BY_ROWS)
def test_a_mistake_is_described_from_statistics_of_rows(model: Model, tmp_path: Path, mistake: str) -> None:
    """Every third: a search takes ten seconds."""
    found = found_in(model, mistake, "rms", tmp_path)
    ties = {"heads written by group": "o-proj-head-order", "decode one late": "pos-off-by-one-decode"}
    assert described(found, mistake) or any(c.fault == ties.get(mistake) for c in found.causes), found


@pytest.mark.slow
@pytest.mark.parametrize("style", ["ten", "stats", "layers"])
@pytest.mark.parametrize("mistake", PRINTED)
def test_a_mistake_is_described_from_other_evidence(model: Model, tmp_path: Path, mistake: str, style: str) -> None:
    found = found_in(model, mistake, style, tmp_path)
    assert described(found, mistake), found


LOGGED = (
    "prompt's keys stored unrotated", "values not cleared between heads", "v at one slot in decode",
    "v strided by the prompt, transposed", "decode fed the token before", "v reads the norm of the layer before",
    "attn_output last 4 rows stale", "rope with two plus signs", "ffn_norm of layer 0 in every layer",
)  # fmt: skip


@pytest.mark.parametrize("mistake", [LOGGED[0], *(pytest.param(m, marks=pytest.mark.slow) for m in LOGGED[1:])])
def test_a_mistake_is_described_from_a_log_of_the_last_token(model: Model, tmp_path: Path, mistake: str) -> None:
    """Norms and five values of some nodes, ten best logits."""
    found = found_in(model, mistake, "log", tmp_path)
    assert described(found, mistake), found


@pytest.mark.parametrize("style", ["full", "rms", pytest.param("log", marks=pytest.mark.slow)])
def test_a_type_decoded_wrongly_in_one_matrix_is_described(tmp_path: Path, style: str) -> None:
    """The other matrices of the type, which another kernel reads, are right."""
    model = load(open_file(tiny.make(tmp_path / "model.gguf", type="Q4_0")))
    engine = Engine(model.file.path, ("q4_0-interleave",), only=["blk.1.ffn_up.weight"])
    engine.run(list(TOKENS), STEPS)
    found = diagnose(model, evidence(planting.Case("", (), tuple(engine.parts)), style, model, tmp_path, TOKENS, STEPS))
    assert [c.fault for c in found.causes] == ["q4_0-interleave"] and "in ffn_up alone" in found.causes[0].how, found


@pytest.mark.parametrize(
    ("mistake", "style"),
    [
        ("v slot -1 in decode", "npz"),
        pytest.param("v slot -1 in decode", "csv", marks=pytest.mark.slow),
        pytest.param("k slot +1 in decode", "npz", marks=pytest.mark.slow),
    ],
)
def test_decode_steps_that_the_evidence_does_not_tell(model: Model, tmp_path: Path, mistake: str, style: str) -> None:
    """The rows of all calls stand together, without a word about the calls."""
    found = found_in(model, mistake, style, tmp_path)
    told = any("taken for decode steps" in note for note in found.notes)
    assert described(found, mistake) and (told or "from position" in found.causes[0].how), found


@pytest.mark.parametrize("mistake", ["decode one late", "decode one early"])
def test_a_position_off_from_a_token_on_is_described_without_calls(model: Model, tmp_path: Path, mistake: str) -> None:
    found = found_in(model, mistake, "npz", tmp_path)
    sign = "+" if mistake.endswith("late") else "-"
    assert [c.how for c in found.causes] == [f"from token 6 on rotations have the position {sign} 1"], found


@pytest.mark.parametrize(("arithmetic", "style"), [("f32", "full"), ("f32", "npz"), ("kv16", "full"), ("f16", "full")])
def test_an_engine_without_a_mistake_raises_no_alarm(model: Model, tmp_path: Path, arithmetic: str, style: str) -> None:
    assert found_in(model, "none", style, tmp_path, arithmetic=arithmetic)


@pytest.mark.parametrize("style", ["full", pytest.param("rms", marks=pytest.mark.slow)])
def test_weights_of_a_fine_tune_have_no_name(model: Model, tmp_path: Path, style: str) -> None:
    found = found_in(model, FINE_TUNED, style, tmp_path)
    assert not any(c.confidence >= 0.9 for c in found.causes), found


def test_a_table_that_look_ups_scale_is_named_from_logits(shared_dir: Path) -> None:
    """The rows of the fed tokens are scaled in place, and the head reads the same table."""
    model, tokens = load(open_file(shared_dir / "data" / "arch" / "granite.gguf")), (31, 204, 5, 118, 260, 77, 149)
    right = interpret(model.graph, Weights(model.file), inputs_of(tokens, range(7)), ["result_norm", "result_output"])
    logits = right["result_output"].copy()
    logits[:, list(tokens)] *= 12
    last = {"result_norm": right["result_norm"][-1], "result_output": logits[-1]}
    for shown in (("result_norm", "result_output"), ("result_output",)):
        seen = tuple(Observation(name, "first", last[name], (6, 7), foreign=name) for name in shown)
        found = diagnose(model, resolve(Dump("look-ups", tokens, tuple(range(7)), (7,), seen, "look-ups"), model))
        assert [c.fault for c in found.causes] == ["embd-scale-in-tied-table"], found
        assert found.causes[0].how == "look-ups scale the fed tokens' rows in place", found
