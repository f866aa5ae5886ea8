"""Self-contained HTML documents: a template, its parts, and the style that the web page has.

A document makes no request. Its colours and sizes are those of the web page (`serve/page/theme.css`), so that a report
in a file and the same report in the page look alike.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources

_PLACE = re.compile(r"{{assay:(\w+)}}")
_IMPORT = re.compile(r"^import .*;$", re.MULTILINE)
_NAMES = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"))


@cache
def asset(path: str) -> str:
    """The text of a file inside the package, such as `serve/page/report.js`."""
    return resources.files("assay").joinpath(path).read_text("utf-8")


def style(*more: str) -> str:
    """The style of a document, with further files."""
    return "\n".join(asset(path) for path in ("serve/page/theme.css", "system/paper.css", *more))


def script(*files: str) -> str:
    """Scripts of the web page in one: each after those that it imports, so that imports can be left out."""
    return "\n".join(_IMPORT.sub("", asset(f"serve/page/{name}")) for name in files)


def document(template: str, parts: Mapping[str, str]) -> str:
    """The template, a path inside the package, with `{{assay:name}}` replaced by the parts. Parts are not searched."""
    known = {"style": style(), **parts}
    return _PLACE.sub(lambda found: known[found[1]], asset(template))


def paper(title: str, said: Iterable[str], sections: Iterable[tuple[str, str]], *, columns: bool = False) -> str:
    """A document without scripts: lines of text, then sections of heading and HTML.

    The first line is the answer, and larger. With `columns`, spaces align the lines, and all are of one size.
    """
    first, *more = (html.escape(line) for line in said)
    parts = {
        "title": html.escape(title),
        "kind": "panel columns" if columns else "panel",
        "said": "\n".join([first if columns else f"<b>{first}</b>", *more]),
        "body": "\n".join(f"<h2>{html.escape(head)}</h2>\n{body}" for head, body in sections),
    }
    return document("system/paper.html", parts)


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table whose rows are HTML. A head that begins with `-` is left out on a phone, an empty one names nothing."""
    cells = ((name.removeprefix("-"), " class=less" if name.startswith("-") else "") for name in head)
    top = "".join(f"<th{less}>{html.escape(name)}</th>" if name else f"<td{less}></td>" for name, less in cells)
    made = f'<table class="rows {kind}"><thead><tr>{top}</tr></thead><tbody>\n{"".join(rows)}</tbody></table>'
    return f'<div class=wide tabindex=0 role=region aria-label="Table">{made}</div>' if kind == "map" else made


def rounded(x: float, digits: int = 2) -> str:
    """Two digits for people: 67360.88 is 67,000, and 220000000 is 220 million."""
    if not math.isfinite(x):
        return "–"
    size = abs(x)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{x:.{digits - 1}e}"
    unit, name = next(((least, name) for least, name in _NAMES if size >= least), (1.0, ""))
    value = float(f"{x / unit:.{digits}g}")
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0}f}{name}"


def off_by(nmse: float) -> str:
    """How far values are off, from the mean square of the error over that of the values: `0.047 %`."""
    r = math.sqrt(max(nmse, 0.0)) if math.isfinite(nmse) else math.inf
    if r == 0:
        return "0"
    if r < 1e-6:
        return f"1 part in {rounded(1 / r)}"
    return f"{rounded(r)}×" if r >= 10 else f"{rounded(100 * r)} %"
