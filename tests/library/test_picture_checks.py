"""`check --image`: an engine's tower and its run of a prompt with pictures, against the definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.library import picture_checks as checking
from assay.verify.witness import llamacpp_pictures

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
