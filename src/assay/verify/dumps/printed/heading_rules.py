"""Decides which lines are headings, by a table of rules, and opens their sections.

A heading names a node, a layer, a position or an engine and gives no values. A rule returns the stack of headings below
the line. Rules of high priority recognise lines that only look like headings: counts, commands, setup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from assay.verify.dumps.naming.layer_and_row import LAYERS, NUMBERING, ROW, layer_of, of_each_layer, row_of
from assay.verify.dumps.naming.phrases import NOT_VALUES, VALUES, Meaning, meaning, split_words
from assay.verify.dumps.printed.headings import ENDS, HeadingStack, Section, indent_of
from assay.verify.dumps.printed.lexer import lex
from assay.verify.dumps.printed.line_parser import NOT_SIDES, parse_line
from assay.verify.dumps.printed.rule_rows import Rule, RuleTable
from assay.verify.dumps.printed.statements import Statement
from assay.verify.dumps.printed.subjects import EITHER_NORM, inside_layer

_HEADING = re.compile(r"^\s*(?:#+\s|\*\*|[-\d.]+\s+\*\*)|[:：{=]\s*\**\s*$|^\s*[-=]{2,}.*[-=]{2,}\s*$")
_BOLD = re.compile(r"^\s*\**([A-Za-z][\w.+-]*)\**\s*(?:\([^)]*\))?\s*:?\s*$")
_COMMENT = re.compile(r"(?<=\S)\s+(?:#|//|;;|/\*)\s+(?=\S)")
_LOOP = re.compile(r"\s*for [\w, ]{1,40} in ([^:]{1,200}):")
_WEIGHT = re.compile(r"\w{1,20}\[['\"][\w.]{1,80}weight['\"]\]")
_SENTENCE = re.compile(r"[.!?;]\s+(?=[A-Z*`])")
_FRAME = re.compile(r"\b(?:l|il|layer\w{0,8}|blk|block|idx|index)\s?=\s?\d{1,4}\b")
_TOKEN = re.compile(
    r"\s*[\[(#]?(\d{1,6})[\])]?[:.]?\s*(?:'[^']{0,40}'|\"[^\"]{0,40}\"|`[^`]{0,40}`|▁\S{0,40})\s*:?\s*$"
)  # [3] 'of'
_ASIDE = re.compile(r"\([^()]{0,200}\)")
_LISTED = re.compile(r"^\s*\$ [\w ]{1,40}[:,]")  # R names a member: $ layer 0: attn norm
_PROGRESS = re.compile(r"\d%\s?\|")
_FLAG = re.compile(r"(?:^|\s)--?[A-Za-z]")
_COUNTED = re.compile(r"\blayers(?:\s*[:=])?\s+\d|\b\d{1,3} layers\b")  # a count: "layers 3", "3 layers"
_NTH = re.compile(
    r"\s*[\[(\"']?(\d{1,4})[\])\"']?\s{0,4}(?:=>|:|=)\s{0,4}"
    r"(?:(?:array|object|Array|table)\s?(?:\(\d{0,6}\))?)?\s?[\[({]?\s*"
)
_REAL = re.compile(r"\d\.\d|\d[eE]-\d|\d\s?[KMG]i?B\b")
_SETUP = {
    "using", "backend", "cache", "loaded", "loading", "device", "threads", "length", "count", "dim", "enabled",
    "disabled", "warning", "version", "eps", "theta", "scaling", "params", "parameters", "config", "offloading",
    "allocated",
}  # fmt: skip
_FROM = re.compile(r"\bfrom\s{1,8}([A-Za-z][\w.+-]{0,60})")
_ENTERS = {"entering", "enter", "begin", "starting"}


@dataclass
class HeadingSite:
    """A line without values, and the headings above it. A `caption` stands directly above values without words."""

    line: str
    statement: Statement
    context: HeadingStack
    sides: set[str]
    caption: bool

    @cached_property
    def words(self) -> list[str]:
        return [w for w in split_words(self.statement.label) if w != VALUES]

    @cached_property
    def marked(self) -> bool:
        """Marked as a heading: a colon behind it, `#` or a rule."""
        return bool(_HEADING.search(self.line))

    @cached_property
    def frame(self) -> bool:
        """A debugger's stack frame, or a sentence that assigns the number of a layer."""
        return bool(_FRAME.search(self.line[:2000])) and layer_of(self.words)[0] is not None

    @cached_property
    def core(self) -> Statement:
        """The statement without remarks in brackets, where it is long: (8 x 16, one row per token)."""
        remarks = len(self.statement.label) > 8 and not self.marked and "(" in self.line[1:400]
        if not remarks or _FRAME.search(self.line[:2000]):
            return self.statement
        return parse_line(lex(_ASIDE.sub(" ", self.line[:400])), set())

    @cached_property
    def long(self) -> bool:
        return len(self.core.label) > 12

    @cached_property
    def own(self) -> Meaning:
        """The meaning of the line's words."""
        label, words, context = self.core.label, self.words, self.context
        own = Meaning() if self.long else meaning(label)
        layer = layer_of(words)[0]
        if layer is not None and (set(words) & _ENTERS or (self.frame and self.long)):
            own = Meaning(("l_out-",), layer, bare=True)
        if not own.role and own.layer is None and context.subject.layer is not None and len(label) < 6:
            inside = inside_layer(label, context)  # `p *s->residual@5` in the frame of layer 0
            own = replace(inside, layer=context.subject.layer) if inside.nodes else own
        if of_each_layer(words) and own.layer is None:
            inside = Meaning() if self.long or own.verbatim else meaning([*label, "layer", "0"])
            found = inside.nodes[:1] and inside.nodes != ("embd",)
            own = replace(inside, layer=None, row=own.row) if found else own
        return own

    @property
    def each(self) -> bool:
        """Whether the line names layers without a number."""
        return of_each_layer(self.words) and self.own.layer is None

    @cached_property
    def row(self) -> int | None:
        return self.core.row if self.core.row is not None else row_of(self.words, layer_of(self.words)[1])

    @cached_property
    def possible_row(self) -> int | None:
        return self.core.possible_row if self.core.possible_row is not None else self.own.possible_row

    @cached_property
    def below(self) -> HeadingStack:
        """The headings above; if the line ends with "layer" or "row", the next line gives the number."""
        return replace(self.context, awaits=_asks(self.words))

    @cached_property
    def prose(self) -> HeadingStack:
        """The headings, if the line is prose: it may only name a row."""
        return self.below if self.row is None else replace(self.below, possible_row=self.row)

    @cached_property
    def opened(self) -> HeadingStack:
        """The headings that stay open at this line. A Markdown title closes all: its level is no indentation."""
        if not self.line.lstrip().startswith("#"):
            return self.below
        top = Section(replace(self.below.subject, row=None), self.below.words)
        return replace(self.below, sections=(top,), side="")

    def with_side(self, context: HeadingStack) -> HeadingStack:
        """The headings with the engine that the line names, if earlier lines showed that engine."""
        named = {s for s in self.sides if s in self.line} if self.marked else set()
        return replace(context, side=max(named, key=len)) if named else context


