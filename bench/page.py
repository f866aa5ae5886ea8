"""The web page in numbers: bytes at first view, time to the first view, and from a click to the first token.

    python bench/page.py                 # smollm2, 7 rounds, medians

Needs playwright and an installed Chromium (CHROMIUM names it). Each round opens the page in a fresh context.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from statistics import median
from typing import Any

from playwright.sync_api import expect, sync_playwright


def open_page(browser: Any, url: str) -> dict[str, float]:
    """One visit: bytes of the page's files, milliseconds to the first view and to the first token of an answer."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    replies: list[Any] = []
    page.on("response", lambda r: replies.append(r))
    begun = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("#welcome h2")
    seen = time.perf_counter()
    page.wait_for_load_state("networkidle")
    files = [r for r in replies if "/page/" in r.url or r.url.rstrip("/") == url]
    foreign = sum(not r.url.startswith(url) for r in replies)
    asked = time.perf_counter()
    page.locator(".starters button").first.click()
    expect(page.locator(".message.assistant .body")).not_to_be_empty(timeout=120_000)
    first = time.perf_counter()
    found = {
        "bytes": sum(len(r.body()) for r in files), "files": len(files), "foreign": foreign,
        "first view ms": 1e3 * (seen - begun), "first token ms": 1e3 * (first - asked),
    }  # fmt: skip
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    command = [sys.executable, "-m", "assay", "serve", args.model, "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        assert process.stdout
        url = json.loads(process.stdout.readline())["url"]
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            rounds = [open_page(browser, url) for _ in range(args.rounds)]
            browser.close()
    finally:
        process.kill()
        process.wait()
    for name in rounds[0]:
        print(f"{name:16} {median(r[name] for r in rounds):10.0f}")


if __name__ == "__main__":
    main()
