"""A self-contained HTML page for a result: a summary, then tables. No scripts and no external resources."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from assay.evaluate.evaluation import Evaluation, Worst
from assay.system import documents
from assay.system.documents import paper

_DARKEST = 45  # percent of the hue behind text: more would hide the text
render = paper


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table. Cells are HTML, made by `cell`, `bar` and `shade`."""
    return documents.table(head, ("<tr>" + "".join(row) + "</tr>\n" for row in rows), kind)


def cell(text: str, kind: str = "") -> str:
    """A cell. Those of kind `less` are left out on a phone; those of kind `name` may break."""
    return f'<td class="{kind}">{html.escape(text)}</td>' if kind else f"<td>{html.escape(text)}</td>"


def bar(share: float) -> str:
    """A bar for a share between 0 and 1."""
    return f'<td class="track less"><span class=bar style="width:{100 * min(1.0, max(0.0, share)):.1f}%"></span></td>'


def shade(text: str, share: float) -> str:
    """A cell whose background is darker for a larger share; the text has the value."""
    dark = f"{_DARKEST * min(1.0, max(0.0, share)):.0f}%"
    return f'<td style="background:color-mix(in srgb, var(--doubt) {dark}, transparent)">{html.escape(text)}</td>'


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
    head = ("loss" if result.base is None else "KL", "text", "base expects", "expects", "-")
    title = result.name if result.base is None else f"{result.name} against {result.base}"
    return render(title, result.lines(), [("Worst tokens", table(head, rows))], columns=True)
