"""Pictures from their bytes to the answer: the library, `run` and `chat`."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.cli import main
from assay.errors import AssayError
from assay.runtime.pictured_prompt import MEDIA, marked_messages, projector_beside
from tests.picture_prompts import FOLDER, golden, nmse


def ppm(pixels: np.ndarray) -> bytes:
    return f"P6 {pixels.shape[1]} {pixels.shape[0]} 255\n".encode() + pixels.tobytes()


def picture(seed: int = 1, width: int = 53, height: int = 37) -> bytes:
    return ppm(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its mmproj file beside it, and a picture."""
    found = tmp_path_factory.mktemp("gemma3")
    shutil.copy(FOLDER / "gemma3-text.gguf", found / "tiny.gguf")
    shutil.copy(FOLDER / "gemma3-mmproj.gguf", found / "mmproj-tiny.gguf")
    (found / "a.ppm").write_bytes(picture())
    return found


@pytest.mark.parametrize("name", ["gemma3", "qwen3vl"])
def test_from_the_bytes_of_a_picture_to_the_golden_logits(name: str) -> None:
    with np.load(FOLDER / "golden.npz") as file:
        data = ppm(file[f"{name}/image"])
    mmproj = FOLDER / f"{name}-mmproj.gguf"
    with assay.load(FOLDER / f"{name}-text.gguf", engine="cpu", precision="exact", mmproj=mmproj) as model:
        found = model.logits(f"ab{MEDIA}xyz", images=[data])[-1]
        np.testing.assert_array_equal(model.logits(f"ab{MEDIA}xyz", images=[data])[-1], found)
    assert nmse(found, golden(name)[1]) < 1e-11


