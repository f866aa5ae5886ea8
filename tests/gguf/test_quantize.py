"""Whole files: llama.cpp's choice of types, and nothing lost or half written on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from assay.cli import main
from assay.errors import AssayError
from assay.gguf import GGUFFile, Tensor, Typed, ValueType, by_name, codecs, open_file, write
from assay.gguf.importance import Importance, ImportanceEntry
from assay.gguf.mixes import MIXES, Facts, choose, fits, is_quantizable, mix_by_name
from assay.gguf.requantize import facts_of, plan, quantize

from . import witness

LLAMACPP: dict[str, Any] = json.loads((witness.DATA / "mixes.json").read_text())


def name_of(pattern: str, i: int) -> str:
    return pattern.replace("*", str(i))


@pytest.mark.parametrize("model", LLAMACPP)
def test_types_are_llamacpps(model: str) -> None:
    """Every tensor of every model under every mix, as llama.cpp's own quantiser chose."""
    recorded = LLAMACPP[model]
    tensors = [
        (name_of(pattern, i), tuple(entry["shape"]), by_name(kind))
        for pattern, entry in recorded["tensors"].items()
        for i, kind in enumerate(witness.unroll(entry["type"]))
    ]
    listed = [(mix, False, found) for mix, found in recorded["mixes"].items()]
    listed += [(mix, True, found) for mix, found in recorded.get("weighted", {}).items()]
    for mix, weighted, patterns in listed:
        chosen = choose(MIXES[mix], Facts(**recorded["facts"]), tensors, weighted)
        assert len(chosen) == len(tensors)
        for pattern, types in patterns.items():
            found = [chosen[name_of(pattern, i)].name for i in range(len(witness.unroll(types)))]
            assert witness.runs(found) == types, f"{mix}: {pattern}"


@pytest.mark.slow
@pytest.mark.parametrize("model", witness.MODELS)
def test_the_record_is_still_llamacpps(model: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    witness.make_model(tmp_path / "model.gguf", **witness.MODELS[model])
    assert witness.describe(tmp_path / "model.gguf") == LLAMACPP[model]


def test_facts_come_from_the_file(tmp_path: Path) -> None:
    for model, options in witness.MODELS.items():
        witness.make_model(tmp_path / "model.gguf", **options)
        with open_file(tmp_path / "model.gguf") as file:
            assert facts_of(file) == Facts(**LLAMACPP[model]["facts"])


def test_heads_may_differ_by_layer(tmp_path: Path) -> None:
    keys = {"general.architecture": "llama", "llama.attention.head_count": [8, 4], "llama.block_count": 2}
    write(tmp_path / "model.gguf", keys, [])
    with open_file(tmp_path / "model.gguf") as file:
        assert (facts_of(file).n_head, facts_of(file).n_head_kv) == (8, 8)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blk.0.attn_q.weight", (4, 256), True),
        ("blk.0.attn_q.weight", (1, 256), False),
        ("blk.0.attn_q.bias", (4, 256), False),
        ("blk.0.ffn_down_exps.weight", (4, 2, 256), True),
        ("blk.0.ffn_gate_inp.weight", (4, 256), False),
        ("blk.0.attn_norm.weight", (4, 256), False),
        ("position_embd.weight", (4, 256), False),
        ("rope_freqs.weight", (32,), False),
        ("blk.0.ssm_conv1d.weight", (4, 256), False),
        ("blk.0.time_mix_w1.weight", (4, 256), False),
        ("blk.0.time_mix_key.weight", (4, 256), True),
    ],
)
def test_what_is_quantised(name: str, shape: tuple[int, ...], expected: bool) -> None:
    assert is_quantizable(name, shape) is expected


