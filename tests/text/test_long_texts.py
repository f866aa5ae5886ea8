"""Long texts are searched match by match, so that other threads run meanwhile; the words are the same."""

from __future__ import annotations

import random

import pytest

from assay.text import pretokenize
from assay.text.pair_merging import SafeCuts
from assay.text.pretokenize import LONG, PRETOKENIZERS

ALPHABET = "ab1 2'\ns  é日\t.,!x\u3000▁"


def text_of(n: int, seed: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice(ALPHABET) for _ in range(n))


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_words_do_not_depend_on_how_they_are_searched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text_of(400, seed) for seed in range(3)]
    once = [PRETOKENIZERS[name].split(text) for text in texts]
    monkeypatch.setattr(pretokenize, "LONG", 0)
    assert [PRETOKENIZERS[name].split(text) for text in texts] == once


def test_cuts_do_not_depend_on_the_length() -> None:
    cut = SafeCuts(["▁a", "b▁", "1▁2", "x"]).words
    line = text_of(300, 1)
    long = cut("\n".join([line] * (LONG // 300 + 10)))
    assert "".join(long) == "\n".join([line] * (LONG // 300 + 10))
    assert long[: len(cut(line)) - 2] == cut(line)[:-2]
