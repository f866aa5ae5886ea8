"""Find marks in streamed text: text is passed on once it cannot be the start of a mark, and held back until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.text.call_stream import CallPart
from assay.text.calls import Call


@dataclass
class ReplyPiece:
    """The new part of an answer: content, reasoning and calls. A call comes whole or, if asked for, in parts."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    parts: list[CallPart] = field(default_factory=list)
    cut: bool = False  # the answer ended inside a call, which was dropped

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls or self.parts)


class Scanner:
    """Base of the streaming parsers. `held` has undecided text, `out` collects the result.

    A subclass parses one step at a time from `held`. Its result must not depend on how the text was split into parts;
    if a step is undecided, it waits for more text.
    """

    def __init__(self) -> None:
        self.held = ""
        self.out = ReplyPiece()
        self.trim = False  # whether leading white space of content is dropped
        self.cut = False  # whether a limit ended the answer
        self._space = ""  # white space that is kept only if text follows
        self._spoken = False  # whether the current content or reasoning has any text

    def push(self, text: str) -> ReplyPiece:
        self.held += text
        return self._run(final=False)

    def finish(self, *, cut: bool = False) -> ReplyPiece:
        """The rest, at the end of the answer. With `cut` a limit ended it: a call that was begun is dropped."""
        self.cut = cut
        return self._run(final=True)

    def _run(self, final: bool) -> ReplyPiece:
        while self._step(final):
            pass
        out, self.out = self.out, ReplyPiece()
        return out

    def _step(self, final: bool) -> bool:
        """Parse one step. False if more text is needed."""
        raise NotImplementedError

    def until(self, marks: Sequence[str], final: bool) -> tuple[str, str | None]:
        """Consume text up to and including the first mark; without a mark, the text that cannot belong to one."""
        found = [(at, -len(mark), mark) for mark in marks if (at := self.held.find(mark)) >= 0]
        if found:  # the earliest; the longest of those with one start
            at, _, mark = min(found)
            text, self.held = self.held[:at], self.held[at + len(mark) :]
            return text, mark
        keep = 0 if final else self._beginning(marks)
        cut = len(self.held) - keep
        text, self.held = self.held[:cut], self.held[cut:]
        return text, None

    def _beginning(self, marks: Sequence[str]) -> int:
        """The length of the longest suffix of `held` that is a prefix of a mark."""
        longest = max(map(len, marks), default=1) - 1
        sizes = range(min(longest, len(self.held)), 0, -1)
        return next((n for n in sizes if any(mark.startswith(self.held[-n:]) for mark in marks)), 0)

    def say(self, text: str, *, final: bool) -> None:
        """Add content. Leading white space is held until text follows; `trim` then drops it."""
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
        """Start a new stretch of content or reasoning."""
        self._space, self._spoken, self.trim = "", False, trim

    def reason(self, text: str) -> None:
        """Add reasoning, without leading and trailing white space."""
        text = self._space + text
        if not self._spoken:
            text = text.lstrip()
        bare = text.rstrip()
        self._space = text[len(bare) :]
        self._spoken = self._spoken or bool(bare)
        self.out.reasoning += bare
