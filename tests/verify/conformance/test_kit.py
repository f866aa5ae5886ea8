"""A kit is written, answered by an engine, and graded: right answers pass, each kind of wrong one is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import PAGE, Chunk
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import codecs, open_file
from assay.gguf.types import by_name
from assay.models import load
from assay.text import ChatTemplate, Tokenizer
from assay.verify.conformance.grade import expected, score_kit
from assay.verify.conformance.vectors import write_kit
from tests import tiny

# Every type that the tiny model's writer can encode, in turn over its matrices.
ENCODED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kit")
    types = iter(ENCODED * 9)
    path = tiny.make(
        folder / "tiny.gguf", type=lambda _: next(types), n_embd=256, n_ff=256, n_layer=2, n_ctx=2304, tied=False
    )
    file = open_file(path)
    model, tokenizer = load(file), Tokenizer.from_gguf(file)
    write_kit(model, tokenizer, folder / "kit")
    answer(folder / "kit", path, folder / "results")
    return folder


def answer(kit: Path, model_path: Path, results: Path) -> None:
    """The program of an engine author: a float32 engine answers every question of the kit."""
    manifest: dict[str, Any] = json.loads((kit / "manifest.json").read_text())
    file = open_file(model_path)
    engine, tokenizer = ReferenceEngine(load(file), np.float32), Tokenizer.from_gguf(file)
    for section in ("probes", "ops", "blocks"):
        (results / section).mkdir(parents=True)
    for item in manifest["blocks"]:
        raw = expected(kit, item["bytes"], "u1")
        codecs.decode(by_name(item["type"]), raw).astype("<f4").tofile(results / "blocks" / f"{item['type']}.bin")
    for item in manifest["ops"]:
        expected(kit, item["output"]).tofile(results / "ops" / f"{item['op']}.bin")
    template = ChatTemplate.from_gguf(file, tokenizer)
    assert template is not None
    text = {
        "tokenizer": [tokenizer.encode(c["text"], add_special=c["add_special"]) for c in manifest["text"]["tokenizer"]],
        "template": [template.render(c["messages"]) for c in manifest["text"]["template"]],
    }
    (results / "text.json").write_text(json.dumps(text))
    for probe in manifest["probes"]:
        names = [node["name"] for node in probe["nodes"]]
        for run in range(probe["runs"]):
            values: dict[str, list[np.ndarray]] = {}
            start = 0
            for n in probe["steps"]:
                end = start + n
                pages = np.arange(-(-end // PAGE), dtype=np.int32)
                ids = np.array(probe["tokens"][start:end], np.int32)
                at = np.array(probe["positions"][start:end], np.int32)
                for name, value in engine.forward([Chunk(ids, start, pages, "none", at)], names)[0].nodes.items():
                    values.setdefault(name, []).append(value)
                start = end
            # scores of successive steps differ in width and are left out; partial answers count
            whole = {
                name: parts[0] if len(parts) == 1 else np.concatenate(parts)
                for name, parts in values.items()
                if len(parts) == 1 or parts[0].ndim == 2
            }
            stem = probe["id"] + (f".{run + 1}" if run else "")
            np.savez(results / "probes" / f"{stem}.npz", tokens=np.array(probe["tokens"]), **whole)


def test_right_answers_pass(kit: Path) -> None:
    score = score_kit(kit / "kit", kit / "results")
    assert score, [g for g in score.grades if g.verdict == "wrong"]
    totals = score.totals()
    assert set(totals) == {"blocks", "ops", "tokenizer", "template", "probes"}
    assert all(counts["right"] and not counts["wrong"] for counts in totals.values())
    assert totals["blocks"]["right"] >= 25 and not any(counts["missing"] for counts in totals.values())
    assert {g.verdict for g in score.grades if g.section == "probes"} <= {"f32", "f16 KV"}


def test_kit_is_small_and_plain(kit: Path) -> None:
    files = [f for f in (kit / "kit").rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 5_000_000
    assert {f.suffix for f in files} == {".json", ".md", ".bin"}
    manifest = json.loads((kit / "kit" / "manifest.json").read_text())
    ids = {p["id"] for p in manifest["probes"]}
    assert {"one-token", "two-tokens", "equal-tokens", "last-changed", "shifted", "swapped", "decode", "twice"} <= ids
    assert {"length-33", "length-65", "length-257", "length-2049"} <= ids
    assert {item["op"] for item in manifest["ops"]} >= {"rms_norm", "linear", "rope", "kq", "attn_softmax", "glu"}


def spoiled(kit: Path, tmp_path: Path) -> Path:
    shutil.copytree(kit / "results", tmp_path / "results")
    return tmp_path / "results"


def test_wrong_lanes_of_a_block_show(kit: Path, tmp_path: Path) -> None:
    """Nibbles in sequence instead of halves: the places that are wrong are counted."""
    results = spoiled(kit, tmp_path)
    path = results / "blocks" / "Q4_0.bin"
    right = np.fromfile(path, "<f4").reshape(-1, 2, 16)
    np.ascontiguousarray(right.transpose(0, 2, 1)).tofile(path)
    score = score_kit(kit / "kit", results)
    (bad,) = [g for g in score.grades if g.verdict == "wrong"]
    assert not score and (bad.section, bad.item) == ("blocks", "Q4_0")
    assert "places in the block" in bad.detail


def test_wrong_node_text_and_shape_show(kit: Path, tmp_path: Path) -> None:
    results = spoiled(kit, tmp_path)
    with np.load(results / "probes" / "two-tokens.npz") as dump:
        values = dict(dump)
    values["Qcur-1"] = values["Qcur-1"] * 1.01
    np.savez(results / "probes" / "two-tokens.npz", **values)
    (results / "ops" / "rope.bin").write_bytes(b"1234")
    text = json.loads((results / "text.json").read_text())
    text["tokenizer"][0] = text["tokenizer"][0][1:]
    (results / "text.json").write_text(json.dumps(text))
    (results / "probes" / "twice.2.npz").unlink()
    bad = {(g.section, g.item): g for g in score_kit(kit / "kit", results).grades if not g.passed}
    assert set(bad) == {
        ("probes", "two-tokens Qcur-1"), ("ops", "rope"), ("tokenizer", "'Hello world'"), ("probes", "twice.2"),
    }  # fmt: skip
    assert "nmse 1.0e-04" in bad["probes", "two-tokens Qcur-1"].detail
    assert bad["ops", "rope"].detail.startswith("4 bytes (expected ")
    assert bad["probes", "twice.2"].verdict == "missing"


def test_bad_input(kit: Path, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="not a kit"):
        score_kit(tmp_path, kit / "results")
    with pytest.raises(AssayError, match="holds none of the kit's results"):
        score_kit(kit / "kit", tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    file = open_file(kit / "tiny.gguf")
    with pytest.raises(AssayError, match="other things in it"):
        write_kit(load(file), Tokenizer.from_gguf(file), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