def test_run_says_what_a_picture_becomes_before_it_is_computed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    options = ["--engine", "cpu", "--ctx-size", "128", "-n", "1", "-v", "--template", "chatml"]
    assert main(["run", str(folder / "tiny.gguf"), "--image", str(folder / "a.ppm"), *options, "-p", "what"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0].endswith("a.ppm: 53×37 pixels, 9 tokens, 0.0 MB of rows, 0.0 MB in the cache")


def test_pictures_in_texts_and_messages(folder: Path) -> None:
    with assay.load(folder / "tiny.gguf", engine="cpu", ctx_size=256, template="chatml") as model:
        asked = {"max_tokens": 3, "temperature": 0.0, "ignore_eos": True}
        one = model.generate(f"ab{MEDIA}xyz", images=[folder / "a.ppm"], **asked)
        two = model.generate(f"ab{MEDIA}c{MEDIA}xyz", images=[picture(), picture(2)], **asked)
        assert (one.timing.prompt_tokens, two.timing.prompt_tokens) == (17, 29)
        assert model.generate("abxyz", images=[picture()], **asked).timing.prompt_tokens == 17  # before the text
        parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
        messages = [{"role": "user", "content": parts}]
        assert (
            model.generate(messages, images=[picture()], **asked).ids
            == model.chat(messages, images=[picture()], **asked).ids
        )
        for images, message in (
            ([picture(), picture()], "1 places for pictures"),
            (["missing.png"], "cannot read the picture"),
            ([b"P6 9 9 255 abc"], "truncated"),
            (picture(), "a list"),
        ):
            with pytest.raises(AssayError, match=message):
                model.generate(messages, images=images, **asked)
        with pytest.raises(AssayError, match="says where pictures go"):
            model.generate(MEDIA, images=[picture()] * 2, **asked)
        with pytest.raises(AssayError, match="not ids"):
            model.generate([1, 2], images=[picture()], **asked)


def test_a_model_without_a_tower_says_what_is_missing(tmp_path: Path) -> None:
    alone = Path(shutil.copy(FOLDER / "gemma3-text.gguf", tmp_path / "m.gguf"))
    with assay.load(alone, engine="cpu", ctx_size=64) as model, pytest.raises(AssayError, match="no mmproj file lies"):
        model.generate("a", images=[picture()])
    with (
        assay.load(alone, engine="cpu", ctx_size=64, mmproj=FOLDER / "qwen3vl-mmproj.gguf") as model,
        pytest.raises(AssayError, match="does not fit the model"),
    ):
        model.generate("a", images=[picture()])
    for name in ("mmproj-m.gguf", "mmproj-n.gguf"):
        shutil.copy(FOLDER / "gemma3-mmproj.gguf", tmp_path / name)
    assert projector_beside(alone).name == "mmproj-m.gguf"
    with pytest.raises(AssayError, match="several mmproj files"):
        projector_beside(tmp_path / "other.gguf")


def test_run_says_which_file_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    model, right, bad = str(folder / "tiny.gguf"), str(folder / "a.ppm"), tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    options = ["--engine", "cpu", "--ctx-size", "128", "-n", "1", "--template", "chatml"]
    for given, said in (
        ([model, "--image", right, "--image", str(bad), "-p", "a"], f"{bad}: picture: cannot be decoded"),
        ([model, "--image", "https://example.org/a.png", "-p", "a"], "https://example.org/a.png: is a URL"),
        ([model, "--mmproj", str(tmp_path / "none.gguf"), "-p", "a"], "none.gguf: no such file"),
        ([str(folder / "mmproj-tiny.gguf"), "--image", right, "-p", "a"], "mmproj-tiny.gguf: is an mmproj file"),
        ([model, "--image", right, "--image", right, "-p", f"x {MEDIA} y"], "found 1 in the text, expected 2"),
    ):
        assert main(["run", *given, *options]) == 2
        assert said in capsys.readouterr().err


def test_a_mark_in_a_message_says_where_the_picture_goes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    given = ["run", str(folder / "tiny.gguf"), "--image", str(folder / "a.ppm"), "--engine", "cpu", "-c", "128"]
    given += ["-n", "1", "--template", "chatml", "--json"]

    def first_row(text: str) -> tuple[int, int]:
        assert main([*given, "-p", text]) == 0
        ids = json.loads(capsys.readouterr().out)["prompt_ids"]
        return ids.index(-1), len(ids)

    assert first_row(f"{MEDIA}xyz") == first_row("xyz")
    behind, length = first_row(f"xyz{MEDIA}")
    assert (behind, length) == (first_row("xyz")[0] + 3, first_row("xyz")[1])


def test_marks_stand_where_the_parts_are() -> None:
    text = {"type": "text", "text": "b"}
    assert marked_messages([{"role": "user", "content": [{"type": "image"}, text]}], 1, "|") == [
        {"role": "user", "content": "|b"}
    ]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert [m["content"] for m in marked_messages(turns, 2, "|")] == ["a", "b", "||c"]


def test_run_and_chat(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["-m", str(folder / "tiny.gguf"), "--engine", "cpu", "-c", "256", "-n", "2", "--temp", "0", "--json"]
    monkeypatch.setattr("sys.stdin", None)
    assert main(["run", *given, "--image", str(folder / "a.ppm"), "--raw", "-p", f"ab{MEDIA}xyz"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["timing"]["prompt_tokens"] == 17 and found["prompt_ids"][4:13] == [-1] * 9
    assert main(["run", *given, "--image", str(folder / "a.ppm"), "--ids", "1,2"]) == 2
    assert "ids have no place" in capsys.readouterr().err

    class Input:
        buffer = io.BytesIO(f"/image {folder / 'a.ppm'}\nwhat?\n/image nothing.png\nand?\n".encode())

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Input())
    assert main(["chat", *given, "--template", "chatml"]) == 0
    said = capsys.readouterr()
    turns = json.loads(said.out)["turns"]
    assert "cannot read the picture" in said.err and turns[0]["prompt_tokens"] > 9 + 5
    assert turns[1]["prompt_tokens"] > turns[0]["prompt_tokens"]
