"""Rewrites a web page as plain text: a line for each heading, paragraph and row of a table, with bars between cells."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_MOST = 1 << 25  # characters; a longer text stays as it is
_PAGE = re.compile(r"<(?:!doctype\s+html|html|table|thead|tbody|tr)\b", re.IGNORECASE)
_ROWS = 2  # of a table, from which on a text is a page
_HEADINGS = {f"h{i}" for i in range(1, 7)} | {"summary", "caption", "legend"}
_LINES = _HEADINGS | {
    "p", "div", "li", "ul", "ol", "tr", "table", "thead", "tbody", "br", "hr", "pre", "section", "details", "title",
    "body", "head", "dt", "dd",
}  # fmt: skip
_SILENT = {"style", "script"}


def as_plain_text(text: str) -> str:
    """The text; if it is a web page or holds tables of one, without tags."""
    page = len(text) <= _MOST and "<" in text and _PAGE.search(text[: 1 << 16])
    if not page or text.lower().count("<tr") < _ROWS:
        return text
    parser = _TextOfPage()
    parser.feed(text)
    parser.close()
    return "\n".join(line for line in map(str.rstrip, "".join(parser.parts).split("\n")) if line.strip()) + "\n"


class _TextOfPage(HTMLParser):
    """Collects the text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.silent = 0
        self.plain = 0  # inside <pre>: line breaks count

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.silent += tag in _SILENT
        self.plain += tag == "pre"
        if tag in _LINES:
            self.parts.append("\n")
        if tag in _HEADINGS:
            self.parts.append("## ")
        if tag in ("td", "th"):
            self.parts.append("| ")

    def handle_endtag(self, tag: str) -> None:
        self.silent = max(self.silent - (tag in _SILENT), 0)
        self.plain = max(self.plain - (tag == "pre"), 0)
        if tag in ("td", "th"):
            self.parts.append(" ")
        if tag == "tr":
            self.parts.append("|")
        if tag in _LINES:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(data)
