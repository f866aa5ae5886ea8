"""`inspect` on a real file, on tiny ones with something odd in them, and on what is no model at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli import main
from assay.cli.common import plain
from assay.errors import AssayError
from assay.gguf import Tensor, by_name, codecs, open_file, write
from assay.gguf.checks import SCALES, bad_blocks
from assay.models.file_report import describe
from tests.tiny import make


def inspect(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["inspect", *map(str, args)]) == 0
    return capsys.readouterr().out


def report(capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    return json.loads(inspect(capsys, *args, "--json"))


def test_json_of_a_real_model(stories260k: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, stories260k)
    assert found["path"] == str(stories260k)
    assert found["metadata"]["llama.block_count"] == 5
    assert len(found["metadata"]["tokenizer.ggml.tokens"]) == 512
    first = found["tensors"][0]
    assert first["shape"] == [512, 64] and first["type"] == "F32" and first["bytes"] == 512 * 64 * 4
    raw = np.fromfile(stories260k, np.float32, 4, offset=first["offset"])
    assert raw.tolist() == open_file(stories260k).decode(first["name"])[0, :4].tolist()
    assert found["parameters"] == sum(int(np.prod(t["shape"])) for t in found["tensors"])
    assert found["bits_per_weight"] == 32
    # 5 layers, 4 heads over, 8 wide, key and value, 2 bytes, 512 tokens
    assert found["memory"] == {
        "weights": 4 * found["parameters"],
        "kv_cache": 5 * 4 * 8 * 2 * 2 * 512,
        "context": 512,
        "total": 4 * found["parameters"] + 5 * 4 * 8 * 2 * 2 * 512,
    }
    assert [n.split(":")[0] for n in found["notes"]] == ["tokenizer.chat_template"]


def test_text_of_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "tiny.gguf", type="Q8_0")
    text = inspect(capsys, path, "--ctx-size", 100)
    assert "general.architecture" in text and "'llama'" in text
    assert "(array of 320 string)" in text and len(text.splitlines()) < 60
    assert "cache of 100 tokens" in text and "nothing odd" in text
    assert "blk.1.ffn_down.weight" not in text
    assert "rms_epsilon  1e-05" in text
    lines = [line.split() for line in inspect(capsys, path, "--tensors").splitlines()]
    assert ["blk.1.ffn_down.weight", "Q8_0", "64", "x", "96", "6,528", "bytes"] in [line[:7] for line in lines]


def test_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "tiny.gguf")
    assert "Qcur-1 = rope(" in inspect(capsys, path, "--graph")
    assert any(line.startswith("result_output = ") for line in report(capsys, path, "--graph")["graph"])


@pytest.mark.parametrize(
    ("metadata", "note"),
    [
        ({"tokenizer.ggml.eos_token_id": None}, "tokenizer.ggml.eos_token_id: missing"),
        ({"tokenizer.ggml.eos_token_id": 320}, "tokenizer.ggml.eos_token_id: 320 is not in the vocabulary"),
        ({"tokenizer.ggml.bos_token_id": "1"}, "tokenizer.ggml.bos_token_id: '1' is not in the vocabulary"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": None}, "tokenizer.ggml.pre: missing"),
        ({"tokenizer.ggml.model": None}, "tokenizer: missing"),
        ({"tokenizer.ggml.scores": [0.5]}, "tokenizer.ggml.scores: 1 entries for 320 tokens"),
        ({"tokenizer.ggml.tokens": ["a"]}, "token_embd.weight: 320 rows for 1 tokens"),
        ({"tokenizer.ggml.tokens": 7}, "tokenizer.ggml.tokens: is not an array"),
        ({"llama.embedding_length": 32}, "cannot be run: "),
        ({"general.architecture": "nosuch"}, "cannot be run: "),
    ],
)
def test_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, object], note: str) -> None:
    found = report(capsys, make(tmp_path / "odd.gguf", metadata=metadata))
    assert any(note in line for line in found["notes"]), found["notes"]


def rewrite(path: Path, change: dict[str, np.ndarray], extra: list[Tensor]) -> None:
    """The file again, with some tensors' bytes replaced and others added."""
    file = open_file(path)
    tensors = [Tensor(n, t.shape, t.type, change.get(n, file.raw(n))) for n, t in file.tensors.items()]
    write(path, {k: file.metadata.typed(k) for k in file.metadata}, tensors + extra)