def heading(
    line: str, statement: Statement, context: HeadingStack, sides: set[str], caption: bool = False
) -> HeadingStack:
    """The headings that hold below a line without values."""
    statement, line = _essence(line, statement)
    return HEADING_RULES.first(HeadingSite(line, statement, context, sides, caption)) or context


def _no_words(site: HeadingSite) -> HeadingStack | None:
    """A bracket alone, or a debugger's next statement."""
    debugger = site.line.startswith("-> ") and layer_of(site.words)[0] is None
    return site.context if not site.words or debugger else None


def _count_or_progress(site: HeadingSite) -> HeadingStack | None:
    found = _COUNTED.search(site.line[:400]) or _PROGRESS.search(site.line[:400])
    return site.context if found else None


def _typed_command(site: HeadingSite) -> HeadingStack | None:
    line = site.line
    member = _LISTED.search(line[:400]) and meaning(site.statement.label).role
    typed = line.lstrip().startswith("$ ") and not member
    if len(_FLAG.findall(line[:400])) < 2 and not typed:
        return None
    return replace(site.context, possible_row=-1) if row_of(site.words, set()) == -1 else site.context


def _numbered_entry(site: HeadingSite) -> HeadingStack | None:
    m = _NTH.fullmatch(site.line)
    outside = site.context.outside(site.line)
    return _answered(int(m[1]), outside, indent_of(site.line)) if m and outside.each else None


def _numbered_block(site: HeadingSite) -> HeadingStack | None:
    words, context = site.words, site.context
    if len(words) != 2 or words[0] not in NUMBERING | {"block"} or not words[1].isdecimal() or len(words[1]) > 4:
        return None
    above = context if context.each else context.outside(site.line)
    return _answered(int(words[1]), replace(above, awaits="layer"), indent_of(site.line)) if above.each else None


def _number_alone(site: HeadingSite) -> HeadingStack | None:
    words, context = site.words, site.context
    if len(words) != 1 or not words[0].isdecimal() or len(words[0]) > 4:
        return None
    asked = context.awaits or context.outside(site.line).each
    return _answered(int(words[0]), context, indent_of(site.line)) if asked else None


def _setup(site: HeadingSite) -> HeadingStack | None:
    """How the engine was set up: a size, a version, a device."""
    if site.marked or site.own.layer is not None:
        return None
    return site.below if _REAL.search(site.line) or set(site.words) & _SETUP else None