def test_fallback_by_row_length() -> None:
    asked = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16"]
    assert [fits(name, 512) for name in asked] == asked
    assert [fits(name, 96) for name in asked] == ["Q4_0", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q8_0", "F16"]
    assert {fits(name, 80) for name in asked} == {"F16"}


def test_names_of_mixes() -> None:
    assert mix_by_name("q4_k_m").file_type == 15 and mix_by_name("Q5_K").name == "Q5_K_M"
    with pytest.raises(AssayError, match="Q4_K_XL: no such quantisation; known are F32, F16, BF16, Q8_0"):
        mix_by_name("Q4_K_XL")
    for mix in MIXES.values():
        if mix.name != "Q2_0":  # this version of gguf does not know it
            assert mix.file_type == gguf.LlamaFileType[f"{'ALL' if mix.name == 'F32' else 'MOSTLY'}_{mix.name}"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three layers, 256 wide, in float32, with metadata of many types."""
    path = tmp_path / "model.gguf"
    witness.make_model(path, n_layer=3)
    with open_file(path) as file:
        pairs: dict[str, object] = {key: file.metadata.typed(key) for key in file.metadata}
        tensors = [Tensor(t.name, t.shape, t.type, file.raw(t.name).copy()) for t in file.tensors.values()]
    pairs |= {"general.file_type": 0, "x.byte": Typed(ValueType.UINT8, 7), "x.words": ["a", "é"], "x.f": 0.5}
    pairs |= {"x.flags": np.array([True, False]), "x.longs": np.array([1, -2], np.int64)}
    write(path, pairs, tensors)
    return path


@pytest.mark.parametrize("name", MIXES)
def test_a_file_comes_out_right(name: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    seen: list[str] = []
    with open_file(model) as before:
        importance = ones(before) if name in witness.NEEDY_MIXES else None
        steps = quantize(before, out, MIXES[name], importance=importance, progress=lambda step: seen.append(step.name))
        with open_file(out) as after:
            check_same_model(before, after, MIXES[name].file_type, importance)
    assert seen == [step.name for step in steps]
    assert [step.name for step in steps if not step.scale_of] == list(open_file(model).tensors)
    if name == "Q2_0":
        return  # gguf's reader does not know the type
    reader = gguf.GGUFReader(out)
    assert [(t.name, t.tensor_type.name) for t in reader.tensors] == [(s.name, s.after.name) for s in steps]


def ones(file: GGUFFile) -> Importance:
    """Every column of every layer's matrices as important as the others."""
    shapes = {name: t.shape for name, t in file.tensors.items() if name.startswith("blk.") and len(t.shape) > 1}
    return Importance({
        name: ImportanceEntry(np.ones((1, shape[-1]), np.float32), np.ones(1, np.float32))
        for name, shape in shapes.items()
    })  # fmt: skip


def check_same_model(before: GGUFFile, after: GGUFFile, file_type: int, importance: Importance | None = None) -> None:
    assert after.get_int("general.file_type") == file_type
    assert after.get_int("general.quantization_version") == 2
    for key in set(before.metadata) - {"general.file_type"}:
        assert after.metadata.types(key) == before.metadata.types(key), key
        assert np.array_equal(after.metadata[key], before.metadata[key]), key
    scales = [name for name in after.tensors if name.endswith(".scale")]
    assert [name for name in after.tensors if name not in scales] == list(before.tensors)
    assert bool(scales) == (file_type == 39)
    for name in before.tensors:
        info = after.tensors[name]
        assert info.shape == before.tensors[name].shape
        if name.replace(".weight", ".scale") in scales:
            check_scaled(before, after, name)
            continue
        weights = importance.of(name, info.shape) if importance is not None else None
        expected = codecs.decode(info.type, codecs.encode(info.type, before.decode(name), weights))
        assert np.array_equal(after.decode(name), expected), name


def check_scaled(before: GGUFFile, after: GGUFFile, name: str) -> None:
    """NVFP4: the largest weight, divided by the matrix's scale, is the largest that the type has."""
    x, scale = before.decode(name), after.decode(name.replace(".weight", ".scale"))
    assert scale == pytest.approx(np.abs(x).max() / 2688)
    assert np.array_equal(after.raw(name), codecs.encode("NVFP4", x / scale))
    assert witness.rms(after.decode(name) * scale - x) < 0.1 * witness.rms(x)


def test_bytes_do_not_depend_on_threads_or_slabs(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outs = [tmp_path / f"{i}.gguf" for i in range(2)]
    with open_file(model) as file:
        quantize(file, outs[0], MIXES["Q4_K_M"], threads=1)
        monkeypatch.setattr("assay.gguf.requantize.SLAB", 256)
        quantize(file, outs[1], MIXES["Q4_K_M"], threads=3)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_quantising_twice_must_be_asked_for(model: Path, tmp_path: Path) -> None:
    once, twice, floats = (tmp_path / name for name in ("once.gguf", "twice.gguf", "floats.gguf"))
    with open_file(model) as file:
        quantize(file, once, MIXES["Q8_0"])
    with open_file(once) as file:
        with pytest.raises(AssayError, match=r"once.gguf: already quantised \(\d+ tensors.*--allow-requantize"):
            quantize(file, twice, MIXES["Q4_0"])
        assert not twice.exists()
        quantize(file, twice, MIXES["Q4_0"], allow_requantize=True)
        quantize(file, floats, MIXES["F32"])  # loses nothing, so needs no leave
        quantize(file, tmp_path / "same.gguf", MIXES["Q8_0"])  # copies
        with open_file(floats) as wide:
            assert all(np.array_equal(wide.decode(name), file.decode(name)) for name in file.tensors)
    assert (tmp_path / "same.gguf").read_bytes() == once.read_bytes()


def test_the_input_is_never_the_output(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(model)
    os.link(model, tmp_path / "hard.gguf")
    before = model.read_bytes()
    with open_file(model) as file:
        for out in (model, tmp_path / "link.gguf", tmp_path / "hard.gguf"):
            with pytest.raises(AssayError, match="is the input file"):
                quantize(file, out, MIXES["Q8_0"])
    assert model.read_bytes() == before


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    """A NaN in the last tensor: the error names it, and what stood at OUT stands there still."""
    weights = np.ones((4, 256), np.float32)
    bad = weights.copy()
    bad[3, 7] = np.nan
    names = {"blk.0.attn_q.weight": weights, "blk.0.ffn_up.weight": bad}
    tensors = [Tensor(name, (4, 256), by_name("F32"), data) for name, data in names.items()]
    write(tmp_path / "bad.gguf", {"general.architecture": "llama"}, tensors)
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with open_file(tmp_path / "bad.gguf") as file, pytest.raises(AssayError, match=r"blk.0.ffn_up.weight: Q4_K: .*NaN"):
        quantize(file, out, MIXES["Q4_K_M"])
    assert out.read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf", "out.gguf"]


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    keys: dict[str, object] = {"general.architecture": "llama"}
    for no in range(2):
        split = {"split.no": Typed(ValueType.UINT16, no), "split.count": Typed(ValueType.UINT16, 2)}
        split["split.tensors.count"] = Typed(ValueType.INT32, 2)
        data = np.full((2, 32), no + 1, np.float32)
        tensor = Tensor(f"blk.{no}.ffn_up.weight", (2, 32), by_name("F32"), data)
        write(tmp_path / f"m-{no + 1:05}-of-00002.gguf", keys | split, [tensor])
    with open_file(tmp_path / "m-00001-of-00002.gguf") as file:
        quantize(file, tmp_path / "out.gguf", MIXES["Q8_0"])
    with open_file(tmp_path / "out.gguf") as file:
        assert not any(key.startswith("split.") for key in file.metadata)
        assert [float(file.decode(f"blk.{no}.ffn_up.weight").mean()) for no in range(2)] == pytest.approx(
            [1, 2], rel=1e-3
        )


def test_plan_of_a_real_model(stories260k: Path) -> None:
    with open_file(stories260k) as file:
        after = {step.name: step.after.name for step in plan(file, MIXES["Q4_K_M"])}
    assert after["blk.0.attn_q.weight"] == "Q5_0" and after["blk.0.ffn_down.weight"] == "F16"


def test_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    assert main(["quantize", str(model), str(out), "--type", "q4_k_m", "--json"]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert (report["type"], report["file_type"], report["output"]) == ("Q4_K_M", 15, str(out))
    with open_file(out) as file:
        assert [(t["name"], t["to"], t["bytes"]) for t in report["tensors"]] == [
            (t.name, t.type.name, t.nbytes) for t in file.tensors.values()
        ]
        assert report["bytes_after"] == sum(t.nbytes for t in file.tensors.values())
    sizes = (report["bytes_before"] / 1e6, report["bytes_after"] / 1e6)
    assert shown.err.startswith("quantising to Q4_K_M ({:.1f} MB to {:.1f} MB)".format(*sizes))


def test_command_dry_run_writes_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["quantize", str(model), "--type", "Q4_K_M", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "blk.0.attn_v.weight" in shown and "F32 → Q6_K" in shown and "bits per weight" in shown
    assert sorted(tmp_path.iterdir()) == before


def test_command_with_a_type_alone_names_the_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `llama-quantize IN TYPE`."""
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", str(model), "q8_0", "--dry-run"]) == 0 and not list(tmp_path.glob("*-Q8_0.gguf"))
    assert main(["quantize", str(model), "q8_0"]) == 0
    with open_file(tmp_path / f"{model.stem}-Q8_0.gguf") as file:
        assert file.tensors["blk.0.attn_v.weight"].type.name == "Q8_0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["OUT", "--type", "Q9_9"], "Q9_9: no such quantisation; known are F32"),
        (["--type", "Q8_0"], "OUT: no output file named"),
        (["OUT"], "give either a TYPE such as Q4_K_M"),
        (["OUT/no/such/folder.gguf", "--type", "Q8_0"], "cannot be written"),
        (["FOLDER", "--type", "Q8_0"], "is a directory"),
        (["IN", "--type", "Q8_0"], "is the input file"),
        (["OUT", "--type", "Q8_0", "-t", "0"], "at least 1"),
    ],
)
def test_command_faults(
    arguments: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"OUT": str(tmp_path / "out.gguf"), "FOLDER": str(tmp_path), "IN": str(model)}
    for word, place in places.items():
        arguments = [place + a.removeprefix(word) if a.startswith(word) else a for a in arguments]
    assert main(["quantize", str(model), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out.gguf").exists()


def test_command_says_that_quality_suffers(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, twice = str(tmp_path / "once.gguf"), str(tmp_path / "twice.gguf")
    assert main(["quantize", str(model), once, "--type", "Q8_0"]) == 0
    assert main(["quantize", once, twice, "--type", "Q4_0"]) == 2
    capsys.readouterr()
    assert main(["quantize", once, twice, "--type", "Q4_0", "--allow-requantize"]) == 0
    assert "already quantised; quantising again loses quality" in capsys.readouterr().err
