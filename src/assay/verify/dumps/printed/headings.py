"""What the lines below a heading speak of, and what a line speaks of under its headings.

A heading is a line that names a node, a layer, a position or an engine and gives no values. Headings nest by their
indentation. What a line does not say itself is its heading's; prose that tells a row tells it for what follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from assay.verify.dumps.naming.layer_and_row import LAYERS, NUMBERING, ROW, layer_of, of_each_layer, row_of
from assay.verify.dumps.naming.phrases import NOT_VALUES, VALUES, Meaning, has_unknown, meaning, split_words
from assay.verify.dumps.naming.statistic_names import statistic
from assay.verify.dumps.printed.lexer import pieces
from assay.verify.dumps.printed.line_parser import NOT_SIDES, said_by
from assay.verify.dumps.printed.statements import Said

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
_COUNTED = re.compile(r"\blayers(?:\s*[:=])?\s+\d|\b\d{1,3} layers\b")  # "layers 3", "3 layers": how many
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
VAGUE = {"norm", "rmsnorm", "out", "output", "proj", "result", "in", "input"}
EITHER_NORM = ("attn_norm-", "ffn_norm-")
_ENDS = (("result_output",), ("embd",))
_DEEPEST = 24
NOTHING = Meaning()


@dataclass(frozen=True)
class Scope:
    about: Meaning = NOTHING
    words: tuple[str, ...] = ()  # of the heading that named it
    indent: int = -1  # a line further out is no longer about it
    firm: bool = False  # marked as a heading: a colon behind it, a line drawn around it
    deep: bool = False  # lines further in stood below it: one as far out as itself is no longer about it

    def over(self) -> Scope:
        return Scope(replace(self.about, nodes=("l_out-",), bare=True, vague=False, verbatim=""), (), self.indent)


@dataclass(frozen=True)
class Context:
    """What the lines below the headings so far speak of."""

    scopes: tuple[Scope, ...] = (Scope(),)
    side: str = ""
    perhaps: int | None = None  # a row that prose told
    asked: str = ""  # a heading that waits for a number: "layer", "row"
    fresh: bool = False  # nothing was printed below the last heading
    sums: dict[str, str] = field(default_factory=dict)  # variables, and the role last put into each
    before: str = ""  # the node that was printed last

    @property
    def about(self) -> Meaning:
        return self.scopes[-1].about

    @property
    def each(self) -> bool:
        """Of every layer: numbers before the lines below count them."""
        return self.about.layer is None and of_each_layer(split_words(self.words))

    @property
    def words(self) -> tuple[str, ...]:
        return self.scopes[-1].words

    def at(self, line: str) -> Context:
        """The context of a line: headings further in than it are over."""
        indent = indent_of(line)
        if not line.strip() or line[0] == "#":
            return self
        scopes = tuple(s for s in self.scopes if s.indent <= indent)
        last = scopes[-1]
        if last.deep and last.indent == indent and last.about.layer is not None and line.lstrip()[:1].isalpha():
            last = last.over()
        elif 0 <= last.indent < indent:
            last = replace(last, deep=True)
        return self if last is self.scopes[-1] else replace(self, scopes=(*scopes[:-1], last))

    def outside(self, line: str) -> Context:
        """The context of a heading's line without its neighbours: only headings further out."""
        indent = indent_of(line)
        return replace(self, scopes=tuple(s for s in self.scopes if s.indent < indent) or self.scopes[:1])

    def entering(self, about: Meaning, words: Sequence[str], indent: int, firm: bool = False) -> Context:
        scopes = tuple(s for s in self.scopes if s.indent < indent)[:_DEEPEST]
        return replace(self, scopes=(*scopes, Scope(about, tuple(words)[:24], indent, firm)), fresh=True)

    def told(self, about: Meaning) -> Context:
        return replace(self, scopes=(*self.scopes[:-1], replace(self.scopes[-1], about=about)))


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


# -- a line under its headings -------------------------------------------------------------------------------------


