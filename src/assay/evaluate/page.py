"""A self-contained HTML page for a result: a summary, then tables. No scripts and no external resources."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from importlib import resources

from assay.evaluate.evaluation import Evaluation, Worst


def render(title: str, said: Iterable[str], sections: Iterable[tuple[str, str]]) -> str:
    """The page as text; `sections` are headings and their HTML."""
    parts = {
        "title": html.escape(title),
        "said": html.escape("\n".join(said)),
        "body": "\n".join(f"<h2>{html.escape(head)}</h2>\n{body}" for head, body in sections),
    }
    template = resources.files("assay.evaluate").joinpath("page.html").read_text("utf-8")
    return re.sub(r"{{assay:(\w+)}}", lambda m: parts[m[1]], template)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table. Cells are HTML, made by `cell`, `bar` and `shade`."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(row) + "</tr>\n" for row in rows)
    return f'<div class=scroll><table class="{kind}"><tr>{top}</tr>\n{body}</table></div>'


def cell(text: str) -> str:
    return f"<td>{html.escape(text)}</td>"


def bar(share: float) -> str:
    """A bar for a share between 0 and 1."""
    return f'<td class=track><span class=bar style="width:{100 * min(1.0, max(0.0, share)):.1f}%"></span></td>'


def shade(text: str, share: float) -> str:
    """A cell whose background is darker for a larger share; the text has the value."""
    return (
        f'<td style="background:color-mix(in srgb, var(--bar) {100 * min(1.0, max(0.0, share)):.0f}%, transparent)">'
        f"{html.escape(text)}</td>"
    )


def page(result: Evaluation, worst: Sequence[Worst]) -> str:
    """The page of an evaluation: its figures, and the worst tokens in context."""
    largest = max((w.nll if w.kl is None else w.kl for w in worst), default=1.0) or 1.0
    rows = [
        (
            cell(f"{w.nll:.2f}" if w.kl is None else f"{w.kl:.3f}"),
            f"<td class=text>{html.escape(w.before)}<mark>{html.escape(w.token)}</mark></td>",
            cell("" if w.base_best is None else f"{w.base_best!r} {w.base_p_best or 0:.1%}"),
            cell(f"{w.best!r} {w.p_best:.1%}"),
            bar((w.nll if w.kl is None else w.kl) / largest),
        )
        for w in worst
    ]
    head = ("loss" if result.base is None else "KL", "text", "base expects", "expects", "")
    title = result.name if result.base is None else f"{result.name} against {result.base}"
    return render(title, result.lines(), [("Worst tokens", table(head, rows))])
