"""A kit with pictures is written, answered and graded: towers alone, and a prompt with its picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.engines.contract import Chunk, PictureRows
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.verify.conformance.grade import expected, score_kit

DATA = Path(__file__).parents[2] / "data" / "vision"


def answers(kit: Path, section: str, number: int = 0) -> dict[str, np.ndarray]:
    """The kit's own values of a picture or prompt, under the names that an engine dumps."""
    item = json.loads((kit / "manifest.json").read_text("utf-8"))[section][number]
    images = item["images"] if section == "pictures" else [item]
    found = {}
    for j, image in enumerate(images):
        end = f"@{j}" if j else ""
        found |= {f"{node['name']}{end}": expected(kit, node["parts"][0]) for node in image["nodes"]}
        if section == "pictures":
            found[f"pixels_{j}"] = expected(kit, image["pixels"])
    return found


def grades(kit: Path, results: Path, section: str, name: str = "", **values: np.ndarray) -> dict[str, str]:
    (results / section).mkdir(parents=True, exist_ok=True)
    name = name or {"pictures": "picture-0", "prompts": "prompt"}[section]
    np.savez(results / section / f"{name}.npz", **values)
    found = {g.item: g.verdict for g in score_kit(kit, results).grades if g.section == section}
    return {item: verdict for item, verdict in found.items() if item.startswith(name)}


@pytest.fixture(scope="module")
def tower_kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tower")
    assert main(["kit", str(DATA / "pixtral-mmproj.gguf"), "-o", str(folder / "kit")]) == 0
    return folder


def test_right_answers_of_a_tower_pass(tower_kit: Path) -> None:
    kit = tower_kit / "kit"
    found = grades(kit, tower_kit / "right", "pictures", **answers(kit, "pictures"))
    assert found.pop("picture-0 image 0 pixels") == "exact" and len(found) > 20 and set(found.values()) == {"f32"}
    assert (kit / "data/picture-0.ppm").read_bytes().startswith(b"P6")


def test_wrong_pixels_and_nodes_are_named(tower_kit: Path) -> None:
    kit, right = tower_kit / "kit", answers(tower_kit / "kit", "pictures")
    other = {**right, "pixels_0": right["pixels_0"][::-1], "layer_out-1": right["layer_out-1"] * 1.01}
    found = grades(kit, tower_kit / "wrong", "pictures", **other)
    assert {item for item, verdict in found.items() if verdict == "wrong"} == {
        "picture-0 image 0 pixels", "picture-0 image 0 layer_out-1",
    }  # fmt: skip


def test_a_rounding_of_the_resize_is_no_fault(tower_kit: Path) -> None:
    pixels = answers(tower_kit / "kit", "pictures")["pixels_0"].copy()
    step = json.loads((tower_kit / "kit/manifest.json").read_text("utf-8"))["pictures"][0]["images"][0]["step"]
    pixels[0, 3, 3] += np.float32(step)
    found = grades(tower_kit / "kit", tower_kit / "rounded", "pictures", pixels_0=pixels)
    assert found == {"picture-0 image 0 pixels": "rounding"}


def test_a_prompt_with_its_picture(tmp_path: Path) -> None:
    picture, kit = tmp_path / "p.ppm", tmp_path / "kit"
    picture.write_bytes(b"P6\n40 30\n255\n" + bytes(range(240)) * 15)
    code = main(
        ["kit", str(DATA / "qwen3vl-text.gguf"), "-o", str(kit), "--image", str(picture), "-p", "a <__media__> b"]
    )
    assert code == 0
    prompt = json.loads((kit / "manifest.json").read_text("utf-8"))["prompts"][0]
    slots = prompt["images"][0]["slots"]
    assert [i for i, token in enumerate(prompt["tokens"]) if token < 0] == list(range(*slots))
    assert prompt["positions"][slots[0]][0] == prompt["positions"][slots[1] - 1][0]  # one t for the rows of an image
    right = answers(kit, "prompts")
    assert set(grades(kit, tmp_path / "right", "prompts", **right).values()) == {"f32"}
    text = np.array([token for token in prompt["tokens"] if token >= 0])
    found = grades(kit, tmp_path / "logits", "prompts", logits=right["result_output"][-1], tokens=text)
    assert found == {"prompt result_output": "f32"}
    found = grades(kit, tmp_path / "wrong", "prompts", logits=right["result_output"][0], tokens=text)
    assert found == {"prompt result_output": "wrong"}
    assert grades(kit, tmp_path / "fed", "prompts", logits=right["result_output"], tokens=text[::-1]) == {
        "prompt": "wrong"
    }


