"""Results in a notebook: their page in an iframe, which isolates its styles and scripts."""

from __future__ import annotations

import html

HEIGHT = 560  # pixels; longer pages scroll


def inline(page: str, height: int = HEIGHT) -> str:
    """A self-contained page as an iframe."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:4px"></iframe>'
    )
