"""Ids against llama.cpp's on real vocabularies, and back to text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.gguf import open_file
from assay.text import Tokenizer
from assay.text.pretokenize import PRETOKENIZERS, PreTokenizer
from tests.text.vocabs import CONTROL, USER, bpe, spm, tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_cases.json").read_text())
VOCABS = ("llama-spm", "phi-3", "gpt-2", "llama-bpe")


def load(shared_dir: Path, name: str) -> Tokenizer:
    return Tokenizer.from_gguf(open_file(shared_dir / "data" / "vocab" / f"ggml-vocab-{name}.gguf"))


@pytest.fixture(scope="module")
def spm_real(shared_dir: Path) -> Tokenizer:
    return load(shared_dir, "llama-spm")


@pytest.fixture(scope="module")
def bpe_real(shared_dir: Path) -> Tokenizer:
    return load(shared_dir, "gpt-2")


@pytest.mark.parametrize("name", VOCABS)
def test_published_cases(shared_dir: Path, name: str) -> None:
    found = load(shared_dir, name)
    path = shared_dir / "data" / "vocab" / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    assert len(texts) > 40
    for text, line in zip(texts, lines, strict=False):
        expected = [int(i) for i in line.split()]
        assert found.encode(text, add_special=False, parse_special=False) == expected, text


def check_golden(found: Tokenizer, cases: list[list]) -> None:
    assert len(cases) > 90
    for text, add_special, parse_special, ids in cases:
        data = bytes.fromhex(text)
        assert found.encode(data, add_special=add_special, parse_special=parse_special) == ids, data


@pytest.mark.parametrize("name", VOCABS)
def test_witnessed_cases(shared_dir: Path, name: str) -> None:
    """Odd texts, special tokens in the middle, bytes that are no UTF-8: llama.cpp's ids."""
    check_golden(load(shared_dir, name), GOLDEN["vocabularies"][name])


def test_witnessed_cases_of_a_tiny_model(stories260k: Path) -> None:
    check_golden(Tokenizer.from_gguf(open_file(stories260k)), GOLDEN["vocabularies"]["stories260K"])


def test_witnessed_cases_of_the_default_model(smollm2: Path) -> None:
    found = Tokenizer.from_gguf(open_file(smollm2))
    check_golden(found, GOLDEN["vocabularies"]["smollm2"])
    assert found.n_vocab == 49152 and found.add_bos is False
    assert found.eot == found.eos == found.vocab.ids["<|im_end|>"]
    assert {"<|im_end|>", "<|endoftext|>"} <= {found.vocab.tokens[i] for i in found.eog}


def test_every_pretokenizer(bpe_real: Tokenizer) -> None:
    """Ids that llama.cpp gives when the same vocabulary names each of the pre-tokenizers in turn."""
    made: dict[PreTokenizer, Tokenizer] = {}
    for case in GOLDEN["pretokenizers"]["texts"]:
        seen = set()
        for group in case["ids"]:
            for name in group["pre"]:
                row = PRETOKENIZERS[name]
                seen.add(name)
                if row.byte_encode:  # the others are made for another kind of vocabulary
                    vocab = replace(bpe_real.vocab, pre=row, pre_name=name)
                    found = made.setdefault(row, Tokenizer(bpe_real._file, vocab))
                    assert found.encode(case["text"], add_special=False) == group["ids"], name
        assert seen == set(PRETOKENIZERS)


@given(st.text())
def test_words_joined_are_the_text(text: str) -> None:
    for row in PRETOKENIZERS.values():
        assert "".join(row.split(text)) == text


@given(st.binary())
def test_bytes_come_back(spm_real: Tokenizer, data: bytes) -> None:
    """Every byte has a token, so what went in comes out, after the space that was put in front; only whether a
    space was written as U+2581 may be lost."""
    joined = b"".join(map(spm_real.piece, spm_real.encode(data, add_special=False, parse_special=False)))
    mark = "▁".encode()
    assert joined.replace(mark, b" ") == (b" " + data if data else b"").replace(mark, b" ")


@given(st.text())
def test_text_comes_back(bpe_real: Tokenizer, text: str) -> None:
    assert bpe_real.decode(bpe_real.encode(text, add_special=False, parse_special=False)) == text


