"""The quick encoders against the algorithm as it is written down: no cuts, no cache, no queue."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.text.merge import _merge_long, merge
from assay.text.pair_merging import SafeCuts, decode_leniently
from tests.text.vocabs import bpe, spm, tokenizer

LETTERS = "ab▁\nß中"
words = st.dictionaries(
    st.text(LETTERS, min_size=1, max_size=4), st.sampled_from([-1.0, -2.0, -2.0, -3.0]), max_size=25
)


def by_the_book(text: str, ids: dict[str, int], scores: dict[str, float]) -> list[int]:
    """Join the adjacent pair whose token has the highest score, leftmost first, until there is none."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not pairs:
            break
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out: list[int] = []
    for part in parts:
        out += [ids[part]] if part in ids else [ids[f"<0x{b:02X}>"] for b in part.encode()]
    return out


@settings(max_examples=150)
@given(words, st.text("ab \nß中", max_size=40), st.integers(1, 5))
def test_scored_merges_by_the_book(vocabulary: dict[str, float], text: str, repeat: int) -> None:
    text *= repeat  # long texts take the other paths
    with tempfile.TemporaryDirectory() as folder:
        found = tokenizer(Path(folder) / "m.gguf", spm(vocabulary, add_space_prefix=False))
    scores = dict(zip(found.vocab.tokens, found.vocab.scores.tolist(), strict=True))  # type: ignore[union-attr]
    expected = by_the_book(text.replace(" ", "▁"), found.vocab.ids, scores)
    assert found.encode(text, add_special=False, parse_special=False) == expected
    assert found.encode(text, add_special=False, parse_special=False) == expected, "remembered wrongly"


@settings(max_examples=200)
@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=30), st.data())
def test_queue_equals_scan(texts: list[str], data: st.DataObject) -> None:
    ranks = {text: data.draw(st.integers(0, 5)) for text in texts}
    parts = list(data.draw(st.text("abc", max_size=60)))
    assert _merge_long(list(parts), ranks, "") == merge(list(parts), ranks, "")


@given(st.lists(st.text(LETTERS, min_size=1, max_size=4)), st.text(LETTERS, max_size=200))
def test_cuts_lose_nothing_and_part_no_token(tokens: list[str], text: str) -> None:
    cuts = SafeCuts(tokens)
    pieces = [part for piece in cuts.words(text) for part in cuts.further(piece)]
    assert "".join(pieces) == text
    at = 0
    for piece in pieces[:-1]:
        at += len(piece)
        assert not any(text[at - 1 : at + 1] in token for token in tokens)


@given(st.text())
def test_lenient_decoding_of_proper_text(text: str) -> None:
    assert decode_leniently(text.encode()) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"a\x80b", "a\ufffdb"),
        (b"\xc0\x80", "\0"),  # overlong, taken at its value
        (b"\xed\xa0\x80", "\ud800"),
        (b"\xf0\x9f\xa6", "\ufffd" * 3),  # cut off
        (b"\xf7\xbf\xbf\xbf", "\ufffd" * 4),  # beyond Unicode
    ],
)
def test_lenient_decoding(data: bytes, text: str) -> None:
    assert decode_leniently(data) == text


@pytest.mark.parametrize("unit", [" ", "a", "1", " \n", "中", "'s", "\u3000", "1a"])
@pytest.mark.parametrize("pre", ["llama-bpe", "deepseek-llm", "superbpe", "afmoe", "gpt-4o", "exaone-moe"])
def test_long_runs_stay_quick(tmp_path: Path, unit: str, pre: str) -> None:
    """No pre-tokenizer is quadratic: a run of 20,000 would then take seconds and the suite would hang."""
    found = tokenizer(tmp_path / "m.gguf", bpe(["a a", "1 1"], pre=pre))
    text = unit * 20_000
    assert found.decode(found.encode(text, add_special=False)) == text
