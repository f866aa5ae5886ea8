"""The vocabularies of embedding models: WordPiece against llama.cpp's ids, unigram against sentencepiece's."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.errors import AssayError
from assay.text import Tokenizer
from assay.text.compare import explain
from assay.text.wordpiece import readable
from tests.text.vocabs import CONTROL, NORMAL, UNKNOWN, USER, tokenizer

DATA = json.loads((Path(__file__).parents[1] / "data" / "vocabularies.json").read_text())
PREFIX = "tokenizer.ggml."


def wordpiece(**extra: object) -> dict[str, Any]:
    given = DATA["wordpiece"]
    special = given["special"]
    return {
        "general.architecture": "bert",
        PREFIX + "model": "bert",
        PREFIX + "tokens": given["tokens"],
        PREFIX + "token_type": np.array(given["types"], np.int32),
        PREFIX + "bos_token_id": special["bos"],
        PREFIX + "seperator_token_id": special["sep"],
        PREFIX + "unknown_token_id": special["unk"],
    } | {PREFIX + key: value for key, value in extra.items()}


def unigram(tokens: dict[str, tuple[float, int]] | None = None, **extra: object) -> dict[str, Any]:
    """The recorded vocabulary, or one of `tokens` with score and type behind the unknown token."""
    found = DATA["unigram"]
    texts, scores, types = found["tokens"], found["scores"], found["types"]
    charsmap: object = np.frombuffer(base64.b64decode(found["charsmap"]), np.uint8)
    if tokens is not None:
        texts = ["<unk>", "<s>", "</s>", *tokens]
        scores, types = [0.0] * 3, [UNKNOWN, CONTROL, CONTROL]
        scores, types = scores + [s for s, _ in tokens.values()], types + [t for _, t in tokens.values()]
        charsmap = None
    return {
        "general.architecture": "bert",
        PREFIX + "model": "t5",
        PREFIX + "tokens": texts,
        PREFIX + "scores": np.array(scores, np.float32),
        PREFIX + "token_type": np.array(types, np.int32),
        PREFIX + "bos_token_id": 1,
        PREFIX + "eos_token_id": 2,
        PREFIX + "unknown_token_id": 0,
        PREFIX + "add_bos_token": True,
        PREFIX + "add_space_prefix": True,
        PREFIX + "remove_extra_whitespaces": True,
        PREFIX + "precompiled_charsmap": charsmap,
    } | {PREFIX + key: value for key, value in extra.items()}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("bert") / "v.gguf", wordpiece())


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("t5") / "v.gguf", unigram())


# --- WordPiece


@pytest.mark.parametrize("which", ["published", "further"])
def test_wordpiece_ids_are_llama_cpps(bert: Tokenizer, which: str) -> None:
    cases = DATA["wordpiece"][which]
    assert len(cases) >= 12
    for text, ids in cases:
        assert bert.encode(text, add_special=False, parse_special=False) == ids, text


def test_wordpiece_stands_between_cls_and_sep(bert: Tokenizer) -> None:
    special = DATA["wordpiece"]["special"]
    assert bert.encode("") == [special["bos"], special["sep"]]
    ids = bert.encode("hello")
    assert (
        ids[0] == special["bos"] and ids[-1] == special["sep"] and ids[1:-1] == bert.encode("hello", add_special=False)
    )
    assert bert.encode("[MASK]", add_special=False) == [bert.vocab.ids["[MASK]"]]
    assert bert.encode("[MASK]", add_special=False, parse_special=False) != [bert.vocab.ids["[MASK]"]]


def test_wordpiece_in_text_again(bert: Tokenizer) -> None:
    """Where spaces were is not in the ids; they are put where they usually stand."""
    assert bert.decode(bert.encode("Hello World", add_special=False)) == "hello world"
    assert bert.decode(bert.encode("Hello, World", add_special=False)) == "hello, world"
    assert readable(" it 's ' a ' b ? i 'm , we 've 't") == "it's'a'b? i'm, we've 't"


def small_wordpiece(path: Path, *words: str, **extra: object) -> Tokenizer:
    given = ["[UNK]", "[CLS]", "[SEP]", *words]
    types = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * len(words)]
    metadata = wordpiece(
        tokens=given, token_type=np.array(types, np.int32), bos_token_id=1, seperator_token_id=2, unknown_token_id=0
    )
    return tokenizer(path, metadata | {PREFIX + key: value for key, value in extra.items()})


def test_case_and_accents_are_kept_where_the_file_says_so(tmp_path: Path) -> None:
    words = ("▁É", "▁é", "▁E", "▁e")
    ids = {
        (lower, strip): small_wordpiece(
            tmp_path / f"{lower}{strip}.gguf",
            *words,
            **{"normalizer.lowercase": lower, "normalizer.strip_accents": strip},
        ).encode("É", add_special=False)
        for lower in (True, False)
        for strip in (True, False)
    }
    assert ids == {(True, True): [6], (True, False): [4], (False, True): [5], (False, False): [3]}
    silent = small_wordpiece(tmp_path / "s.gguf", *words, **{"normalizer.lowercase": False})
    assert silent.encode("É", add_special=False) == [3]  # accents go with the case


def test_the_longest_match_or_one_unknown(tmp_path: Path) -> None:
    found = small_wordpiece(tmp_path / "v.gguf", "▁un", "▁u", "n", "aff", "able", "a", "b")
    assert found.encode("unaffable", add_special=False) == [3, 6, 7]
    assert found.encode("unaffabl", add_special=False) == [0]
    assert found.encode("una un, unb", add_special=False) == [3, 8, 3, 0, 3, 9]


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_wordpiece_takes_any_text(bert: Tokenizer, text: str) -> None:
    """White space in any amount changes nothing, and bytes are read as the text they are."""
    ids = bert.encode(text, add_special=False, parse_special=False)
    assert all(0 <= i < bert.n_vocab for i in ids)
    assert bert.encode(f" \n{text}\u3000", add_special=False, parse_special=False) == ids
    assert bert.encode(text.encode("utf-8", "surrogatepass"), add_special=False, parse_special=False) == ids


def test_a_wordpiece_vocabulary_that_is_too_small(tmp_path: Path) -> None:
    metadata = wordpiece(tokens=["a", "b"], token_type=np.array([1, 1], np.int32))
    for key in ("bos_token_id", "seperator_token_id", "unknown_token_id"):
        del metadata[PREFIX + key]
    with pytest.raises(AssayError, match="too few"):
        tokenizer(tmp_path / "v.gguf", metadata)


def test_a_wordpiece_vocabulary_without_unknown(tmp_path: Path) -> None:
    found = small_wordpiece(tmp_path / "v.gguf", "▁a", unknown_token_id=(1 << 32) - 1)
    assert found.encode("a", add_special=False) == [3]
    with pytest.raises(AssayError, match="no unknown token"):
        found.encode("b")


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_a_token_too_long_to_be_matched_in_linear_time(tmp_path: Path, kind: str) -> None:
    if kind == "bert":
        found = small_wordpiece(tmp_path / "v.gguf", "▁" + "a" * 300)
    else:
        found = tokenizer(tmp_path / "v.gguf", unigram({"a" * 300: (-1.0, NORMAL)}))
    with pytest.raises(AssayError, match="too long"):
        found.encode("a")


# --- unigram


def test_unigram_ids_are_sentencepieces(t5: Tokenizer) -> None:
    cases = DATA["unigram"]["cases"]
    assert len(cases) > 150
    for text, ids in cases:
        assert t5.encode(text, add_special=False, parse_special=False) == ids, text


def test_unigram_stands_between_bos_and_eos(t5: Tokenizer, tmp_path: Path) -> None:
    ids = t5.encode("the license", add_special=False)
    assert t5.encode("the license") == [1, *ids, 2]
    assert t5.decode(ids) == " the license"
    metadata = unigram()
    del metadata[PREFIX + "add_bos_token"]
    assert tokenizer(tmp_path / "v.gguf", metadata).encode("the license") == [*ids, 2]  # as T5 itself


def test_unigram_spaces(tmp_path: Path) -> None:
    words = {"▁": (-1.0, NORMAL), "a": (-1.0, NORMAL), "▁a": (-1.5, NORMAL)}

    def pieces(text: str, prefix: bool, merge: bool) -> str:
        flags = {"add_space_prefix": prefix, "remove_extra_whitespaces": merge}
        found = tokenizer(tmp_path / f"{prefix}{merge}.gguf", unigram(words, **flags))
        return " ".join(found.vocab.tokens[i] for i in found.encode(text, add_special=False))

    assert pieces(" a  a ", True, True) == "▁a ▁a"
    assert pieces(" a  a ", True, False) == "▁ ▁a ▁ ▁a ▁"
    assert pieces("a  a", False, False) == "a ▁ ▁a"
    assert pieces("a  a", False, True) == "▁a ▁a"  # llama.cpp: merging puts a space before every word
    assert pieces("  ", True, True) == "" and pieces("  ", True, False) == "▁ ▁"


@st.composite
def _vocabularies(draw: st.DrawFn) -> dict[str, tuple[float, int]]:
    texts = draw(st.lists(st.text("ab▁", min_size=1, max_size=4), unique=True, min_size=1, max_size=12))
    return {text: (-draw(st.integers(1, 64)) / 8, NORMAL) for text in texts}


@given(_vocabularies(), st.text("abc ", max_size=9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_no_other_cut_has_a_better_sum(tmp_path: Path, tokens: dict[str, tuple[float, int]], text: str) -> None:
    """Against all cuts, tried one by one."""
    found = tokenizer(tmp_path / "v.gguf", unigram(tokens))
    unknown = min(score for score, _ in tokens.values()) - 10
    words = "".join("▁" + word for word in text.split())

    def best(rest: str) -> float:
        if not rest:
            return 0.0
        options = [tokens[rest[:n]][0] + best(rest[n:]) for n in range(1, len(rest) + 1) if rest[:n] in tokens]
        if rest[0] not in tokens:
            options.append(unknown + best(rest[1:]))
        return max(options)

    ids = found.encode(text, add_special=False, parse_special=False)
    assert not any(a == b == 0 for a, b in itertools.pairwise(ids))
    if 0 not in ids:  # a run of unknowns is one id, so its sum cannot be told from the ids
        assert sum(tokens[found.vocab.tokens[i]][0] for i in ids) == best(words)
        assert "".join(found.vocab.tokens[i] for i in ids) == words


def test_user_tokens_cost_nothing_and_are_always_found(tmp_path: Path) -> None:
    words = {"a": (-1.0, NORMAL), "b": (-1.0, NORMAL), "<x>": (-50.0, USER), "▁": (-3.0, NORMAL)}
    found = tokenizer(tmp_path / "v.gguf", unigram(words))
    assert found.encode("a<x>b", add_special=False, parse_special=False) == [6, 3, 5, 6, 4]


@given(st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_unigram_takes_any_text(t5: Tokenizer, text: str) -> None:
    ids = t5.encode(text, parse_special=False)
    assert ids[0] == 1 and ids[-1] == 2
    clean = text.encode("utf-8", "surrogatepass")
    assert t5.encode(clean, parse_special=False) == ids


def test_bytes_that_are_no_text_are_unknown(t5: Tokenizer) -> None:
    assert t5.encode(b"\xff\xfe", add_special=False) == [t5.vocab.ids["▁"], 0]


@pytest.mark.parametrize(
    "charsmap",
    [
        np.array([], np.uint8),
        np.array([1, 0, 0], np.uint8),
        np.array([255, 255, 255, 255, 0, 0], np.uint8),
        np.array([3, 0, 0, 0, 1, 2, 3, 0], np.uint8),
        np.array([1.5], np.float32),
        "text",
    ],
)
def test_a_charsmap_that_cannot_be_read(tmp_path: Path, charsmap: object) -> None:
    found = tokenizer(tmp_path / "v.gguf", unigram(precompiled_charsmap=charsmap))
    with pytest.raises(AssayError, match="precompiled_charsmap"):
        found.encode("a")


@given(st.binary(max_size=400), st.text(max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_damaged_charsmap_gives_ids_or_an_error(tmp_path: Path, noise: bytes, text: str) -> None:
    """Bytes of a real map overwritten with others."""
    data = bytearray(base64.b64decode(DATA["unigram"]["charsmap"]))
    data[4 : 4 + len(noise)] = noise
    found = tokenizer(tmp_path / "v.gguf", unigram(precompiled_charsmap=np.frombuffer(bytes(data), np.uint8)))
    try:
        ids = found.encode(text)
    except AssayError as error:
        assert "precompiled_charsmap" in str(error) and "\n" not in str(error)
    else:
        assert all(0 <= i < found.n_vocab for i in ids)


def test_a_unigram_vocabulary_without_scores(tmp_path: Path) -> None:
    found = tokenizer(tmp_path / "v.gguf", unigram(scores=None))
    with pytest.raises(AssayError, match="scores: missing"):
        found.encode("a")


# --- ids of another program


def test_mistakes_with_wordpiece_are_named(bert: Tokenizer) -> None:
    text = "Hello World"
    right = bert.encode(text)
    plain = bert.with_rule("lowercase", False).encode(text)
    cases = {
        tuple(right[1:]): ["bos-missing"],
        tuple(right[:-1]): ["eos-missing"],
        tuple(right[1:-1]): ["bos-missing", "eos-missing"],
        (right[0], *right): ["bos-double"],
        tuple(plain): ["text-normalisation"],
    }
    for ids, faults in cases.items():
        findings = explain(bert, right, ids, text=text)
        assert [finding.fault for finding in findings] == faults
    assert "SEP 3 '[SEP]' is missing" in explain(bert, right, right[:-1], text=text)[0].message
    assert "not lower-cased" in explain(bert, right, plain, text=text)[0].message


def test_mistakes_with_a_unigram_vocabulary_are_named(t5: Tokenizer) -> None:
    text = "the  license"
    right = t5.encode(text)
    letters = [t5.vocab.ids[c] for c in "▁the"]
    for ids, fault in (
        (right[:-1], "eos-missing"),
        ([1, *letters, *right[2:]], "unigram-path"),
        (t5.with_rule("remove_extra_whitespaces", False).encode(text), "text-normalisation"),
    ):
        findings = explain(t5, right, ids, text=text)
        assert [finding.fault for finding in findings] == [fault]
