"""Marks in a stream of text: what is certain is let through, what may be the beginning of a mark is held back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.text.calls import Call


@dataclass
class ReplyPiece:
    """What is new of an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class Scanner:
    """The part that all notations share: text in `held` is not decided yet, `out` collects what is.

    A subclass takes one step of its own at a time, on the text that there is; it must decide alike however much text
    has come, or wait for more.
    """

    def __init__(self) -> None:
        self.held = ""
        self.out = ReplyPiece()
        self.trim = False  # whether white space in front of content is none
        self._space = ""  # white space that counts only if something follows
        self._spoken = False  # whether this stretch of content or reasoning has begun

    def push(self, text: str) -> ReplyPiece:
        self.held += text
        return self._run(final=False)

    def finish(self) -> ReplyPiece:
        return self._run(final=True)

    def _run(self, final: bool) -> ReplyPiece:
        while self._step(final):
            pass
        out, self.out = self.out, ReplyPiece()
        return out

    def _step(self, final: bool) -> bool:
        """Decide what can be decided; False when nothing more can be."""
        raise NotImplementedError

    def until(self, marks: Sequence[str], final: bool) -> tuple[str, str | None]:
        """The text up to the first mark, which is taken too; without one, the text that cannot belong to one."""
        found = [(at, -len(mark), mark) for mark in marks if (at := self.held.find(mark)) >= 0]
        if found:  # the earliest; of those that begin together the longest
            at, _, mark = min(found)
            text, self.held = self.held[:at], self.held[at + len(mark) :]
            return text, mark
        keep = 0 if final else self._beginning(marks)
        cut = len(self.held) - keep
        text, self.held = self.held[:cut], self.held[cut:]
        return text, None

    def _beginning(self, marks: Sequence[str]) -> int:
        """The length of the longest end of `held` that begins a mark."""
        longest = max(map(len, marks), default=1) - 1
        sizes = range(min(longest, len(self.held)), 0, -1)
        return next((n for n in sizes if any(mark.startswith(self.held[-n:]) for mark in marks)), 0)

    def say(self, text: str, *, final: bool) -> None:
        """Content. White space waits for what follows it, until something was said; `trim` drops it then."""
        if self._spoken:
            self.out.content += text
            return
        text, self._space = self._space + text, ""
        bare = text.lstrip()
        if not bare and not final:
            self._space = text
            return
        self.out.content += bare if self.trim else text
        self._spoken = bool(bare)

    def turn(self, *, trim: bool) -> None:
        """Something else follows: content or reasoning after it begins anew."""
        self._space, self._spoken, self.trim = "", False, trim

    def reason(self, text: str) -> None:
        """Reasoning, without white space at its ends."""
        text = self._space + text
        if not self._spoken:
            text = text.lstrip()
        bare = text.rstrip()
        self._space = text[len(bare) :]
        self._spoken = self._spoken or bool(bare)
        self.out.reasoning += bare
