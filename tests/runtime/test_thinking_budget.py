"""A budget for reasoning, token by token."""

from __future__ import annotations

import pytest

from assay.gguf import open_file
from assay.runtime.thinking_budget import BudgetWatch, ThinkingBudget
from assay.text import Tokenizer
from tests.tiny import make


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(open_file(make(tmp_path_factory.mktemp("budget") / "m.gguf")))


def written(tokenizer: Tokenizer, drawn: str, tokens: int, *, opened: bool) -> str:
    """The answer of a model that draws these letters, one by one, wherever it may."""
    closing = tuple(tokenizer.encode("</t>", add_special=False))
    watch = BudgetWatch(ThinkingBudget(tokens, "<t>", "</t>", closing, opened), tokenizer)
    ids, queue = [], [token for letter in drawn for token in tokenizer.encode(letter, add_special=False)[-1:]]
    while queue or watch.forced() is not None:
        forced = watch.forced()
        ids.append(queue.pop(0) if forced is None else forced)
        watch.push(ids[-1])
    return tokenizer.decode(ids).replace(" ", "")


@pytest.mark.parametrize(
    ("drawn", "tokens", "opened", "answer"),
    [
        ("abcdef", 3, True, "abc</t>def"),
        ("abcdef", 0, True, "</t>abcdef"),
        ("ab</t>cdef", 9, True, "ab</t>cdef"),  # it ends by itself
        ("abcdef", 3, False, "abcdef"),  # no reasoning
        ("a<t>bcdef", 2, False, "a<t>bc</t>def"),
        ("a<t>b</t>c<t>def", 6, False, "a<t>b</t>c<t>d</t>ef"),  # both stretches count
    ],
)
def test_the_closing_tag_is_written_at_the_limit(
    tokenizer: Tokenizer, drawn: str, tokens: int, opened: bool, answer: str
) -> None:
    assert written(tokenizer, drawn, tokens, opened=opened) == answer