@given(st.text(min_size=1))
def test_streaming_never_splits_a_character(bpe_real: Tokenizer, text: str) -> None:
    stream = bpe_real.detokenizer()
    parts = [stream.push(i) for i in bpe_real.encode(text, add_special=False, parse_special=False)]
    assert "".join(parts) + stream.flush() == text
    assert not any("\ufffd" in part for part in parts) or "\ufffd" in text


@given(st.lists(st.integers(0, 31999)))
def test_streaming_equals_decoding(spm_real: Tokenizer, ids: list[int]) -> None:
    stream = spm_real.detokenizer()
    assert "".join(stream.push(i) for i in ids) + stream.flush() == spm_real.decode(ids)


def test_incomplete_character_is_held_back(spm_real: Tokenizer) -> None:
    llama = [spm_real.vocab.ids[f"<0x{b:02X}>"] for b in "🦙".encode()]
    stream = spm_real.detokenizer()
    assert [stream.push(i) for i in llama] == ["", "", "", "🦙"]
    assert [stream.push(i) for i in llama[:2]] == ["", ""] and stream.flush() == "\ufffd"
    stream = spm_real.detokenizer()
    assert stream.push(llama[0]) == "" and stream.push(spm_real.vocab.ids["a"]) == "\ufffda"


def test_control_tokens_shown_or_hidden(spm_real: Tokenizer) -> None:
    ids = [1, 15043, 2]
    assert spm_real.decode(ids) == "<s> Hello</s>" and spm_real.decode(ids, special=False) == " Hello"
    stream = spm_real.detokenizer(special=False)
    assert "".join(map(stream.push, ids)) == " Hello"


def test_bos_eos_and_prefix_follow_the_file(tmp_path: Path) -> None:
    words = {"▁": -1.0, "a": -2.0, "▁a": -0.5}
    a, spaced = 260, 261
    plain = tokenizer(tmp_path / "plain.gguf", spm(words))
    assert plain.encode("a") == [1, spaced] and plain.encode("") == [1]
    assert plain.encode("a", add_special=False) == [spaced]
    flags = {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": False}
    assert tokenizer(tmp_path / "flags.gguf", spm(words, **flags)).encode("a") == [a, 2]
    assert plain.encode("a</s>a") == [1, spaced, 2, spaced]
    assert plain.encode("a</s>a", parse_special=False)[:1] == [1] and 2 not in plain.encode("</s>", parse_special=False)


def test_user_defined_tokens_are_always_cut_out(tmp_path: Path) -> None:
    specials = {"<tool>": USER, "<|x|>": CONTROL}
    found = tokenizer(tmp_path / "m.gguf", bpe(["a b"], specials))
    tool, x = found.vocab.ids["<tool>"], found.vocab.ids["<|x|>"]
    assert found.encode("ab<tool>ab<|x|>") == [256, tool, 256, x]
    without = found.encode("ab<tool>ab<|x|>", parse_special=False)
    assert without[:3] == [256, tool, 256] and x not in without


def test_longest_special_token_wins_wherever_it_stands(tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "m.gguf", bpe(["a b"], {"<ab": CONTROL, "b><": CONTROL, "ab><c": CONTROL}))
    assert found.encode("<ab><c") == [ord("<") - 33 + found.vocab.ids["!"], found.vocab.ids["ab><c"]]


def test_missing_pre_is_noted(tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "m.gguf", bpe(["a b"], pre=None))
    assert found.vocab.pre_name == "default" and "tokenizer.ggml.pre" in found.vocab.notes[0]


def test_first_of_equal_merges_counts(tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "m.gguf", bpe(["a b", "b c", "a b"]))
    assert [found.piece(i) for i in found.encode("abc")] == [b"ab", b"c"]


def test_id_outside_the_vocabulary(spm_real: Tokenizer) -> None:
    for token in (-1, 32000, 1 << 40):
        with pytest.raises(AssayError, match="outside the vocabulary"):
            spm_real.decode([token])


def test_surrogates_in_a_str_are_bytes(bpe_real: Tokenizer) -> None:
    assert bpe_real.encode("a\ud800b") == bpe_real.encode(b"a\xed\xa0\x80b")
