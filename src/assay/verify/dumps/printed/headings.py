"""The stack of headings above a line: sections that nest by indentation, each with its subject.

A heading is a line that names a node, a layer, a position or an engine and gives no values. `heading_rules.py` decides
which lines are headings; `subjects.py` completes a line's subject from this stack.
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
    """The lines below one heading."""

    subject: Meaning = NOTHING
    words: tuple[str, ...] = ()  # Of the heading.
    indent: int = -1  # A line with less indentation ends the section.
    marked: bool = False  # The heading has a colon, `#` or a rule.
    indented: bool = False  # It has indented lines: a line at its own indentation ends it.

    def closed(self) -> Section:
        return Section(replace(self.subject, nodes=("l_out-",), bare=True, vague=False, verbatim=""), (), self.indent)


@dataclass(frozen=True)
class EachToken:
    """A heading such as "norms per token {": the lists below have a statistic of each token."""

    kind: str
    indent: int
    opens: bool  # It opens a bracket, which a line with the heading's indentation closes.


@dataclass(frozen=True)
class HeadingStack:
    """The open sections, and what the lines so far tell the next one."""

    sections: tuple[Section, ...] = (Section(),)
    side: str = ""
    possible_row: int | None = None  # a row that prose named
    awaits: str = ""  # "layer" or "row", if the next line should give its number
    fresh: bool = False  # no values since the last heading
    variables: dict[str, str] = field(default_factory=dict)  # variable -> role of the node last assigned to it
    last_node: str = ""  # role of the last printed node
    of_each_token: EachToken | None = None

    @property
    def subject(self) -> Meaning:
        return self.sections[-1].subject

    @property
    def each(self) -> bool:
        """The heading names layers without a number, so that numbers before the lines below count them."""
        return self.subject.layer is None and of_each_layer(split_words(self.words))

    @property
    def words(self) -> tuple[str, ...]:
        return self.sections[-1].words

    def at(self, line: str) -> HeadingStack:
        """The sections open at a line: its indentation ends deeper ones."""
        indent = indent_of(line)
        each = self.of_each_token
        if each and (indent <= each.indent if each.opens and line.strip() else not line.strip()):
            return replace(self, of_each_token=None).at(line)
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
        """The sections around a heading: only those with less indentation."""
        indent = indent_of(line)
        return replace(self, sections=tuple(s for s in self.sections if s.indent < indent) or self.sections[:1])

    def entering(self, subject: Meaning, words: Sequence[str], indent: int, marked: bool = False) -> HeadingStack:
        sections = tuple(s for s in self.sections if s.indent < indent)[:_DEEPEST]
        return replace(self, sections=(*sections, Section(subject, tuple(words)[:24], indent, marked)), fresh=True)

    def with_subject(self, subject: Meaning) -> HeadingStack:
        return replace(self, sections=(*self.sections[:-1], replace(self.sections[-1], subject=subject)))


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
