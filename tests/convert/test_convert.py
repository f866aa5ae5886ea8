"""Conversion: llama.cpp's keys and bytes for every architecture, files that run and give transformers' logits."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli import main
from assay.convert.architectures import ARCHITECTURES
from assay.convert.conversion import convert
from assay.convert.vocabulary import read_pieces
from assay.engines.contract import Chunk, pages_for
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from tests.convert import folders, inverted, witness

RECORD: dict[str, Any] = json.loads(witness.RECORD.read_text())


def test_every_architecture_is_tried() -> None:
    tried = {name for name, *_ in folders.MODELS.values()} | {name for name, _ in inverted.FAMILIES.values()}
    twins = {"LFM2ForCausalLM", "Rwkv7ForCausalLM", "FalconMambaForCausalLM", "Mistral3ForConditionalGeneration",
             "Gemma3nForCausalLM", "ModernBertModel", "ModernBertForSequenceClassification"}  # fmt: skip
    assert set(ARCHITECTURES) - tried == {"Qwen2MoeForCausalLM", "Gemma3ForConditionalGeneration", *twins}


@pytest.mark.parametrize("title", folders.MODELS)
def test_equal_to_llamacpps_converter(title: str, tmp_path: Path) -> None:
    """Every tensor's type, shape and bytes; every key but those that describe a publication."""
    convert(folders.make(tmp_path / "model", title), tmp_path / "out.gguf")
    with open_file(tmp_path / "out.gguf") as file:
        found = json.loads(json.dumps(witness.describe(file)))
    assert found["tensors"] == RECORD[title]["tensors"]
    assert found["keys"] == RECORD[title]["keys"]


@pytest.mark.parametrize("title", folders.MODELS)
def test_the_file_runs_and_encodes(title: str, tmp_path: Path) -> None:
    convert(folders.make(tmp_path / "model", title), tmp_path / "out.gguf")
    with open_file(tmp_path / "out.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
        assert tokenizer.decode(tokenizer.encode("hello world 12", add_special=False)).strip() == "hello world 12"
        assert np.isfinite(logits(tmp_path / "out.gguf")).all()


TOKENS = [1, 5, 99, 260, 261, 7, 40, 41, 100, 3, 17, 262]


def logits(path: Path) -> np.ndarray:
    with open_file(path) as file:
        engine = ReferenceEngine(load(file))
        pages = np.arange(pages_for(len(TOKENS)), dtype=np.int32)
        return engine.forward([Chunk(np.array(TOKENS, np.int32), 0, pages, "all")])[0].logits


@pytest.mark.slow
@pytest.mark.parametrize("title", folders.MODELS)
def test_logits_are_transformers(title: str, tmp_path: Path) -> None:
    """Float64 against float32 on weights that are the same bits."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    source = folders.make(tmp_path / "model", title)
    convert(source, tmp_path / "out.gguf", "F32")
    net = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = net.eval()(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits(tmp_path / "out.gguf"), expected, rtol=1e-3, atol=2e-4 * np.abs(expected).max())


CASED = (  # as the tokenizer.json of Mistral's and OpenAI's vocabularies have it
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+END|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*END|DIGITS|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "tekken": CASED.replace("END", "").replace("DIGITS", r"\p{N}"),
    "gpt-4o": CASED.replace("END", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("DIGITS", r"\p{N}{1,3}"),
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "bailingmoe2": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("name", SPLITS)
def test_splits_of_the_newer_families_are_known(name: str, tmp_path: Path) -> None:
    source = folders.make(tmp_path / "model", "qwen2")
    folders.byte_level(source, SPLITS[name])
    convert(source, tmp_path / "out.gguf")
    with open_file(tmp_path / "out.gguf") as file:
        assert file.get_str("tokenizer.ggml.pre") == name
        tokenizer = Tokenizer.from_gguf(file)
        assert tokenizer.decode(tokenizer.encode("Hello worlD 12's\n\n", add_special=False)) == "Hello worlD 12's\n\n"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_types(kind: str, tmp_path: Path) -> None:
    assert main(["convert", str(folders.make(tmp_path / "m", "qwen3")), str(tmp_path / "o.gguf"), "--type", kind]) == 0
    with open_file(tmp_path / "o.gguf") as file:
        assert file.tensors["blk.0.ffn_up.weight"].type.name == kind
        assert file.tensors["blk.0.attn_norm.weight"].type.name == "F32"


def test_two_parts_and_a_missing_one(tmp_path: Path) -> None:
    source = folders.make(tmp_path / "m", "qwen2")
    whole = tmp_path / "whole.gguf"
    convert(source, whole)
    (source / "model.safetensors").rename(source / "model-00001-of-00002.safetensors")
    folders.write_safetensors(source / "model-00002-of-00002.safetensors", {}, "BF16")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(source, tmp_path / "parts.gguf")
    assert (tmp_path / "parts.gguf").read_bytes() == whole.read_bytes()
    (source / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(AssayError, match="download the whole model"):
        convert(source, tmp_path / "parts.gguf")
    index["weight_map"]["c"] = "../outside.safetensors"
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(AssayError, match="outside the folder"):
        convert(source, tmp_path / "parts.gguf")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["NobodyForCausalLM"]}, "known are"),
        ({"vocab_size": 299}, "vocab_size is wrong"),
        ({"num_attention_heads": 7}, "heads"),
        ({"hidden_size": "wide"}, "expected a number"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantised"),
    ],
)
def test_refused(change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folders.make(tmp_path / "m", "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **change}))
    assert main(["convert", str(source), str(tmp_path / "o.gguf")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o.gguf").exists()


@given(st.binary(max_size=60))
def test_any_bytes_of_a_sentencepiece_model_end(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(read_pieces(data))
