"""The page in a real Chromium: a browser, a tab that keeps every request and complaint, a server over a tiny model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import Server, start_server
from tests.tiny import make

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="package")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make(tmp_path_factory.mktemp("page") / "tiny.gguf", n_ctx=4096, n_layer=4)
    server = start_server([("tiny", path)])
    yield server
    assert server.end() == 0


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Tab:
    """A page, with everything it asked for and complained of."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        from playwright.sync_api import expect

        self.page = browser.new_page(**({"reduced_motion": "reduce"} | options))
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(server.url)
        expect(self.page.locator("#welcome, .message").first).to_be_visible(timeout=30_000)

    def set(self, **values: object) -> None:
        """Change fields of the settings."""
        self.page.click("#gear")
        for name, value in values.items():
            self.page.fill(f"[name={name}]", str(value))
        self.page.keyboard.press("Escape")

    def ask(self, text: str, n: int = 12) -> None:
        self.set(max_tokens=n, temperature=0)
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def wait(self) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator("#send")).to_have_attribute("aria-label", "Send", timeout=60_000)


@pytest.fixture
def tab(browser: Any, chatty: Server) -> Iterator[Tab]:
    tab = Tab(browser, chatty, viewport=DESK)
    yield tab
    assert tab.complaints == []
    assert all(url.startswith((chatty.url, "data:", "blob:")) for url in tab.requests)
    tab.page.close()


def dump_lines(server: Server, wrong: str = "") -> str:
    """A dump of a few nodes of the server's own model as JSON lines; the values of the node `wrong` are negated."""
    import httpx

    ids = httpx.post(f"{server.url}/tokenize", json={"content": "hello", "add_special": True}).json()["tokens"]
    asked = {"tokens": ids, "nodes": ["*norm*", "l_out-*"]}
    found = httpx.post(f"{server.url}/v1/trace", json=asked, timeout=60).json()
    lines: list[dict[str, Any]] = [{"assay_dump": 1, "engine": "mine", "tokens": ids}]
    for node in found["nodes"]:
        first = [-x for x in node["first"]] if node["name"] == wrong else node["first"]
        lines.append({"name": node["name"], "shape": node["shape"], "first": first, "rms": node["rms"]})
    return "\n".join(map(json.dumps, lines))
