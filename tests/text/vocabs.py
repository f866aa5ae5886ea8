"""Tiny vocabularies, written as real files: a SentencePiece-style one and a byte-level one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import open_file, write
from assay.text import Tokenizer
from assay.text.pair_merging import BYTE_TO_CHAR

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def spm(words: dict[str, float], **extra: object) -> dict[str, Any]:
    """Metadata: unknown, BOS, EOS, all bytes, then `words` with their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + list(words.values()), np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    } | {f"tokenizer.ggml.{key}": value for key, value in extra.items()}


def bpe(merges: list[str], specials: dict[str, int] | None = None, **extra: object) -> dict[str, Any]:
    """Metadata: all bytes, what the merges make, then special tokens with their types."""
    made = dict.fromkeys(pair.replace(" ", "", 1) for pair in merges)
    tokens = [*BYTE_TO_CHAR, *(text for text in made if len(text) > 1), *(specials or {})]
    types = [NORMAL] * (len(tokens) - len(specials or {})) + list((specials or {}).values())
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
    } | {f"tokenizer.ggml.{key}": value for key, value in extra.items()}


def tokenizer(path: Path, metadata: dict[str, Any]) -> Tokenizer:
    write(path, {key: value for key, value in metadata.items() if value is not None})
    return Tokenizer.from_gguf(open_file(path))
