"""Pictures for docs/: every view of the page and the report, on a desk and a phone, light and dark.

    python docs/screenshots.py                 # writes docs/images/page/VIEW-WIDTH-THEME.webp
    python docs/screenshots.py --views diagnose --widths 360
    python docs/screenshots.py --pictures      # a picture in the chat and in the layers, with a tiny random model

Needs playwright and an installed Chromium (CHROMIUM names it). The script starts a server with smollm2 for each width,
uses each view as a person would, and diagnoses a dump of the tutorial's broken engine.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
VIEWS = ("first", "chat", "tokens", "layers", "compare", "diagnose", "server")
SIZES = {1280: 800, 360: 740}  # a desk and a phone
THEMES = ("light", "dark")
IDS = "504,3575,282,4649,314"  # The capital of France is
QUALITY = 60
MINUTE = 60_000  # ms
QUESTIONS = (
    ("Why is the sky blue? Answer in two sentences.", 60),
    ("What is the capital of France?", 24),
    ("Write a Python function that reverses a string, and say in one line how it works.", 160),
)


@contextmanager
def server(*model: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "serve", *(model or ("smollm2",)), "--port", "0", "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()  # its streams need not end
        process.wait(30)


def broken_dump(folder: Path) -> Path:
    """A dump of the tutorial's broken engine."""
    model = subprocess.run(
        [sys.executable, "-m", "assay", "pull", "smollm2"], check=True, capture_output=True, text=True
    ).stdout.strip()
    dump = folder / "run.npz"
    subprocess.run([sys.executable, ROOT / "docs" / "tutorial" / "engine.py", model, IDS, dump], check=True)
    return dump


def use(page: Page, view: str, dump: Path) -> None:
    """Use a view as a person would."""
    if view == "first":
        expect(page.locator("#speed")).to_contain_text("tokens/s", timeout=MINUTE)
        return
    page.click(f"#tab-{view}")
    if view == "chat":
        chat(page)
    elif view == "tokens":
        expect(page.locator(".scored").first).to_be_visible()
    elif view == "layers":
        expect(page.locator(".grid tbody tr").first).to_be_visible(timeout=MINUTE)
    elif view == "compare":
        page.click("#compare-form button")
        expect(page.locator("#compare-note")).to_contain_text("They part", timeout=5 * MINUTE)
    elif view == "diagnose":
        page.set_input_files("#dump", dump)
        expect(page.locator("#dropped")).to_contain_text("run.npz")
        page.click("#examine")
        expect(page.locator("#examine")).to_be_enabled(timeout=10 * MINUTE)
        assert page.locator("#report .lead").count(), page.locator("#diagnose-note").inner_text()
    elif view == "server":
        page.wait_for_timeout(12_000)  # so that the curve has a shape


def chat(page: Page) -> None:
    """Three conversations in the list; the last one has code in its answer and its figures open."""
    for question, tokens in QUESTIONS:
        new_chat(page)
        page.click("#gear")
        page.fill("[name=temperature]", "0")
        page.fill("[name=max_tokens]", str(tokens))
        page.click("#settings [data-close]")
        page.fill("#input", question)
        page.click("#send")
        expect(page.locator("#send")).to_have_attribute("aria-label", "Stop")
        expect(page.locator("#send")).to_have_attribute("aria-label", "Send", timeout=5 * MINUTE)


def new_chat(page: Page) -> None:
    if not page.locator("#clear").is_visible():  # a phone: the list is a sheet
        page.click("#menu")
    page.click("#clear")


def busy(url: str) -> None:
    """Three concurrent requests, so that the server view shows load."""

    def ask(topic: str) -> None:
        asked = {"role": "user", "content": f"Tell me a long story about {topic}."}
        body = {"messages": [asked], "max_tokens": 3000, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with contextlib.suppress(OSError):  # the server ends before its streams
            urllib.request.urlopen(request, timeout=600).read()

    for topic in ("a lighthouse", "two foxes", "the sea"):
        threading.Thread(target=ask, args=(topic,), daemon=True).start()


def shoot(page: Page, path: Path) -> None:
    """Save a screenshot as WebP, encoded by Chromium."""
    session = page.context.new_cdp_session(page)
    shot: Any = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    path.write_bytes(base64.b64decode(shot["data"]))
    session.detach()


def report(browser: Browser, folder: Path, dump: Path) -> None:
    """docs/images/report.png, and the report on a phone in the dark."""
    path = folder / "report.html"
    subprocess.run([sys.executable, "-m", "assay", "diagnose", "smollm2", dump, "--html", path], check=False)
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri())
    page.screenshot(path=ROOT / "docs" / "images" / "report.png")
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    page.locator("section.map").scroll_into_view_if_needed()
    shoot(page, ROOT / "docs" / "images" / "report-360-dark.webp")
    page.close()


def pictures(browser: Browser, out: Path) -> None:
    """A picture beside a question, with the tokens that it takes; and the layers of its rows."""
    folder = ROOT / "tests" / "data" / "vision"
    options = ("--mmproj", str(folder / "gemma3-mmproj.gguf"), "--ctx-size", "256", "--template", "chatml")
    with server(str(folder / "gemma3-text.gguf"), *options) as url:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", color_scheme="light")
        page.goto(url)
        page.set_input_files("#file", ROOT / "docs" / "images" / "report.png")
        page.fill("#input", "What is in this picture?")
        expect(page.locator("#files .chip small")).to_contain_text("tokens", timeout=MINUTE)
        shoot(page, out / "picture-1280-light.webp")
        page.click("#send")
        expect(page.locator(".message.assistant .tools")).to_be_visible(timeout=MINUTE)
        page.click("#tab-layers")
        page.fill("#prompt", "a")
        page.check("#pictured")
        page.click("#trace button")
        expect(page.locator("#grid thead th", has_text="[image]").first).to_be_visible(timeout=MINUTE)
        page.locator("#grid").evaluate("e => e.scrollTo(460, 0)")
        shoot(page, out / "picture-layers-1280-light.webp")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", nargs="+", default=VIEWS, choices=VIEWS)
    parser.add_argument("--widths", nargs="+", type=int, default=tuple(SIZES), choices=tuple(SIZES))
    parser.add_argument("--pictures", action="store_true", help="only the views of a picture")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "images" / "page")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        if args.pictures:
            browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            pictures(browser, args.out)
            browser.close()
            return
        dump = broken_dump(Path(folder)) if "diagnose" in args.views else Path()
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        if "diagnose" in args.views:
            report(browser, Path(folder), dump)
        for width in args.widths:
            with server() as url:
                shoot_all(browser, url, args.views, width, dump, args.out)
        browser.close()


def shoot_all(browser: Browser, url: str, views: Sequence[str], width: int, dump: Path, out: Path) -> None:
    phone = width < 800
    size: Any = {"width": width, "height": SIZES[width]}
    page = browser.new_page(viewport=size, reduced_motion="reduce", has_touch=phone, is_mobile=phone)
    page.goto(url)
    expect(page.locator("#welcome h2")).to_be_visible()
    if "tokens" in views and "chat" not in views:
        use(page, "chat", dump)
    for view in views:
        if view == "server":
            busy(url)
        use(page, view, dump)
        page.evaluate("for (const e of document.querySelectorAll('section, #messages')) e.scrollTop = 0")
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.mouse.move(0, 0)
            page.wait_for_timeout(200)
            shoot(page, out / f"{view}-{width}-{theme}.webp")
        print(view, width, flush=True)
    page.close()


if __name__ == "__main__":
    main()