def _not_about_values(site: HeadingSite) -> HeadingStack | None:
    return site.below if not site.own.role and set(site.words) & NOT_VALUES else None


def _long_prose(site: HeadingSite) -> HeadingStack | None:
    return site.prose if site.long and not site.own.role else None


def _prose(site: HeadingSite) -> HeadingStack | None:
    own, each = site.own, site.each
    most = 10 if site.row is not None or own.layer is not None else 8 if each or own.nodes in ENDS else 4
    short = site.frame or site.caption or sum(not w.isdecimal() for w in site.core.label) <= most
    informs = own.role or own.layer is not None or site.row is not None or site.possible_row is not None
    informs = informs or bool(_TOKEN.match(site.line))
    return site.prose if not site.marked and not (short and informs) else None


def _node_or_layer(site: HeadingSite) -> HeadingStack | None:
    own, line = site.own, site.line
    if not own.role and own.layer is None:
        return None
    loose = not site.marked and len(site.core.label) > 4  # it may be prose
    own = replace(own, vague=own.vague or loose)
    context = _enter(line, site.core, own, site.row, site.possible_row, site.opened)
    if indent_of(line) > 3 and (at := site.possible_row if site.row is None else site.row) is not None:
        context = replace(context, possible_row=at)  # a centred title above a table without indentation
    m = _FROM.search(line)
    if m and m[1].lower() not in NOT_SIDES:
        context = replace(context, side=m[1])
    return site.with_side(context)


def _row_in_a_title(site: HeadingSite) -> HeadingStack | None:
    if site.row is None or (site.marked and len(site.core.label) <= 6):
        return None
    return site.with_side(replace(site.opened, possible_row=site.row))  # ### Garbage, first token already wrong


def _row(site: HeadingSite) -> HeadingStack | None:
    m = _TOKEN.match(site.line)
    if site.row is None and site.possible_row is None and not m:
        return None
    possible_row = int(m[1]) if site.row is None and site.possible_row is None and m else site.possible_row
    return site.with_side(
        site.opened.with_subject(replace(site.opened.subject, row=site.row, possible_row=possible_row))
    )


def _engine(site: HeadingSite) -> HeadingStack | None:
    m = _BOLD.match(site.line) if site.marked and not site.below.awaits else None
    if m is None or m[1].lower() in NOT_SIDES or len(m[1]) < 3:
        return None
    return site.with_side(replace(site.opened, side=m[1]))


def _title(site: HeadingSite) -> HeadingStack:
    return site.with_side(site.opened)


HEADING_RULES: RuleTable[HeadingSite, HeadingStack] = RuleTable(
    "heading",
    Rule(
        "no words",
        150,
        "layer 0 attn_norm:\n-> h = x + ffn_out\n[0.5, 1.5]\n",
        ("attn_norm-0 first 0.5 1.5",),
        _no_words,
    ),
    Rule(
        "count or progress",
        140,
        "layer 0 attn_norm:\n3 layers of ffn\n[0.5, 1.5]\n",
        ("attn_norm-0 first 0.5 1.5",),
        _count_or_progress,
    ),
    Rule(
        "typed command",
        130,
        "layer 0 attn_norm:\n$ ./run --ffn --norm\n[0.5, 1.5]\n",
        ("attn_norm-0 first 0.5 1.5",),
        _typed_command,
    ),
    Rule("numbered entry", 120, "layers:\n  1 => array(2) {\n    rms: 1.5\n", ("l_out-1 rms 1.5",), _numbered_entry),
    Rule("numbered block", 110, "layers\n  index: 1\n  rms: 1.5\n", ("l_out-1 rms 1.5",), _numbered_block),
    Rule("number alone", 100, "layer\n1\nrms: 1.5\n", ("l_out-1 rms 1.5",), _number_alone),
    Rule("setup", 90, "layer 1 ffn_norm\nattention backend\nrms: 1.5\n", ("ffn_norm-1 rms 1.5",), _setup),
    Rule("not about values", 80, "loading:\nlayer 0: [0.5, 1.5]\n", ("l_out-0 first 0.5 1.5",), _not_about_values),
    Rule(
        "long prose",
        70,
        "RusTorch:\n# these are the numbers of the run with all of the changes that we made\nlayer 0 out: [0.5, 1.5]\n",
        ("l_out-0 first 0.5 1.5 by RusTorch",),
        _long_prose,
    ),
    Rule(
        "prose",
        60,
        "layer 1:\nwe looked at the embedding table and also at it\nnorm1: 0.5 1.5\n",
        ("attn_norm-1 first 0.5 1.5",),
        _prose,
    ),
    Rule("node or layer", 50, "layer 1:\n  attn_norm: [0.5, 1.5]\n", ("attn_norm-1 first 0.5 1.5",), _node_or_layer),
    Rule(
        "row in a title", 40, "the last token\nlayer 0: 0.5 1.5\n", ("l_out-0 first 0.5 1.5 row? -1",), _row_in_a_title
    ),
    Rule("row", 30, "### token 2\nlayer 0: 0.5 1.5\n", ("l_out-0 first 0.5 1.5 row? 2",), _row),
    Rule("engine", 20, "**RusTorch**\nlayer 0: [0.5, 1.5]\n", ("l_out-0 first 0.5 1.5 by RusTorch",), _engine),
    Rule(
        "title",
        10,
        "RusTorch:\nlayer 0: [0.5, 1.5]\n# Next run\nlayer 1: [0.5, 1.5]\n",
        ("l_out-0 first 0.5 1.5 by RusTorch", "l_out-1 first 0.5 1.5"),
        _title,
    ),
)


