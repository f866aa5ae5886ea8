"""An answer as HTML for a notebook: the text, a line of figures, and the probability of each token.

Text of a model is untrusted: it is escaped, and no markup of it is used. Colours are translucent, so that they suit a
light and a dark notebook.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:inherit;margin:0"
_FIGURES = "opacity:.65;font-size:.85em;margin-top:.4em"


def text_html(text: str, figures: str) -> str:
    """A text with a line below it."""
    return f'<div style="{_TEXT}">{html.escape(text)}</div><div style="{_FIGURES}">{html.escape(figures)}</div>'


def answer_html(text: str, figures: str, tokens: Sequence[tuple[int, float | None]]) -> str:
    """A finished answer, and for each token (id, log-probability) a bar that is darker the less probable it was."""
    bars = "".join(_bar(*token) for token in tokens)
    row = f'<div style="display:flex;gap:1px;margin-top:.4em">{bars}</div>' if bars else ""
    return text_html(text, figures) + row


def _bar(token: int, logprob: float | None) -> str:
    """One token as a bar whose opacity is its improbability."""
    p = math.exp(min(logprob, 0.0)) if logprob is not None and not math.isnan(logprob) else 1.0
    return (
        f'<span title="token {token}, probability {p:.3f}" '
        f'style="width:.5em;height:1em;background:rgba(224,108,0,{max(0.08, 1 - p):.2f})"></span>'
    )
