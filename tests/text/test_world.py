"""RWKV's World vocabulary: the longest token from the left, on bytes, with escapes in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.convert.vocabulary import rwkv_world
from assay.errors import AssayError
from assay.gguf import Tensor, by_name, open_file, write
from assay.text import Tokenizer
from assay.text.world import unescaped

WORDS = [b"he", b"hell", b"hello", b" world", b"\n\n", b"\\", b"'", b'"', "é".encode(), "日本".encode(), b"\xe6\x97"]
TOKENS = [bytes([i]) for i in range(256)] + WORDS  # id 0 is <s>, so token i has the id i + 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """From the text file that folders have, through the converter's keys."""
    path = tmp_path_factory.mktemp("world")
    tokens = list(dict.fromkeys(TOKENS))
    lines = []
    for i, token in enumerate(tokens, 1):
        try:
            literal = repr(token.decode())
        except UnicodeDecodeError:
            literal = repr(token)
        lines.append(f"{i} {literal} {len(token)}")
    (path / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines) + "\n", "utf-8")
    keys = rwkv_world(path / "rwkv_vocab_v20230424.txt", 400)
    write(path / "v.gguf", keys, [Tensor("t", (1,), by_name("F32"), np.zeros(1, np.float32))])
    return Tokenizer.from_gguf(open_file(path / "v.gguf"))


def longest(data: bytes) -> list[bytes]:
    """By trying every token at every place."""
    found = []
    while data:
        best = max((token for token in TOKENS if data.startswith(token)), key=len)
        found.append(best)
        data = data[len(best) :]
    return found


@pytest.mark.parametrize("text", ["hello world", "hell he", "\n\n\n", "日本語 é'\"\\n", "", "\0\t\x7f"])
def test_longest_match(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert [tokenizer.piece(i) for i in ids] == longest(text.encode())
    assert tokenizer.decode(ids) == text


@given(st.binary(max_size=60))
def test_any_bytes(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode(data, parse_special=False)
    assert b"".join(tokenizer.piece(i) for i in ids) == data
    assert [tokenizer.piece(i) for i in ids] == longest(data)


def test_escapes() -> None:
    assert unescaped(r"a\n\t\r\\\'\x80é") == b"a\n\t\r\\'\x80" + "é".encode()
    assert unescaped(r"\xg") == b"xg" and unescaped("\\") == b"\\"


def test_wrong_lines(tmp_path: Path) -> None:
    path = tmp_path / "rwkv_vocab_v20230424.txt"
    for line in ("1 'a' 2", "2 'a' 1", "1 a 1", "1 [1] 1", "", "1 '" + "(" * 3000, "x"):
        path.write_text(line + "\n")
        with pytest.raises(AssayError, match="line 1 is not a token"):
            rwkv_world(path, 10)
    path.write_text("1 'a' 1\n2 'b' 1\n")
    with pytest.raises(AssayError, match="3 tokens for a vocabulary of 2"):
        rwkv_world(path, 2)
