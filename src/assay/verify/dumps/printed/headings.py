"""What the lines below a heading speak of, and what a line speaks of under its headings.

A heading is a line that names a node, a layer, a position or an engine and gives no values. Headings nest by their
indentation. What a line does not say itself is its heading's; prose that tells a row tells it for what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from assay.verify.dumps.naming.layer_and_row import of_each_layer
from assay.verify.dumps.naming.phrases import Meaning, split_words

ENDS = (("result_output",), ("embd",))  # nodes that belong to no layer
_DEEPEST = 24
NOTHING = Meaning()


@dataclass(frozen=True)
class Section:
    subject: Meaning = NOTHING
    words: tuple[str, ...] = ()  # of the heading that named it
    indent: int = -1  # a line further out is no longer about it
    marked: bool = False  # marked as a heading: a colon behind it, a line drawn around it
    indented: bool = False  # lines further in stood below it: one as far out as itself is no longer about it

    def closed(self) -> Section:
        return Section(replace(self.subject, nodes=("l_out-",), bare=True, vague=False, verbatim=""), (), self.indent)


@dataclass(frozen=True)
class HeadingStack:
    """What the lines below the headings so far speak of."""

    sections: tuple[Section, ...] = (Section(),)
    side: str = ""
    possible_row: int | None = None  # a row that prose told
    awaits: str = ""  # a heading that waits for a number: "layer", "row"
    fresh: bool = False  # nothing was printed below the last heading
    variables: dict[str, str] = field(default_factory=dict)  # variables, and the role last put into each
    last_node: str = ""  # the node that was printed last

    @property
    def subject(self) -> Meaning:
        return self.sections[-1].subject

    @property
    def each(self) -> bool:
        """Of every layer: numbers before the lines below count them."""
        return self.subject.layer is None and of_each_layer(split_words(self.words))

    @property
    def words(self) -> tuple[str, ...]:
        return self.sections[-1].words

    def at(self, line: str) -> HeadingStack:
        """The context of a line: headings further in than it are over."""
        indent = indent_of(line)
        if not line.strip() or line[0] == "#":
            return self
        sections = tuple(s for s in self.sections if s.indent <= indent)
        last = sections[-1]
        if last.indented and last.indent == indent and last.subject.layer is not None and line.lstrip()[:1].isalpha():
            last = last.closed()
        elif 0 <= last.indent < indent:
            last = replace(last, indented=True)
        return self if last is self.sections[-1] else replace(self, sections=(*sections[:-1], last))

    def outside(self, line: str) -> HeadingStack:
        """The context of a heading's line without its neighbours: only headings further out."""
        indent = indent_of(line)
        return replace(self, sections=tuple(s for s in self.sections if s.indent < indent) or self.sections[:1])

    def entering(self, subject: Meaning, words: Sequence[str], indent: int, marked: bool = False) -> HeadingStack:
        sections = tuple(s for s in self.sections if s.indent < indent)[:_DEEPEST]
        return replace(self, sections=(*sections, Section(subject, tuple(words)[:24], indent, marked)), fresh=True)

    def with_subject(self, subject: Meaning) -> HeadingStack:
        return replace(self, sections=(*self.sections[:-1], replace(self.sections[-1], subject=subject)))


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
