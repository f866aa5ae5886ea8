"""Rewrites a web page as plain text: a line for each heading, paragraph and row of a table, with bars between cells.

One pass over the tags, in time proportional to the text.
"""

from __future__ import annotations

import html
import re

_MOST = 1 << 25  # characters; a longer text stays as it is
_TAG = re.compile(r"<(/?)(!?[A-Za-z][A-Za-z0-9]{0,15})\b[^<>]{0,400}>")
_PAGE = re.compile(r"<(?:!doctype\s+html|html|table|thead|tbody|tr)\b", re.IGNORECASE)
_ROW = re.compile(r"<tr\b", re.IGNORECASE)
_ROWS = 2  # of a table, from which on a text is a page
_HEADINGS = {f"h{i}" for i in range(1, 7)} | {"summary", "caption", "legend"}
_LINES = _HEADINGS | {
    "p", "div", "li", "ul", "ol", "tr", "table", "thead", "tbody", "br", "hr", "pre", "section", "details", "title",
    "body", "head", "dt", "dd",
}  # fmt: skip
_CELLS = {"td", "th"}
_SILENT = {"style", "script"}


def as_plain_text(text: str) -> str:
    """The text; if it is a web page or holds tables of one, without tags."""
    page = len(text) <= _MOST and "<" in text and _PAGE.search(text[: 1 << 16])
    if not page or len(_ROW.findall(text)) < _ROWS:
        return text
    lines = html.unescape("".join(_parts(text))).split("\n")
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def _parts(text: str) -> list[str]:
    """The text between the tags, with line breaks and bars for the tags."""
    found: list[str] = []
    at, silent = 0, False
    for m in _TAG.finditer(text):
        if not silent:
            found.append(text[at : m.start()])
        at = m.end()
        closes, tag = bool(m[1]), m[2].lower()
        if tag in _SILENT:
            silent = not closes
        elif not silent:
            found.append(_mark(tag, closes))
    return found if silent else [*found, text[at:]]


def _mark(tag: str, closes: bool) -> str:
    if tag in _CELLS:
        return " " if closes else "| "
    if tag not in _LINES:
        return ""
    if closes:
        return "|\n" if tag == "tr" else "\n"
    return "\n## " if tag in _HEADINGS else "\n"
