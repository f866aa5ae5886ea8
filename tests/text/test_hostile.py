"""A vocabulary out of a stranger's file: every contradiction has its own clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import open_file, write
from assay.text import Tokenizer
from tests.text.vocabs import bpe, spm, tokenizer

TOKENS = ["<unk>", "<s>", "</s>", "a"]
SPM = spm({"a": -1.0})
BPE = bpe(["a b"])

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no model": (SPM | {"tokenizer.ggml.model": None}, "no vocabulary"),
    "no vocabulary": (SPM | {"tokenizer.ggml.model": "no_vocab"}, "no vocabulary"),
    "model of another kind": (SPM | {"tokenizer.ggml.model": "plamo2"}, "unsupported tokenizer"),
    "model is a number": (SPM | {"tokenizer.ggml.model": 1}, "tokenizer.ggml.model"),
    "no tokens": (SPM | {"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
    "tokens empty": (SPM | {"tokenizer.ggml.tokens": np.zeros(0, np.int32)}, "tokenizer.ggml.tokens"),
    "tokens are numbers": (SPM | {"tokenizer.ggml.tokens": np.arange(4, dtype=np.int32)}, "wrong type"),
    "tokens are one string": (SPM | {"tokenizer.ggml.tokens": "abc"}, "wrong type"),
    "a token twice": (spm({"a": 0.0}) | {"tokenizer.ggml.tokens": ["a", "b", "a"]}, "the same text twice"),
    "scores of strings": (SPM | {"tokenizer.ggml.scores": ["1.0"] * 260}, "wrong type"),
    "scores are one number": (SPM | {"tokenizer.ggml.scores": 1.0}, "wrong type"),
    "scores of bools": (SPM | {"tokenizer.ggml.scores": np.zeros(260, np.bool_)}, "wrong type"),
    "too few scores": (SPM | {"tokenizer.ggml.scores": np.zeros(3, np.float32)}, "wrong length"),
    "too many scores": (SPM | {"tokenizer.ggml.scores": np.zeros(261, np.float32)}, "wrong length"),
    "a score is NaN": (SPM | {"tokenizer.ggml.scores": np.full(260, np.nan, np.float32)}, "not a number"),
    "types of floats": (SPM | {"tokenizer.ggml.token_type": np.zeros(260, np.float32)}, "wrong type"),
    "too few types": (SPM | {"tokenizer.ggml.token_type": np.zeros(4, np.int32)}, "wrong length"),
    "BOS outside": (SPM | {"tokenizer.ggml.bos_token_id": 260}, "outside the vocabulary"),
    "BOS far outside": (SPM | {"tokenizer.ggml.bos_token_id": 1 << 40}, "outside the vocabulary"),
    "BOS negative": (SPM | {"tokenizer.ggml.bos_token_id": np.int32(-5)}, "outside the vocabulary"),
    "BOS is text": (SPM | {"tokenizer.ggml.bos_token_id": "<s>"}, "bos_token_id"),
    "pad outside": (SPM | {"tokenizer.ggml.padding_token_id": 9999}, "outside the vocabulary"),
    "add_bos is a number": (SPM | {"tokenizer.ggml.add_bos_token": 1}, "add_bos_token"),
    "too small for BOS": (
        {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"], "general.architecture": "llama"},
        "too few",
    ),
    "unknown pre": (BPE | {"tokenizer.ggml.pre": "martian"}, "llama-bpe"),
    "pre is a number": (BPE | {"tokenizer.ggml.pre": 3}, "tokenizer.ggml.pre"),
    "no merges": (BPE | {"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges"),
    "merges of numbers": (BPE | {"tokenizer.ggml.merges": np.arange(3, dtype=np.int32)}, "tokenizer.ggml.merges"),
    "a merge without a space": (BPE | {"tokenizer.ggml.merges": ["a b", "ab"]}, "entry 1 is not a pair"),
    "a merge of nothing": (BPE | {"tokenizer.ggml.merges": [" a"]}, "entry 0 is not a pair"),
    "a token too long": (bpe(["a b"], {"x" * 70_000: 1}), "too long"),
}


@pytest.mark.parametrize("name", CASES)
def test_clear_error(tmp_path: Path, name: str) -> None:
    metadata, words = CASES[name]
    with pytest.raises(AssayError, match=words) as caught:
        tokenizer(tmp_path / "bad.gguf", metadata).encode("ab")
    assert "\n" not in str(caught.value)


def test_tokens_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, spm({"WORD": -1.0}))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"WORD", b"W\xff\xfeD"))
    with pytest.raises(AssayError, match="UTF-8"):
        Tokenizer.from_gguf(open_file(path))


def test_odd_but_harmless(tmp_path: Path) -> None:
    """Unknown token types, an id of -1 for none, empty tokens, merges that make no token: all load."""
    odd = spm({"a": -1.0, "": -2.0}, padding_token_id=np.uint32(0xFFFFFFFF))
    odd["tokenizer.ggml.token_type"] = np.full(261, 77, np.int32)
    found = tokenizer(tmp_path / "odd.gguf", odd)
    assert found.vocab.tokens[260] == "[EMPTY_260]" and "pad" not in found.vocab.special
    assert found.piece(259) == b""
    lost = bpe(["a b"])
    lost["tokenizer.ggml.tokens"] = lost["tokenizer.ggml.tokens"][:256]
    lost["tokenizer.ggml.token_type"] = lost["tokenizer.ggml.token_type"][:256]
    ids = tokenizer(tmp_path / "lost.gguf", lost).encode("ab")
    assert [lost["tokenizer.ggml.tokens"][i] for i in ids] == ["a", "b"]


values = st.one_of(
    st.integers(0, 2**32 - 1), st.text(max_size=5), st.booleans(), st.floats(width=32),
    st.lists(st.text(max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(-5, 5), min_size=1, max_size=5).map(lambda x: np.array(x, np.int32)),
)  # fmt: skip


@given(st.sampled_from(sorted(set(SPM) | set(BPE))), values, st.booleans(), st.text(max_size=10))
def test_any_value_anywhere(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any, scored: bool, text: str
) -> None:
    """A tokenizer, or an AssayError; nothing else."""
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    try:
        found = tokenizer(path, (SPM if scored else BPE) | {key: value})
        ids = found.encode(text)
    except AssayError:
        return
    assert all(0 <= i < found.n_vocab for i in ids)
    found.decode(ids)
