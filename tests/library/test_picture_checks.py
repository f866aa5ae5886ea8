"""`check --image`: an engine's tower and its run of a prompt with pictures, against the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.errors import AssayError
from assay.library import picture_checks as checking
from assay.library.picture_verdicts import tower_of
from assay.verify.pictures.picture_dump import PictureDump
from assay.verify.witness import llamacpp_pictures
from assay.verify.witness.transformers_pictures import processed_pixels
from assay.vision.picture import decode_boxed

DATA = Path(__file__).parents[1] / "data" / "vision"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    found = tmp_path / "p.ppm"
    found.write_bytes(b"P6\n40 30\n255\n" + np.random.default_rng(3).integers(0, 256, 3600, np.uint8).tobytes())
    return found


def test_the_reference_passes(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["check", str(DATA / "qwen3vl-text.gguf"), "--engine", "reference", "--image", str(picture)]
    assert main(asked) == 0
    assert "2 of 2 checks passed" in capsys.readouterr().out


def test_another_number_of_rows_fails(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checking._own

    def wrong(*args: object) -> llamacpp_pictures.SeenPrompt:
        seen = right(*args)  # type: ignore[arg-type]
        return llamacpp_pictures.SeenPrompt(seen.images, seen.rows[:-1], seen.nodes, seen.logits, seen.tokens)

    monkeypatch.setattr(checking, "_own", wrong)
    (found,) = checking.picture_checks(str(DATA / "qwen3vl-text.gguf"), "reference", [picture])
    assert not found.passed and "expected" in found.detail


@pytest.mark.parametrize(("more", "said"), [
    (["-p", "a"], "name them with --image"), (["--image", "p.ppm", "--lengths", "2"], "leave --lengths"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(DATA / "qwen3vl-text.gguf"), *more]) == 2
    assert said in capsys.readouterr().err


def test_llama_cpp_is_right(picture: Path) -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    try:
        import llama_cpp.mtmd_cpp  # noqa: F401
    except (ImportError, OSError, RuntimeError):
        pytest.skip("needs llama.cpp's libmtmd")
    found = list(checking.picture_checks(str(DATA / "gemma3-text.gguf"), "llamacpp", [picture]))
    assert [check.passed for check in found] == [True, True], [check.detail for check in found]


@pytest.mark.parametrize("name", ["gemma3", "qwen3vl", "idefics3", "pixtral", "llava"])
def test_the_processors_of_transformers_are_right(name: str, picture: Path) -> None:
    """Their pixels are llama.cpp's, or differ as the trained model does; a moved channel is named."""
    pytest.importorskip("transformers", minversion="5.20", reason="needs transformers")
    tower = tower_of(None, DATA / f"{name}-mmproj.gguf")
    pixels = decode_boxed(picture.read_bytes())
    (found,) = checking._processor_checks(tower, [pixels])
    assert found.passed, (found.detail, found.answer)
    made = processed_pixels(tower.keys, pixels)
    turned = {
        j: x[::-1] if x.ndim == 3 else x.reshape(len(x), 3, -1)[:, ::-1].reshape(x.shape) for j, x in made.items()
    }
    wrong = checking._tower_check("turned", tower, pixels, PictureDump("transformers", pixels=turned))
    assert not wrong.passed and "blue, green, red" in wrong.answer


def test_a_projector_without_a_processor_is_refused(picture: Path) -> None:
    tower = tower_of(None, DATA / "gemma4-mmproj.gguf")
    with pytest.raises(AssayError, match="has no processor of gemma4v on Pillow"):
        processed_pixels(tower.keys, decode_boxed(picture.read_bytes()))


def test_other_sizes_are_described(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = tower_of(None, DATA / "gemma3-mmproj.gguf")
    monkeypatch.setattr(checking, "processed_pixels", lambda *_: {0: np.zeros((3, 4, 5), np.float32)})
    (found,) = checking._processor_checks(tower, [decode_boxed(picture.read_bytes())])
    assert not found.passed and found.detail.startswith("found 1 image of 3x4x5, expected 1 of 3x48x48")
