"""Results in a notebook: their page in a frame of its own, so that its styles and scripts stay there."""

from __future__ import annotations

import html

HEIGHT = 560  # pixels; longer pages scroll


def inline(page: str, height: int = HEIGHT) -> str:
    """A self-contained page as a piece of another."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;height:{height}px;border:1px solid #8884;border-radius:4px"></iframe>'
    )
