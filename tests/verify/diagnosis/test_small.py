"""Small faults in the second engine, in float32 and under coarser arithmetic, on models that are not Llama's twin."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis import likelihood
from assay.verify.diagnosis.answer import text
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.diagnosis.result import Diagnosis
from tests import planting, tiny

STEPS = (14, 1, 1)
TOKENS = (1, 270, 280, 17, 300, 281, 290, 33, 41, 277, 5, 160, 288, 9, 31, 262)
MODELS: dict[str, dict[str, Any]] = {
    "window": {"window": 6, "type": "Q8_0"},
    "experts": {"n_expert": 4, "type": tiny.with_experts("Q8_0")},
    "plain": {"type": "Q8_0"},
    "wide": {"window": 6, "type": "Q8_0", "n_embd": 128},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")

    @cache
    def get(name: str) -> Model:
        return load(open_file(tiny.make(folder / f"{name}.gguf", **MODELS[name])))

    return get


def found(model: Model, path: Path, style: str, *bugs: str, **options: Any) -> Diagnosis:
    case = planting.second(model.file.path, *bugs, tokens=TOKENS, steps=STEPS, **options)
    dump = planting.dump(case, style, model, path, TOKENS, STEPS)
    return diagnose(model, dump, weights=planting.weights_of(model.file))


CASES = [
    ("window", "swa-off-by-one/short", "kv16", "full"),
    ("window", "norm-weight-half", "f32", "layers"),
    ("plain", "pos-last-off-by-one", "q8", "full"),
    ("window", "softmax-half", "kv16", "layers"),  # below the noise of a GELU table, but predicted by a rounding rule
    ("experts", "eps-place", "f32", "logits"),  # as small as float32's noise
    ("plain", "pos-clamped", "kv16", "layers"),  # the parameter counts rows, and there are few rows
    pytest.param("plain", "pos-clamped", "q8", "layers", marks=pytest.mark.slow),
    pytest.param("window", "head-one-wrong", "f32", "last", marks=pytest.mark.slow),
    pytest.param("window", "head-one-wrong", "q8", "layers", marks=pytest.mark.slow),
    pytest.param("experts", "accumulate-half", "f32", "layers", marks=pytest.mark.slow),
    pytest.param("experts", "softmax-half", "kv16", "last", marks=pytest.mark.slow),
    pytest.param("plain", "kv-rounded-twice", "f32", "layers", marks=pytest.mark.slow),
    pytest.param("plain", "weight-torn", "f32", "layers", marks=pytest.mark.slow),
    pytest.param("window", "rope-base", "q8", "logits", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "bug", "arithmetic", "style"), CASES)
def test_small_faults_are_named(models: Any, tmp_path: Path, name: str, bug: str, arithmetic: str, style: str) -> None:
    result = found(models(name), tmp_path, style, bug, arithmetic=arithmetic)
    assert planting.grade(result, [bug.split("/")[0]]) in ("right", "tied"), result


@pytest.mark.parametrize("arithmetic", ["f32", "q8"])
def test_a_flipped_bit_is_found_with_its_row_and_block(models: Any, tmp_path: Path, arithmetic: str) -> None:
    only = ("blk.1.ffn_down.weight",)
    result = found(models("plain"), tmp_path, "full", "weight-damaged", only=only, arithmetic=arithmetic)
    assert [c.fault for c in result.causes] == ["weight-damaged"] and result.causes[0].node == "ffn_out-1"
    assert result.causes[0].how == "row 5 with bit 3 of byte 1 flipped in block 1"


@pytest.mark.parametrize(
    ("name", "only", "arithmetic", "style"),
    [
        ("window", "blk.0.ffn_up.weight", "f32", "last"),  # ten values give the row, and one number gives the bit
        ("window", "blk.0.ffn_up.weight", "q8", "layers"),  # a norm after the product bends the effect of the row
        ("experts", "blk.1.attn_output.weight", "f32", "layers"),  # experts bend it
        pytest.param("experts", "blk.1.attn_output.weight", "q8", "last", marks=pytest.mark.slow),
    ],
)
def test_damage_is_found_from_little(
    models: Any, tmp_path: Path, name: str, only: str, arithmetic: str, style: str
) -> None:
    result = found(models(name), tmp_path, style, "weight-damaged", only=(only,), arithmetic=arithmetic)
    assert [c.fault for c in result.causes] == ["weight-damaged"], result
    assert result.causes[0].how == "row 5 with bit 3 of byte 1 flipped in block 1"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["window", "experts"])
@pytest.mark.parametrize("arithmetic", ["f32", "f16", "q8", "kv16"])
def test_healthy_engines_of_other_kinds_are_healthy(models: Any, tmp_path: Path, name: str, arithmetic: str) -> None:
    for style in planting.STYLES:
        assert found(models(name), tmp_path / style, style, arithmetic=arithmetic), style


def test_what_the_evidence_cannot_tell_is_said(models: Any, tmp_path: Path) -> None:
    """No rounding rule predicts the logits of half precision exactly, so a small fault might hide in their noise. A
    rule that predicts them, or float32, leaves no question open."""
    model = models("window")
    vague = found(model, tmp_path / "vague", "logits", arithmetic="f16")
    assert vague.verdict == "undecided" and "dump l_out-0 whole, for all tokens" in vague.next_observation
    assert "undecided: " in text(vague, model) and "smaller than the noise of" in text(vague, model)
    for style, arithmetic in (("logits", "q8"), ("logits", "f32")):
        clear = found(model, tmp_path / f"{style}-{arithmetic}", style, arithmetic=arithmetic)
        assert clear.verdict == "healthy" and not clear.next_observation


def test_layers_in_bfloat16_leave_no_question_open(models: Any, tmp_path: Path) -> None:
    """The noise of weights in bfloat16 would cover these layers; the rule that rounds results predicts them."""
    clear = found(models("window"), tmp_path / "layers", "layers", arithmetic="bf16")
    assert clear.verdict == "healthy" and not clear.next_observation


@pytest.mark.parametrize("arithmetic", ["kvq8", "q8+kvq8", "flash+kv16", "f16+fused", "bf16"])
def test_other_caches_and_kernels_are_healthy(models: Any, tmp_path: Path, arithmetic: str) -> None:
    """An eight-bit cache is named and accepted; flash attention dumps no scores, a fused kernel not all values."""
    for style in ("full", "layers", "last"):
        result = found(models("wide"), tmp_path / style, style, arithmetic=arithmetic)
        assert result, (style, result)
        assert "kvq8" not in arithmetic or style != "full" or "a cache of eight bits" in result.notes[1], result


def test_a_mistake_that_explains_the_first_node_is_found_without_runs_of_all_others(
    models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole_runs(*_given: object) -> None:
        pytest.fail("every mistake of the catalogue was run from the tokens")

    monkeypatch.setattr(likelihood, "_likeliest", whole_runs)
    result = found(models("plain"), tmp_path, "last", "eps-value", arithmetic="f32")
    assert planting.grade(result, ["eps-value"]) in ("right", "tied"), result