def _essence(line: str, statement: Statement) -> tuple[Statement, str]:
    """The part of a heading that counts: without its comment, or the comment alone; of prose the last sentence."""
    line = line[:4000]
    if "weight" in line and _WEIGHT.search(line):  # h = rmsnorm(h, W["norm.weight"])
        line = _WEIGHT.sub(" ", line)
        statement = parse_line(lex(line), set())
    if m := _LOOP.match(line):  # for i, v in top5(logits): print(i, v)
        line = m[1]
        statement = parse_line(lex(line), set())
    if m := _COMMENT.search(line):
        head, comment = line[: m.start()], line[m.end() :]
        alone = parse_line(lex(head), set())
        behind = parse_line(lex(comment), set())
        if alone.row is not None and not meaning(alone.label).role and meaning(behind.label).role:
            behind.row = alone.row if behind.row is None else behind.row
            return behind, head[: indent_of(head)] + comment  # hs[1][-1, :6]   # output of layer 0
        if meaning(alone.label).role or alone.row is not None:
            return alone, head
        return (behind, head[: indent_of(head)] + comment) if not alone.label[3:] else (statement, line)
    if len(statement.label) > 12 and _HEADING.search(line) and (parts := _SENTENCE.split(line)) and len(parts) > 1:
        last = parse_line(lex(parts[-1]), set())
        if last.row is None:
            last.possible_row = row_of(split_words(statement.label), set())
        return last, parts[-1]
    return statement, line


def _asks(words: Sequence[str]) -> str:
    """The kind of number that the next line should give, if this one ends with "layer" or "row"."""
    rest = [w for w in words[-2:] if w not in NUMBERING]
    if not rest or len(words) > 4:
        return ""
    return "layer" if rest[-1] in LAYERS | {"l", "il"} else "row" if rest[-1] in ROW else ""


def _answered(number: int, context: HeadingStack, indent: int) -> HeadingStack:
    old = context.subject
    if not context.awaits:
        old = replace(old, nodes=(), vague=False, bare=False)
    if context.awaits == "row":
        return replace(context.with_subject(replace(old, row=number)), awaits="")
    nodes = old.nodes if old.nodes and old.nodes[0].endswith("-") else ("l_out-",)
    new = Meaning(nodes, number, old.row, old.possible_row, vague=old.vague, bare=old.bare or not old.nodes)
    return replace(context.entering(new, (), indent), awaits="")


def _enter(
    line: str, statement: Statement, own: Meaning, row: int | None, possible_row: int | None, context: HeadingStack
) -> HeadingStack:
    above = context.subject
    indent = indent_of(line)
    record = own.bare and own.layer is not None and _is_record(statement, line)
    if record and context.fresh and above.nodes and above.nodes[0].endswith("-") and not above.bare:
        own = replace(above, layer=own.layer, verbatim="")  # name: attn_out, then layer: 0
        indent = min(indent, max(context.sections[-1].indent, 0))
    elif own.layer is None and above.layer is not None and own.nodes not in ENDS:
        inside = inside_layer(statement.label, context)  # "attn:" below "block 0:"
        own = inside if inside.nodes and (indent > 0 or inside.nodes != EITHER_NORM) else own
    own = replace(
        own,
        row=above.row if row is None else row,
        possible_row=above.possible_row if possible_row is None else possible_row,
    )
    indent = 0 if line.lstrip().startswith("frame #") else indent  # a debugger does not indent its answers
    return context.entering(own, statement.label, indent, bool(_HEADING.search(line)))


_RECORD = re.compile(
    r"[\"':]?\w{0,20}(?:layer|block|blk|lyr|l|il)\w{0,8}[\"']?\s{0,8}(?:[=:]|=>)\s{0,8}\d{1,4}[,;]?\s*", re.IGNORECASE
)


def _is_record(statement: Statement, line: str) -> bool:
    """Whether the line is a field such as `layer = 3`, rather than a title."""
    return len(statement.label) <= 3 and bool(_RECORD.fullmatch(line.strip()[:80]))
