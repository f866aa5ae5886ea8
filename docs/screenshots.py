"""The pictures of docs/reference/page.md: every view of the page, at three widths, light and dark, in a real browser.

    python docs/screenshots.py                 # writes docs/images/page/VIEW-WIDTH-THEME.webp
    python docs/screenshots.py --views diagnose --widths 360

Needs playwright and an installed Chromium (CHROMIUM names it). The script starts a server with smollm2, uses each view
as a person would, and diagnoses a dump of the tutorial's broken engine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
VIEWS = ("chat", "tokens", "layers", "compare", "diagnose", "server")
SIZES = {1280: 800, 768: 900, 360: 740}
THEMES = ("light", "dark")
IDS = "504,3575,282,4649,314"  # The capital of France is
LAYERS = 6  # in the dump: the page accepts files up to 1.4 MB
QUALITY = 72
MINUTE = 60_000  # ms


@contextmanager
def server() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "serve", "smollm2", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(30)


def broken_dump(folder: Path) -> Path:
    """A dump of the tutorial's broken engine, its first layers only."""
    model = subprocess.run(
        [sys.executable, "-m", "assay", "pull", "smollm2"], check=True, capture_output=True, text=True
    ).stdout.strip()
    whole, some = folder / "whole.npz", folder / "run.npz"
    subprocess.run([sys.executable, ROOT / "docs" / "tutorial" / "engine.py", model, IDS, whole], check=True)
    with np.load(whole) as found:
        keep = [n for n in found if "-" not in n or int(n.rsplit("-", 1)[1]) < LAYERS]
        np.savez_compressed(some, **{n: found[n] for n in keep if not n.startswith("result")})
    return some


def use(page: Page, view: str, dump: Path) -> None:
    """Use a view as a person would."""
    if view == "chat":
        page.fill("[name=temperature]", "0")
        page.fill("[name=max_tokens]", "160")
        page.fill("#input", "Write a Python function that reverses a string, and say in one line how it works.")
        page.press("#input", "Enter")
        expect(page.locator("#send")).to_have_text("Stop")
        expect(page.locator("#send")).to_have_text("Send", timeout=5 * MINUTE)
    page.click(f"#tab-{view}")
    if view == "tokens":
        expect(page.locator(".piece.scored").first).to_be_visible()
    elif view == "layers":
        page.click("#trace button")
        expect(page.locator(".grid tbody tr").first).to_be_visible(timeout=MINUTE)
    elif view == "compare":
        page.click("#compare-form button")
        expect(page.locator("#compare-note")).to_contain_text("They part", timeout=5 * MINUTE)
    elif view == "diagnose":
        page.set_input_files("#dump", dump)
        expect(page.locator("#diagnose-note")).to_contain_text("run.npz")
        page.click("#examine")
        expect(page.locator("#examine")).to_be_enabled(timeout=10 * MINUTE)
        assert page.locator("#cause").inner_text(), page.locator("#diagnose-note").inner_text()
    elif view == "server":
        page.wait_for_timeout(12_000)  # so that the curve has a shape


def busy(url: str) -> None:
    """Three concurrent requests, so that the server view shows load."""

    def ask(topic: str) -> None:
        asked = {"role": "user", "content": f"Tell me a long story about {topic}."}
        body = {"messages": [asked], "max_tokens": 3000, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=600).read()

    for topic in ("a lighthouse", "two foxes", "the sea"):
        threading.Thread(target=ask, args=(topic,), daemon=True).start()


def shoot(page: Page, path: Path) -> None:
    """Save a screenshot as WebP, encoded by Chromium."""
    session = page.context.new_cdp_session(page)
    shot: Any = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    path.write_bytes(base64.b64decode(shot["data"]))
    session.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", nargs="+", default=VIEWS, choices=VIEWS)
    parser.add_argument("--widths", nargs="+", type=int, default=tuple(SIZES), choices=tuple(SIZES))
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "images" / "page")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, server() as url, sync_playwright() as p:
        dump = broken_dump(Path(folder)) if "diagnose" in args.views else Path()
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        page.goto(url)
        expect(page.locator("#model option")).to_have_count(1)
        for view in args.views:
            if view == "tokens" and "chat" not in args.views:
                use(page, "chat", dump)
            if view == "server":
                busy(url)
            use(page, view, dump)
            for width in args.widths:
                page.set_viewport_size({"width": width, "height": SIZES[width]})
                page.evaluate("document.getElementById('settings').open = innerWidth > 800")
                page.evaluate("for (const e of document.querySelectorAll('section, #messages')) e.scrollTop = 0")
                page.evaluate("const grid = document.getElementById('grid'); grid.scrollTop = grid.scrollHeight")
                for theme in THEMES:
                    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                    page.mouse.move(0, 0)
                    shoot(page, args.out / f"{view}-{width}-{theme}.webp")
            page.set_viewport_size({"width": 1280, "height": 800})
            print(view, flush=True)
        browser.close()


if __name__ == "__main__":
    main()
