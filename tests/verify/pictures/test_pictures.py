"""What an engine made of a picture: right engines are healthy, planted mistakes are named."""

from __future__ import annotations

import io
from dataclasses import replace
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
from assay.library.picture_verdicts import diagnose_image, image_prompts
from assay.library.verdicts import read_values
from assay.runtime.image_places import place_images
from assay.runtime.opening import open_model
from assay.verify.diagnosis.result import Diagnosis
from assay.verify.faults.vision import PROMPT_PLANTS
from assay.verify.faults.vision.prompt_edits import RIGHT_PROMPT, PromptHabits
from assay.verify.pictures.diagnose_prompt import diagnose_prompt
from assay.verify.pictures.difference_image import png, side_by_side
from assay.verify.pictures.prompt_trials import fed_prompt, placed_by
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


LAYERS = ("l_out-0", "l_out-1")


def prompt_run(name: str, fault: str, nodes: tuple[str, ...]) -> tuple[dict[str, np.ndarray], object]:
    """What an engine that feeds the prompt with this mistake has at these nodes, and the prompt."""
    model, (pieces, _) = picture_prompts.model_of(name), picture_prompts.golden(name)

    def placed(markers: bool) -> object:
        return place_images(pieces if markers else pieces[1:2])

    made = fed_prompt(model, placed, PROMPT_PLANTS[fault][0][1] if fault else RIGHT_PROMPT)
    assert made is not None
    values = interpret(made.graph, Weights(model.file), made.given, nodes)
    return {node: value.astype(np.float32) for node, value in values.items()}, placed


def judged_prompt(name: str, values: dict[str, np.ndarray], placed: object) -> Diagnosis:
    return diagnose_prompt(picture_prompts.model_of(name), placed, read_values(values))[0]


@pytest.mark.parametrize("fault", ["vis-lm-yx", "vis-lm-scale", "vis-lm-causal", "vis-lm-sections", "vis-lm-advance"])
@pytest.mark.parametrize("nodes", [("result_output",), LAYERS], ids=["logits", "layers"])
def test_a_mistake_of_the_prompt_is_named(fault: str, nodes: tuple[str, ...]) -> None:
    values, placed = prompt_run("qwen2vl", fault, nodes)
    assert [cause.fault for cause in judged_prompt("qwen2vl", values, placed).causes] == [fault]


def test_missing_markers_show_in_the_number_of_rows() -> None:
    values, placed = prompt_run("qwen2vl", "vis-lm-markers", LAYERS)
    assert [cause.fault for cause in judged_prompt("qwen2vl", values, placed).causes] == ["vis-lm-markers"]


@pytest.mark.parametrize("name", ["qwen2vl", "gemma3"])
def test_a_right_run_of_a_prompt_is_healthy(name: str) -> None:
    values, placed = prompt_run(name, "", ("embd" if name == "qwen2vl" else "l_out-0", "l_out-1", "result_output"))
    assert judged_prompt(name, values, placed).verdict == "healthy"
    exact = {"logits": picture_prompts.golden(name)[1]}
    assert judged_prompt(name, exact, placed).verdict == "healthy"


@pytest.mark.parametrize("nodes", [("result_output",), LAYERS], ids=["logits", "layers"])
def test_a_mistake_of_the_language_model_is_named_beside_a_picture(nodes: tuple[str, ...]) -> None:
    model, (pieces, _) = picture_prompts.model_of("qwen2vl"), picture_prompts.golden("qwen2vl")
    made = fed_prompt(model, lambda _: place_images(pieces))
    assert made is not None
    other = made.graph.rewrite(
        lambda n: replace(n, attrs={**n.attrs, "act": "gelu_tanh"}) if n.all_attrs().get("act") == "silu" else None
    )
    values = interpret(other, Weights(model.file), made.given, nodes)
    found = judged_prompt("qwen2vl", values, lambda _: place_images(pieces))
    assert found.causes and "act" in found.causes[0].fault, found


def test_the_command_judges_a_prompt_with_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, dump, log = tmp_path / "p.png", tmp_path / "dump.npz", tmp_path / "run.log"
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 56, 3), np.uint8)).save(picture)
    folder, text = picture_prompts.FOLDER, "a <__media__> b"
    on = open_model(str(folder / "qwen3vl-text.gguf"))
    placed = placed_by(on.tokenizer, text, image_prompts(on, [picture], folder / "qwen3vl-mmproj.gguf"))
    for habits, code, said in ((RIGHT_PROMPT, 0, "healthy"), (PromptHabits(exchanged=True), 1, "vis-lm-yx")):
        made = fed_prompt(on.model, placed, habits)
        assert made is not None
        values = interpret(made.graph, Weights(on.file), made.given, ["l_out-0", "result_output"])
        np.savez(dump, **values)
        asked = [str(on.file.path), str(dump), "--image", str(picture), "-p", text]
        assert main(["diagnose", *asked]) == code
        assert said in capsys.readouterr().out
        assert main(["diff", *asked]) == code
        rows = values["l_out-0"][-1]
        log.write_text(f"l_out-0 last token: rms {np.sqrt(np.mean(rows**2)):.6f}, first {rows[:4].round(6).tolist()}\n")
    capsys.readouterr()
    assert main(["diagnose", str(on.file.path), str(log), "--image", str(picture), "-p", text]) == 1
    assert "vis-lm-" in capsys.readouterr().out
