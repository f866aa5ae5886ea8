"""What an engine made of a picture: right engines are healthy, planted mistakes are named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="the second engine resizes with Pillow")
pytest.importorskip("gguf", reason="the second engine reads files with gguf")

from PIL import Image

from assay.cli import main
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.library.picture_verdicts import diagnose_image
from assay.runtime.image_places import place_images
from assay.verify.faults.vision import PROMPT_PLANTS
from assay.verify.pictures.difference_image import png, side_by_side
from assay.verify.pictures.prompt_trials import diagnose_prompt, fed_prompt
from tests import picture_prompts
from tests import tower_planting as planting

HERE = ("llava", "pixtral", "qwen3vl")


def tower(name: str) -> planting.GoldenTower:
    found = planting.golden_tower(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("options", [{}, {"weights": "bf16"}, {"halves": True}], ids=["f32", "bf16", "halves"])
def test_a_right_engine_is_healthy(name: str, options: dict[str, object]) -> None:
    found = planting.judged(tower(name), planting.run(tower(name), **options), "tower")
    assert found.diagnosis.verdict == "healthy", found.diagnosis


@pytest.mark.parametrize(
    ("name", "bug", "style"),
    [
        ("llava", "vis-stretch", "pixels"),
        ("llava", "vis-pad-corner", "rows"),
        ("llava", "vis-bgr", "tower"),
        ("llava", "vis-activation", "rows"),
        ("pixtral", "vis-rope-pairs", "tower"),
        ("pixtral", "vis-no-break", "rows"),
        ("pixtral", "vis-patch-columns", "rows"),
        ("qwen3vl", "vis-pos-mode", "tower"),
        ("qwen3vl", "vis-deepstack-missing", "rows"),
        ("qwen3vl", "vis-gelu-erf", "tower"),
    ],
)
def test_a_planted_mistake_is_named(name: str, bug: str, style: str) -> None:
    golden = tower(name)
    assert planting.grade(planting.judged(golden, planting.run(golden, bug), style), bug)[0] == "named"


def test_what_the_trained_model_does_is_healthy() -> None:
    golden = tower("llava")
    found = planting.judged(golden, planting.run(golden, "vis-class-first"), "rows")
    assert found.diagnosis.verdict == "healthy" and found.usual == ("vis-class-first",)


def test_pixels_may_come_in_any_layout() -> None:
    golden = tower("llava")
    pixels = planting.run(golden)[0][0]
    for value in (pixels, pixels[None], pixels.transpose(1, 2, 0)):
        assert diagnose_image(golden.tower, {"pixel_values": value}, golden.picture)
    assert not diagnose_image(golden.tower, {"pixel_values": pixels[::-1]}, golden.picture)


def test_a_dump_without_a_picture_is_refused() -> None:
    with pytest.raises(AssayError, match="holds nothing of a picture"):
        diagnose_image(tower("llava").tower, {"other": np.zeros((2, 2), np.float32)}, tower("llava").picture)


def test_the_command_names_the_mistake_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden, dump, picture = tower("llava"), tmp_path / "dump.npz", tmp_path / "picture.png"
    np.savez(dump, pixels_0=planting.run(golden, "vis-stretch")[0][0])
    Image.fromarray(golden.picture).save(picture)
    page = tmp_path / "report.html"
    code = main(["diagnose", str(golden.path), str(dump), "--image", str(picture), "--html", str(page)])
    assert code == 1 and "your engine stretches; this file keeps the ratio and pads with" in capsys.readouterr().out
    assert "data:image/png;base64," in page.read_text("utf-8")


def test_the_difference_is_a_png() -> None:
    right, found = np.zeros((3, 4, 6), np.float32), np.ones((3, 4, 6), np.float32)
    drawn = side_by_side(right, found, np.zeros(3), np.ones(3))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(drawn)))), drawn)


@pytest.mark.parametrize("fault", ["vis-lm-yx", "vis-lm-scale", "vis-lm-causal", "vis-lm-sections"])
def test_a_mistake_of_the_prompt_is_named_by_its_logits(fault: str) -> None:
    model, (pieces, exact) = picture_prompts.model_of("qwen2vl"), picture_prompts.golden("qwen2vl")

    def placed(_markers: bool) -> object:
        return place_images(pieces)

    assert diagnose_prompt(model, placed, exact, "exact")[0].verdict == "same"
    made = fed_prompt(model, placed, PROMPT_PLANTS[fault][0][1])
    assert made is not None
    wrong = interpret(made.graph, Weights(model.file), made.given, [made.graph.output])[made.graph.output]
    assert [cause.fault for cause in diagnose_prompt(model, placed, wrong, "wrong")[1]] == [fault]