def test_decode_steps_behind_a_prompt_with_its_picture(tmp_path: Path) -> None:
    """The cpu engine's own steps pass, whether it dumps all rows or those of the steps; other positions do not."""
    picture, kit = tmp_path / "p.ppm", tmp_path / "kit"
    picture.write_bytes(b"P6\n40 30\n255\n" + bytes(range(240)) * 15)
    model = DATA / "qwen3vl-text.gguf"
    assert main(["kit", str(model), "-o", str(kit), "--image", str(picture), "-p", "a <__media__> bcd"]) == 0
    entry = json.loads((kit / "manifest.json").read_text("utf-8"))["prompts"][1]
    n, *steps = entry["steps"]
    tokens, at = np.array(entry["tokens"]), np.array(entry["positions"], np.int32)
    assert entry["id"] == "decode" and steps == [1, 1, 1] and n + 3 == len(tokens)
    assert at[n, 0] < n, "positions lag behind the rows of the picture"
    rows = expected(kit, entry["images"][0]["rows"])
    slots = np.arange(*entry["images"][0]["slots"], dtype=np.int32)

    def run(positions: np.ndarray) -> dict[str, np.ndarray]:
        engine = CpuEngine(load(open_file(model)), n_pages=16, precision="exact", threads=1)
        found: dict[str, list[np.ndarray]] = {"l_out-0": [], "logits": []}
        for a, b in ((0, n), (n, n + 1), (n + 1, n + 2), (n + 2, n + 3)):
            own = PictureRows(slots, rows) if a == 0 else PictureRows(slots[:0], rows[:0])
            given = replace(own, positions=positions[a:b])
            ids = np.maximum(tokens[a:b], 0).astype(np.int32)
            out = engine.forward([Chunk(ids, a, np.arange(16, dtype=np.int32), "all", pictures=given)], ["l_out-0"])[0]
            found["l_out-0"].append(out.nodes["l_out-0"])
            found["logits"].append(out.logits)
        engine.close()
        return {name: np.concatenate(parts) for name, parts in found.items()}

    right = run(at)
    wanted = {"decode l_out-0": "f32", "decode result_output": "f32"}
    assert grades(kit, tmp_path / "all", "prompts", "decode", **right) == wanted
    last = {name: value[-3:] for name, value in right.items()}
    assert grades(kit, tmp_path / "last", "prompts", "decode", **last) == wanted
    late = at.copy()
    late[n:] = np.arange(n, n + 3)[:, None]
    found = grades(kit, tmp_path / "late", "prompts", "decode", **run(late))
    assert set(found.values()) == {"wrong"}


def test_a_prompt_needs_a_picture_and_a_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kit", str(DATA / "gemma3-text.gguf"), "-o", str(tmp_path / "kit"), "-p", "a"]) == 2
    assert "name them with --image" in capsys.readouterr().err
    picture = tmp_path / "p.ppm"
    picture.write_bytes(b"P6\n2 2\n255\n" + bytes(12))
    asked = ["kit", str(DATA / "gemma3-mmproj.gguf"), "-o", str(tmp_path / "kit"), "-p", "a", "--image", str(picture)]
    assert main(asked) == 2
    assert "a tower runs no prompt" in capsys.readouterr().err


def test_an_empty_folder_is_refused(tower_kit: Path, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="pictures/"):
        score_kit(tower_kit / "kit", tmp_path)
