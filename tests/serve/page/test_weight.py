"""The page's weight and neighbours: few bytes at first view, no other host, no HTML from text, nothing inline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Server
from tests.serve.page.conftest import DESK

FOLDER = Path(__file__).parents[3] / "src" / "assay" / "serve" / "page"
MOST = 150_000  # bytes of the page at first view


@pytest.mark.slow
def test_the_first_view_is_light_and_asks_no_other_host(browser: Any, chatty: Server) -> None:
    page = browser.new_page(viewport=DESK)
    replies: list[Any] = []
    page.on("response", lambda r: replies.append((r.url, r)))
    page.goto(chatty.url)
    page.wait_for_selector("#welcome h2")
    page.wait_for_load_state("networkidle")
    files = {url: len(reply.body()) for url, reply in replies if "/page/" in url or url.rstrip("/") == chatty.url}
    assert f"{chatty.url}/page/main.js" in files
    assert sum(files.values()) <= MOST, sorted(files.items(), key=lambda item: -item[1])[:8]
    assert all(url.startswith(chatty.url) for url, _ in replies)
    # All modules of the first view are asked for at once: without this each import would cost a round trip.
    preloaded = set(page.locator("link[rel=modulepreload]").evaluate_all("all => all.map(e => e.href)"))
    assert preloaded | {f"{chatty.url}/page/main.js"} == {url for url in files if url.endswith(".js")}
    for view in ("tokens", "layers", "compare", "diagnose", "server"):
        page.click(f"#tab-{view}")
        page.wait_for_timeout(200)
    assert all(url.startswith(chatty.url) for url, _ in replies)
    page.close()


def test_the_page_asks_for_nothing_inline_or_foreign() -> None:
    for path in FOLDER.iterdir():
        if path.suffix not in (".js", ".css", ".html", ".svg"):
            continue
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/)[\w-]+\.\w", text), path.name
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "document.write" not in text
        assert len(text.splitlines()) < 250
    html = (FOLDER / "index.html").read_text()
    assert " style=" not in html
    assert not re.search(r"\son\w+=", html)


def test_colours_of_words_have_contrast() -> None:
    """Each colour of words on each surface: 4.5 to 1, in light and in dark. Borders of fields: 3 to 1."""
    given = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (FOLDER / "theme.css").read_text())
    colours = {name: pair for name, *pair in given}
    surfaces = ("paper", "card", "sunk", "hover", "mine")
    words = [n for n in colours if n in ("ink", "soft", "accent", "fault", "warn") or n.startswith("code-")]
    assert len(words) == 10
    for scheme in (0, 1):
        for surface in surfaces:
            for word in words:
                assert _contrast(colours[word][scheme], colours[surface][scheme]) >= 4.5, (word, surface, scheme)
            assert _contrast(colours["edge"][scheme], colours[surface][scheme]) >= 3, (surface, scheme)
        assert _contrast(colours["on-accent"][scheme], colours["accent"][scheme]) >= 4.5
        assert _contrast(colours["on-wrong"][scheme], colours["wrong"][scheme]) >= 4.5
        for fill in ("same", "noise", "inherited", "unknown"):
            assert _contrast(colours["ink"][scheme], colours[fill][scheme]) >= 4.5


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
