"""`assay serve --browser`: the page that runs a served model in the client's browser, its plan and the model's file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from assay.cli import main
from tests.serve.conftest import Server, start_server
from tests.serve.page.conftest import CHROMIUM, DESK
from tests.tiny import make


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    path = make(tmp_path_factory.mktemp("browser") / "tiny.gguf", type="Q8_0", n_ctx=64)
    server = start_server([("tiny", path)], config={"browser": True})
    yield server, path
    assert server.end() == 0


def test_the_files_of_a_page(served: tuple[Server, Path]) -> None:
    server, _ = served
    with httpx.Client(base_url=server.url, timeout=120, follow_redirects=True) as client:
        page = client.get("/browser/")
        assert str(page.url) == f"{server.url}/browser/tiny/" and 'src="page.js"' in page.text
        assert "<style" not in page.text and " style=" not in page.text  # the server's policy allows none
        plan = client.get("/browser/tiny/plan.json").json()
        assert plan["served"] == "tiny" and plan["context"] == 64
        for file in plan["files"]:
            assert len(client.get(f"/browser/tiny/{file['name']}").content) == file["bytes"]
        assert client.get("/browser/tiny/plan.json").json() == plan
        for name in ("runner.js", "weights.js", "repack.js", "style.css"):
            assert client.get(f"/browser/tiny/{name}").status_code == 200
        for wrong in ("tiny/other.gguf", "tiny/..%2fweb_export.py", "tiny/%2e%2e/web_export.py", "other/plan.json"):
            assert client.get(f"/browser/{wrong}").status_code == 404, wrong
        assert client.get("/v1/models").json()["data"][0]["browser"] is True


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("bytes=100-", 206, slice(100, None)),
        ("bytes=100-199", 206, slice(100, 200)),
        ("bytes=0-999999999999", 206, slice(None)),
        ("bytes=199-100", 200, slice(None)),
        ("bytes=1-2,4-5", 200, slice(None)),
        ("bytes=999999999999-", 416, slice(0, 0)),
    ],
)
def test_parts_of_the_model(served: tuple[Server, Path], asked: str, status: int, part: slice) -> None:
    server, path = served
    reply = httpx.get(f"{server.url}/browser/tiny/model.gguf", headers={"Range": asked})
    data = path.read_bytes()
    assert (reply.status_code, reply.content) == (status, data[part])
    if status == 206:
        first, end = part.indices(len(data))[:2]
        assert reply.headers["content-range"] == f"bytes {first}-{end - 1}/{len(data)}"


def test_hashes_without_a_key(served: tuple[Server, Path], tmp_path: Path) -> None:
    """A request may ask for the hashes of its logits. Nobody signs them, and they are the model's."""
    body = {"prompt": "hello", "max_tokens": 3, "temperature": 0}
    plain = httpx.post(f"{served[0].url}/v1/completions", json=body, timeout=60).json()
    (receipt,) = httpx.post(f"{served[0].url}/v1/completions", json=body | {"receipt": True}, timeout=60).json()[
        "receipts"
    ]
    assert (
        "receipts" not in plain and receipt["signature"] == "" and len(receipt["rows"]) == len(receipt["tokens"]) == 3
    )
    (tmp_path / "receipt.json").write_text(json.dumps(receipt))
    assert main(["verify", str(tmp_path / "receipt.json"), "--model", str(served[1])]) == 0


def test_a_key_and_an_ordinary_server(tmp_path: Path) -> None:
    path = make(tmp_path / "tiny.gguf", n_ctx=64)
    server = start_server([("tiny", path)], key="secret", config={"browser": True})
    try:
        for name in ("", "plan.json", "model.gguf"):
            assert httpx.get(f"{server.url}/browser/tiny/{name}").status_code == 401
        assert httpx.get(f"{server.url}/browser/tiny/model.gguf", auth=("", "secret")).content == path.read_bytes()
    finally:
        assert server.end() == 0
    server = start_server([("tiny", path)])
    try:
        body = {"prompt": "hello", "max_tokens": 3, "receipt": True}
        assert "receipts" not in httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert httpx.get(f"{server.url}/browser/tiny/model.gguf").status_code == 404
    finally:
        assert server.end() == 0


def test_a_model_that_no_page_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why, and the server goes on."""
    path = make(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.model": "no_vocab"})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = start_server([("tiny", path)], config={"browser": True})
    try:
        reply = httpx.get(f"{server.url}/browser/tiny/plan.json", timeout=120)
        assert reply.status_code == 400 and "cannot run in a browser" in reply.json()["error"]["message"]
        assert str(tmp_path) not in reply.text
        assert not list(tmp_path.glob("assay-browser-*/*"))
        assert httpx.get(f"{server.url}/health").status_code == 200
    finally:
        assert server.end() == 0
    assert not list(tmp_path.glob("assay-browser-*"))


@pytest.mark.slow
def test_the_button_of_the_page(served: tuple[Server, Path]) -> None:
    """From the server's page to a tab that runs the model and finds the server's logits equal."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    server, _ = served
    asked: list[str] = []
    said: list[str] = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-webgpu"])
        context = browser.new_context(viewport=DESK)
        context.on("request", lambda r: asked.append(r.url))
        page = context.new_page()
        page.goto(server.url)
        page.click("#tab-compare")
        page.wait_for_selector("#in-browser", state="visible")
        picture(page, "button")
        with context.expect_page() as opened:
            page.click("#in-browser")
        tab: Any = opened.value
        tab.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        tab.wait_for_selector("#send:not([disabled])", timeout=280_000)
        tab.fill("#prompt", "hello")
        tab.fill("#most", "4")
        tab.click("#compare")
        tab.wait_for_selector("#verdict:not(:empty)", timeout=120_000)
        assert tab.inner_text("#verdict").endswith("Equal: the text, and the logits of all 4 tokens, to the bit.")
        picture(tab, "tab")
        browser.close()
    assert said == []
    assert all(url.startswith((server.url, "data:", "blob:")) for url in asked)


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("ASSAY_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")
