"""`--pattern`: a line of text with holes, for logs that assay does not understand by itself.

Blanks match any blanks or none, `*` any text, letters in any case; a hole may have blanks before it and takes what its
name says:

  {rms} {mean} {min} {max} {sum} {std} {norm} {absmax} {absmean} {abssum}    a number: that statistic
  {first} {last}                       numbers apart by commas or blanks, up to `...`: the values at that end
  {top}                                pairs of token id and logit, in any brackets
  {index} {value}                      one value at an index          {id} {logit}     one token's logit
  {name} {layer} {row} {side}          what the line speaks of: a node, its layer, the token row, whose engine
  {tokens}                             the ids that were fed

A pattern is split at its stars. Each part is searched once, from the end of the part before it, and the length of a
hole is bounded. So matching takes time in proportion to the line.
"""

from __future__ import annotations

import re

from assay.errors import AssayError
from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.printed.lexer import MOST

_NUMBER = r"(?>[-+\u2212]?(?:\d{1,60}\.?\d{0,60}|\.\d{1,60})(?:[eE][-+]?\d{1,6})?)"
_DOTS = r"(?:\.\.\.|…)?+"
_PAIR = rf"[\[(]\s{{0,20}}\d{{1,10}}\s{{0,20}},\s{{0,20}}[\"']?{_NUMBER}[\"']?\s{{0,20}}[\])]"
HOLES = {
    **dict.fromkeys((*STATISTICS, "value", "logit"), _NUMBER),
    **dict.fromkeys(
        ("first", "last", "tokens"), rf"(?>{_NUMBER}(?:[\s,]{{1,40}}+{_NUMBER}){{0,16384}}+[\s,]{{0,40}}+{_DOTS})"
    ),
    **dict.fromkeys(("index", "id", "layer", "row"), r"\d{1,9}+"),
    "top": rf"(?>{_PAIR}(?:[\s,]{{1,40}}+{_PAIR}){{0,1024}}+[\s,]{{0,40}}+{_DOTS})",
    "name": r"[^\W\d][^:=\[\]{}]{0,80}?",
    "side": r"[A-Za-z][\w.+-]{0,60}+",
}


_BLANKS = r"\s{0,200}+"


class Pattern:
    """A compiled pattern; `literal` is its text without the holes."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        holes: set[str] = set()
        parts: list[str] = [""]
        literal: list[str] = []
        for piece in re.split(r"(\{[^{}]*\}|\*|\s+)", self.text):
            if piece.startswith("{"):
                hole = piece[1:-1]
                if hole not in HOLES:
                    raise AssayError(f"pattern {text!r}: unknown hole {piece}; known are {', '.join(sorted(HOLES))}")
                if hole in holes:
                    raise AssayError(f"pattern {text!r}: the hole {piece} appears twice")
                holes.add(hole)
                parts[-1] += rf"\s{{0,200}}+(?P<{hole}>{HOLES[hole]})"
            elif piece == "*":
                parts.append("")
            elif piece.isspace():
                parts[-1] += r"\s{0,200}+"
            else:
                parts[-1] += re.escape(piece)
                literal.append(piece)
        if not holes:
            raise AssayError(f"pattern {text!r}: has no hole such as {{rms}} or {{first}}")
        if any(p[:1].isdigit() or p[:1] in ",-+." for p in re.split(r"\*", self.text) if p.strip()):
            raise AssayError(f"pattern {text!r}: a part must not begin with a number or a comma; begin with a word")
        self.literal = " ".join(literal)
        start = r"^[\s>*-]{0,200}+" if self.text[0] in "{[" else r"(?<![\w.{])" if self.text[0] not in "*#" else ""
        parts[0] = start + parts[0]
        while any(
            p.startswith(_BLANKS) for p in parts[1:]
        ):  # the star takes the blanks; else each blank would start a search
            parts[1:] = [p.removeprefix(_BLANKS) for p in parts[1:]]
        self._parts = [re.compile(p, re.IGNORECASE) for p in parts if p]

    def match(self, line: str) -> dict[str, str] | None:
        """The text of each hole, or None."""
        found: dict[str, str] = {}
        at, line = 0, line[:MOST]
        for part in self._parts:
            m = part.search(line, at)
            if m is None:
                return None
            found |= {k: v for k, v in m.groupdict().items() if v is not None}
            at = m.end()
        return found