def test_tensors_that_are_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "odd.gguf", type="Q8_0", template=None)
    name = "blk.0.attn_q.weight"
    raw = open_file(path).raw(name).copy()
    raw[3, 0:2] = np.array([np.nan], np.float16).view(np.uint8)
    raw[5, 34:36] = np.array([-np.inf], np.float16).view(np.uint8)
    rewrite(path, {name: raw}, [Tensor("spare.weight", (4,), by_name("F32"), np.ones(4, np.float32))])
    notes = report(capsys, path)["notes"]
    assert "spare.weight: not used by the llama graph" in notes
    assert any(n.startswith(f"{name}: 2 of 128 blocks of Q8_0 have scales that are NaN or infinite") for n in notes)
    assert any(n.startswith("tokenizer.chat_template: missing") for n in notes)
    assert not any(name in n for n in report(capsys, path, "--fast")["notes"])


def test_a_vocabulary_is_no_model(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, shared_dir / "data" / "vocab" / "ggml-vocab-llama-spm.gguf")
    assert found["tensors"] == [] and found["memory"] is None and found["bits_per_weight"] is None
    assert found["notes"][0].startswith("tensors: none")


def test_strange_text_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.gguf"
    write(path, {"a\x1b[2J": "b\nc", "n": [float("nan"), 1.0], "nested": [["x"], ["y\x07"]]})
    text = inspect(capsys, path)
    assert "\x1b" not in text and "\x07" not in text and "a\\x1b[2J" in text and "b\\nc" in text
    assert report(capsys, path)["metadata"] == {
        "a\x1b[2J": "b\nc",
        "n": [None, 1.0],
        "nested": [["x"], ["y\x07"]],
    }


@pytest.mark.parametrize("args", [["none.gguf"], ["."], [__file__], [__file__, "--graph"]])
def test_what_cannot_be_inspected(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(["inspect", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", SCALES)
def test_bad_scales_are_those_that_decode_to_nan(name: str) -> None:
    """On random blocks, a block is counted exactly if decoding it gives something that is not finite."""
    type_ = by_name(name)
    raw = np.random.default_rng(1).integers(0, 256, (3000, type_.type_size), np.uint8)
    with np.errstate(all="ignore"):
        values = codecs.decode(type_, raw.reshape(1, -1)).reshape(3000, -1)
    lost = ~np.isfinite(values).all(1)
    if name in ("F64", "Q8_K"):  # these also overflow float32 on the way, which their scales do not show
        assert 0 < bad_blocks(type_, raw) <= lost.sum()
    else:
        assert bad_blocks(type_, raw) == lost.sum() > 0


def test_values_that_make_no_sense_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "odd.gguf", metadata={"general.name": "broken name", "odd.flags": [True, False]})
    data = path.read_bytes().replace(b"broken name", b"\xffroken name")
    path.write_bytes(data)
    found = report(capsys, path)
    assert found["metadata"]["general.name"] is None and found["metadata"]["odd.flags"] == [True, False]
    assert any("general.name: not valid UTF-8" in note for note in found["notes"])
    assert "?  (string)" in inspect(capsys, path)


@given(st.data())
@settings(max_examples=100)
def test_a_damaged_model_is_described_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = make(folder / "whole.gguf", n_layer=1) if not (folder / "whole.gguf").exists() else folder / "whole.gguf"
    raw = bytearray(path.read_bytes())
    damage = st.tuples(st.integers(0, 1200), st.one_of(st.binary(min_size=1, max_size=8), st.just(bytes(8))))
    for at, new in data.draw(st.lists(damage, min_size=1, max_size=4)):
        raw[at : at + len(new)] = new
    (folder / "damaged.gguf").write_bytes(raw)
    try:
        found = describe(open_file(folder / "damaged.gguf"))
    except AssayError as error:
        assert "\n" not in str(error)
    else:
        assert json.dumps(plain(found), allow_nan=False)


def test_a_vision_tower_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[1] / "data" / "vision"
    text = inspect(capsys, folder / "qwen3vl-mmproj.gguf")
    assert "projector   qwen3vl_merger (Qwen3-VL, Qwen3.5): 3 layers, 16 wide, 2 heads, patches of 8; rows of 4" in text
    assert "256×256 256 tokens" in text and "nothing odd" in text
    assert report(capsys, folder / "gemma3-mmproj.gguf")["projector"]["sees_itself"] is True
    graph = inspect(capsys, folder / "idefics3-mmproj.gguf", "--graph")
    assert "pixel_shuffle = take_rows(post_ln, inp_blocks; n=4)" in graph