def about(said: Said, context: Context) -> Meaning:
    """The line's own words first; what they leave open is the heading's."""
    before = said.label[: said.before] if said.before is not None else said.label
    known = meaning(before)
    label = before if known.role or known.layer is not None or said.layer is not None else said.label
    if said.side and not meaning([said.side]).role:
        label = [w for w in label if w != said.side]
    if "plus" in label:
        at = label.index("plus")
        added = next((context.sums.get(w, "") for w in label[at + 1 : at + 2]), "")
        if added:
            label = [*label[: at + 1], added, *label[at + 2 :]]
        else:  # "+ residual", "h = x + r"
            label = [*label, {"attn_out": "attn", "ffn_out": "mlp"}.get(context.before, "")]
    if [w.lower() for w in label if w != VALUES] == ["values"] and context.before[:4] in ("Qcur", "Kcur"):
        label = ["v"]  # behind "queries" and "keys"
    own = meaning(label)
    spoken = meaning(said.label)
    if own.layer is None and spoken.layer is not None and own.role and not own.verbatim and own.nodes not in _ENDS:
        own = replace(meaning([*label, "layer", str(spoken.layer)]), row=own.row)  # …|layer=0 behind the values
    if said.layer is not None and own.layer is None and not own.verbatim:
        own = replace(meaning([*label, "layer", str(said.layer)]), row=own.row)
    above = context.about
    if own.bare and said.before is not None and own.layer is not None:  # h: [...]  # x + attn(norm(x))
        behind = meaning([*said.label[said.before + 1 :], "layer", str(own.layer)], generic=False)
        own = replace(own, nodes=behind.nodes, bare=False) if behind.nodes and "plus" in said.label else own
    if own.vague and said.before is not None and own.layer is not None:  # L0 xb 1.5 2.5  (after att rmsnorm)
        behind = meaning([*said.label[said.before + 1 :], "layer", str(own.layer)], generic=False)
        own = replace(own, nodes=behind.nodes, vague=False) if behind.nodes else own
    if own.layer is None and above.layer is None and not own.verbatim and own.nodes not in _ENDS:
        own = _led(label, own)
    found = own
    if not own.role:
        layer = above.layer if own.layer is None else own.layer
        nodes = above.nodes
        if own.layer is None and above.layer is not None and set(split_words(label)) & LAYERS:
            nodes = _inside(label, context).nodes or nodes  # "block output" below "feed forward"
        if layer is not None and own.layer is None and not above.role:
            nodes = ("l_out-",)
        if not nodes and layer is None and of_each_layer(split_words(label)):  # "layer: …", once for each
            each = meaning([*label, "layer", "0"])
            nodes = each.nodes if each.nodes and each.nodes[0].endswith("-") else ()
        strange = has_unknown(w for w in split_words(label) if not statistic([w]))
        found = Meaning(nodes, layer, verbatim=above.verbatim, vague=above.vague or (strange and above.bare))
    elif (
        (own.bare or own.vague)
        and not set(split_words(label)) & {"out", "output", "outputs"}
        and above.nodes
        and above.layer is None
        and above.nodes[0].endswith("-")
        and not above.bare
        and (context.scopes[-1].firm or context.each)
    ):
        found = Meaning(above.nodes, own.layer, vague=above.vague)  # "layer 0: [...]" below "attention outputs"
    elif own.nodes == EITHER_NORM and above.layer == own.layer and context.words:
        number = ("layer", str(own.layer))
        found = meaning([*context.words, *label, *number], generic=False)  # "rmsnorm" below "pre-attention norm"
    elif own.layer is None and not own.verbatim and above.layer is not None:
        inside = _inside(label, context)
        if inside.nodes and own.nodes not in _ENDS and (inside.nodes != EITHER_NORM or own.nodes != ("result_norm",)):
            found = replace(inside, layer=above.layer)
        elif own.nodes == ("result_norm",):  # "norm" below a layer, and nobody said which
            found = replace(own, nodes=("result_norm", *EITHER_NORM), layer=above.layer)
    row = next((r for r in (said.row, own.row, spoken.row, above.row) if r is not None), None)
    maybe = (None if context.each else said.perhaps, own.perhaps, spoken.perhaps, above.perhaps, context.perhaps)
    return replace(found, row=row, perhaps=next((p for p in maybe if p is not None), None))


def _led(label: Sequence[str], own: Meaning) -> Meaning:
    """A layer's number before the node's name: "[0] attn: …", `(0, "attn_out", [...])`."""
    if len(label) < 2 or not label[0].isdecimal() or len(label[0]) > 4:
        return own
    found = meaning([*label[1:], "layer", label[0]], generic=False)
    if not found.nodes or found.layer is None or (found.nodes == EITHER_NORM and own.nodes):
        return own
    return replace(found, row=own.row, perhaps=own.perhaps)


def _inside(label: Sequence[str], context: Context) -> Meaning:
    """What the words mean inside the layer of the heading above, with its words where they are too few themselves."""
    number = ("layer", str(context.about.layer))
    found = meaning([*label, *number], generic=False)
    if not found.nodes or found.nodes == EITHER_NORM or set(split_words(label)) <= VAGUE | {"pre", "post", "rms"}:
        found = meaning([*context.words, *label, *number], generic=False)  # "norm:" below "attn:"
    return found


