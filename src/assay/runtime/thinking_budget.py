"""A budget for reasoning: after so many tokens of it, its closing tag is written instead of the next drawn tokens.

The tag's tokens go through the model like any others, so the answer that follows is what the model says after
reasoning that ended there. Which token is written is a function of the tokens so far: a sequence that is preempted or
moved to another process continues the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.text import Tokenizer


@dataclass(frozen=True)
class ThinkingBudget:
    """At most `tokens` tokens of reasoning in one answer."""

    tokens: int
    begins: str  # the mark that begins reasoning
    ends: str  # the mark that ends it
    closing: tuple[
        int, ...
    ]  # the tokens that are written at the limit: the end mark, and what the template puts after it
    opened: bool  # the prompt ends inside reasoning


class BudgetWatch:
    """Follows one answer token by token."""

    def __init__(self, budget: ThinkingBudget, tokenizer: Tokenizer) -> None:
        self._budget, self._tokenizer = budget, tokenizer
        self._inside = budget.opened
        self._spent = 0
        self._written = -1  # tokens of the closing tag that are written; -1: none is due
        self._tail = ""  # the last characters, where a mark may be
        self._due()

    def forced(self) -> int | None:
        """The next token, if it is not to be drawn."""
        return self._budget.closing[self._written] if self._written >= 0 else None

    def push(self, token: int) -> None:
        """The next token of the answer."""
        if self._written >= 0:
            self._written += 1
            if self._written == len(self._budget.closing):
                self._written, self._inside, self._tail = -1, False, ""
            return
        self._spent += self._inside
        mark = self._budget.ends if self._inside else self._budget.begins
        self._tail += self._tokenizer.piece(token).decode("utf-8", "replace")
        if mark in self._tail:
            self._inside, self._tail = not self._inside, ""
        else:
            self._tail = self._tail[1 - len(mark) :] if len(mark) > 1 else ""
        self._due()

    def _due(self) -> None:
        if self._inside and self._spent >= self._budget.tokens and self._budget.closing:
            self._written = 0
