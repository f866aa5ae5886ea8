"""Conversion of the recurrent families and the rows beside them: golden files come back from folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.convert.conversion import convert
from assay.engines.contract import Chunk, pages_for
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import GGUFFile, open_file
from assay.models import load
from tests.convert import by_transformers, inverted

# Keys that say the same in another way, or that a converter has no reason to write.
ELSEWHERE = {
    "context_length",  # without a limit where the state does not grow
    "lfm2moe.expert_weights_scale", "granitehybrid.rope.scaling.finetuned", "jamba.rope.freq_base",
    "nemotron_h_moe.feed_forward_length", "nemotron_h.feed_forward_length",  # one width in a folder
    "qwen35.full_attention_interval", "kimi-linear.rope.freq_base",
}  # fmt: skip


@pytest.fixture(scope="session")
def goldens(shared_dir: Path) -> Path:
    return shared_dir / "data" / "recurrent"


@pytest.mark.parametrize("name", inverted.FAMILIES)
def test_a_golden_file_comes_back(name: str, goldens: Path, tmp_path: Path) -> None:
    """Every tensor byte for byte (A = -exp(A_log) and norms plus one to a rounding), the keys, llama.cpp's logits."""
    out = tmp_path / "out.gguf"
    convert(inverted.make(goldens / f"{name}.gguf", tmp_path / "model"), out, "F32")
    with open_file(goldens / f"{name}.gguf") as golden, open_file(out) as found:
        check_keys(golden, found)
        check_tensors(golden, found)
        if "rope_freqs.weight" in golden.tensors:  # random factors, which no folder says
            return
        expected = np.load(goldens / f"{name}.npz")
        got = rows(found, expected["tokens"].astype(np.int32))
        wanted = expected[load(found).graph.output]
        got = got.reshape(wanted.shape)
        limit = 1e-6 if name in ("gemma3n", "modern-bert") else 1e-9  # llama.cpp's GELU is a table
        assert np.sum((got - wanted) ** 2) < limit * np.sum(np.square(wanted, dtype=np.float64))


def check_keys(golden: GGUFFile, found: GGUFFile) -> None:
    arch = golden.get_str("general.architecture")
    for key in golden.metadata:
        if key.startswith(("general.", "tokenizer.")) and key != "general.architecture":
            continue
        if key in ELSEWHERE or key.partition(".")[2] in ELSEWHERE:
            continue
        assert key in found.metadata, key
        assert np.array_equal(np.asarray(golden.metadata[key]), np.asarray(found.metadata[key])), key
    assert found.get_str("general.architecture") == arch


def check_tensors(golden: GGUFFile, found: GGUFFile) -> None:
    made_of_ones = golden.get_str("general.architecture").startswith("qwen3")
    made = {name for name in golden.tensors if name != "rope_freqs.weight"}
    assert set(found.tensors) == made
    for name in made:
        a, b = golden.decode(name), found.decode(name)
        assert b.shape == a.shape or (a.ndim == 1 and b.shape == (1, *a.shape)), name
        if name.startswith("blk.0.time_mix_v") and "value" not in name:
            continue  # nothing reads it
        shifted = made_of_ones and name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")
        if name.endswith("ssm_a") or shifted:  # a norm's weight below 1/2, minus one, has one bit less
            np.testing.assert_allclose(b.reshape(a.shape), a, rtol=3e-7)
        else:
            assert a.tobytes() == b.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("title", by_transformers.MODELS)
def test_logits_are_transformers(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that transformers wrote, converted; float64 against its float32."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    if title == "gemma3n":  # llama.cpp's spread of a row divides by n - 1, transformers' by n: 0.5 % at this width
        spread = torch.std
        monkeypatch.setattr(torch, "std", lambda x, **given: spread(x, **{**given, "unbiased": True}))
    expected = by_transformers.make(tmp_path / "model", title)
    inverted.vocabulary(tmp_path / "model", by_transformers.SIZES["vocab_size"], title)
    convert(tmp_path / "model", tmp_path / "out.gguf", "F32")
    with open_file(tmp_path / "out.gguf") as file:
        got = rows(file, np.array(by_transformers.TOKENS, np.int32)).reshape(expected.shape)
    # GELU by tanh in place of erf (ModernBERT), 25 layers in float32 (Gemma 3n), eps of inner norms (Falcon-Mamba)
    limit = {"modern-bert": 1e-6, "gemma3n": 1e-7, "falcon-mamba": 1e-8}.get(title, 1e-9)
    assert np.sum((got - expected) ** 2) < limit * np.sum(np.square(expected, dtype=np.float64))


def rows(file: GGUFFile, tokens: np.ndarray) -> np.ndarray:
    """The rows of the last node, logits or an encoder's."""
    model = load(file)
    pages = np.arange(pages_for(len(tokens)), dtype=np.int32)
    last = ReferenceEngine(model).forward([Chunk(tokens, 0, pages, "all")], (model.graph.output,))[0]
    return last.nodes[model.graph.output]


@pytest.fixture(scope="module")
def folders_of_goldens(goldens: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("folders")
    return {name: inverted.make(goldens / f"{name}.gguf", base / name) for name in inverted.FAMILIES}


STRANGE: list[Any] = [None, 0, -1, 7, 2**40, 1.5, "x", [], [1], ["mamba"], {}, {"a": 1}, True]


@settings(max_examples=40)
@given(st.sampled_from(list(inverted.FAMILIES)), st.data())
def test_any_setting_ends_in_a_file_or_an_error(
    folders_of_goldens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """One or two settings replaced by others: no traceback."""
    source = folders_of_goldens[name]
    whole = json.loads((source / "config.json").read_text())
    settings = whole.get("text_config", whole)
    path = tmp_path_factory.mktemp("strange")
    for file in source.iterdir():
        if file.name != "config.json":
            (path / file.name).symlink_to(file)
    for key in data.draw(st.lists(st.sampled_from(sorted(settings)), min_size=1, max_size=2)):
        settings[key] = data.draw(st.sampled_from(STRANGE))
    (path / "config.json").write_text(json.dumps(whole))
    try:
        convert(path, path / "out.gguf")
    except AssayError as error:
        assert len(str(error)) < 1500