# -- headings ------------------------------------------------------------------------------------------------------


def heading(line: str, said: Said, context: Context, sides: set[str], caption: bool = False) -> Context:
    """The context below a line that gives no values. A caption stands directly above values that say nothing else."""
    said, line = _essence(line, said)
    words = [w for w in split_words(said.label) if w != VALUES]
    if not words or (line.startswith("-> ") and layer_of(words)[0] is None):
        return context  # a bracket alone, a debugger's next statement
    if _COUNTED.search(line[:400]) or _PROGRESS.search(line[:400]):
        return context  # a count
    typed = line.lstrip().startswith("$ ") and not (_LISTED.search(line[:400]) and meaning(said.label).role)
    if len(_FLAG.findall(line[:400])) > 1 or typed:  # somebody typed this
        return replace(context, perhaps=-1) if row_of(words, set()) == -1 else context
    if (m := _NTH.fullmatch(line)) and context.outside(line).each:
        return _answered(int(m[1]), context.outside(line), indent_of(line))  # [0] => {
    if (
        len(words) == 2
        and words[0] in NUMBERING | {"block"}
        and words[1].isdecimal()
        and (context.each or context.outside(line).each)
        and len(words[1]) < 5
    ):
        above = context if context.each else context.outside(line)
        return _answered(int(words[1]), replace(above, asked="layer"), indent_of(line))
    if len(words) == 1 and words[0].isdecimal() and len(words[0]) < 5 and (context.asked or context.outside(line).each):
        return _answered(int(words[0]), context, indent_of(line))
    marked = bool(_HEADING.search(line))
    if len(said.label) > 8 and not marked and "(" in line[1:400] and not _FRAME.search(line[:2000]):
        said = said_by(pieces(_ASIDE.sub(" ", line[:400])), set())  # (8 x 16, one row per token)
    long = len(said.label) > 12
    own = Meaning() if long else meaning(said.label)
    frame = bool(_FRAME.search(line[:2000])) and layer_of(words)[0] is not None
    if set(words) & {"entering", "enter", "begin", "starting"} and layer_of(words)[0] is not None:
        own = Meaning(("l_out-",), layer_of(words)[0], bare=True)
    if frame and long:
        own = Meaning(("l_out-",), layer_of(words)[0], bare=True)
    if not own.role and own.layer is None and context.about.layer is not None and len(said.label) < 6:
        inside = _inside(said.label, context)  # `p *s->residual@5` in the frame of layer 0
        own = replace(inside, layer=context.about.layer) if inside.nodes else own
    each = of_each_layer(words) and own.layer is None
    if each and not long and not own.verbatim:
        inside = meaning([*said.label, "layer", "0"])
        own = replace(inside, layer=None, row=own.row) if inside.nodes[:1] and inside.nodes != ("embd",) else own
    row = said.row if said.row is not None else row_of(words, layer_of(words)[1])
    perhaps = said.perhaps if said.perhaps is not None else own.perhaps
    asked = _asks(words)
    context = replace(context, asked=asked)
    if not marked and own.layer is None and (_REAL.search(line) or set(words) & _SETUP):
        return context  # how the engine was set up
    if not own.role and set(words) & NOT_VALUES:
        return context
    if long and not own.role:
        return context if row is None else replace(context, perhaps=row)
    most = 10 if row is not None or own.layer is not None else 8 if each or own.nodes in _ENDS else 4
    short = frame or caption or sum(not w.isdecimal() for w in said.label) <= most
    m = _TOKEN.match(line)
    told = own.role or own.layer is not None or row is not None or perhaps is not None or m
    if not marked and not (short and told):
        return context if row is None else replace(context, perhaps=row)
    if line.lstrip().startswith("#"):
        top = Scope(replace(context.about, row=None), context.words)  # its level is no indentation
        context = replace(context, scopes=(top,), side="")
    if own.role or own.layer is not None:
        loose = not marked and len(said.label) > 4  # it may be no heading at all
        context = _enter(line, said, replace(own, vague=own.vague or loose), row, perhaps, context)
        if indent_of(line) > 3 and (at := perhaps if row is None else row) is not None:
            context = replace(context, perhaps=at)  # a title in the middle, above a table that is not further in
        m = re.search(r"\bfrom\s{1,8}([A-Za-z][\w.+-]{0,60})", line)
        if m and m[1].lower() not in NOT_SIDES:
            context = replace(context, side=m[1])
    elif row is not None and (not marked or len(said.label) > 6):  # ### Garbage, first token already wrong
        context = replace(context, perhaps=row)
    elif row is not None or perhaps is not None or (m := _TOKEN.match(line)):
        perhaps = int(m[1]) if row is None and perhaps is None and m else perhaps
        context = context.told(replace(context.about, row=row, perhaps=perhaps))
    elif marked and not asked and (m := _BOLD.match(line)) and m[1].lower() not in NOT_SIDES and len(m[1]) > 2:
        context = replace(context, side=m[1])
    if marked and (named := {s for s in sides if s in line}):
        context = replace(context, side=max(named, key=len))
    return context


def _essence(line: str, said: Said) -> tuple[Said, str]:
    """A heading without its comment, or the comment where nothing stands before it; prose as its last sentence."""
    line = line[:4000]
    if "weight" in line and _WEIGHT.search(line):  # h = rmsnorm(h, W["norm.weight"])
        line = _WEIGHT.sub(" ", line)
        said = said_by(pieces(line), set())
    if m := _LOOP.match(line):  # for i, v in top5(logits): print(i, v)
        line = m[1]
        said = said_by(pieces(line), set())
    if m := _COMMENT.search(line):
        head, comment = line[: m.start()], line[m.end() :]
        alone = said_by(pieces(head), set())
        behind = said_by(pieces(comment), set())
        if alone.row is not None and not meaning(alone.label).role and meaning(behind.label).role:
            behind.row = alone.row if behind.row is None else behind.row
            return behind, head[: indent_of(head)] + comment  # hs[1][-1, :6]   # output of layer 0
        if meaning(alone.label).role or alone.row is not None:
            return alone, head
        return (behind, head[: indent_of(head)] + comment) if not alone.label[3:] else (said, line)
    if len(said.label) > 12 and _HEADING.search(line) and (parts := _SENTENCE.split(line)) and len(parts) > 1:
        last = said_by(pieces(parts[-1]), set())
        if last.row is None:
            last.perhaps = row_of(split_words(said.label), set())
        return last, parts[-1]
    return said, line


def _asks(words: Sequence[str]) -> str:
    """A line that ends with "layer" waits for its number on the next one."""
    rest = [w for w in words[-2:] if w not in NUMBERING]
    if not rest or len(words) > 4:
        return ""
    return "layer" if rest[-1] in LAYERS | {"l", "il"} else "row" if rest[-1] in ROW else ""


def _answered(number: int, context: Context, indent: int) -> Context:
    old = context.about
    if not context.asked:
        old = replace(old, nodes=(), vague=False, bare=False)
    if context.asked == "row":
        return replace(context.told(replace(old, row=number)), asked="")
    nodes = old.nodes if old.nodes and old.nodes[0].endswith("-") else ("l_out-",)
    new = Meaning(nodes, number, old.row, old.perhaps, vague=old.vague, bare=old.bare or not old.nodes)
    return replace(context.entering(new, (), indent), asked="")


def _enter(line: str, said: Said, own: Meaning, row: int | None, perhaps: int | None, context: Context) -> Context:
    above = context.about
    indent = indent_of(line)
    record = own.bare and own.layer is not None and _is_record(said, line)
    if record and context.fresh and above.nodes and above.nodes[0].endswith("-") and not above.bare:
        own = replace(above, layer=own.layer, verbatim="")  # name: attn_out, then layer: 0
        indent = min(indent, max(context.scopes[-1].indent, 0))
    elif own.layer is None and above.layer is not None and own.nodes not in _ENDS:
        inside = _inside(said.label, context)  # "attn:" below "block 0:"
        own = inside if inside.nodes and (indent > 0 or inside.nodes != EITHER_NORM) else own
    own = replace(own, row=above.row if row is None else row, perhaps=above.perhaps if perhaps is None else perhaps)
    indent = 0 if line.lstrip().startswith("frame #") else indent  # a debugger's: it is not further in than its answers
    return context.entering(own, said.label, indent, bool(_HEADING.search(line)))


_RECORD = re.compile(
    r"[\"':]?\w{0,20}(?:layer|block|blk|lyr|l|il)\w{0,8}[\"']?\s{0,8}(?:[=:]|=>)\s{0,8}\d{1,4}[,;]?\s*", re.IGNORECASE
)


def _is_record(said: Said, line: str) -> bool:
    """`layer = 3` on a line of its own: a field of what is printed, rather than a title."""
    return len(said.label) <= 3 and bool(_RECORD.fullmatch(line.strip()[:80]))
