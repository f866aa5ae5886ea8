"""What the exported page says where it cannot run, in a real browser. No kernel is compiled."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.gguf import open_file
from assay.library.web_export import export_web
from assay.runtime.opening import Opened, OpenOptions
from tests import tiny
from tests.library.test_website import CHROMIUM

GPU = ("--enable-unsafe-webgpu",)
NAMED = ("--host-resolver-rules=MAP page.test 127.0.0.1", *GPU)
# What is wrong, the browser's flags, the host in the address, and what the page says.
REFUSED: dict[str, tuple[tuple[str, ...], str, str]] = {
    "no adapter": ((), "127.0.0.1", "WebGPU found no GPU here: chrome://gpu says why"),
    "not secure": (NAMED, "page.test", "browsers offer WebGPU to pages from https:// and from localhost alone"),
    "no plan": (GPU, "127.0.0.1", "plan.json: the host answers 404"),
    "no tables": (GPU, "127.0.0.1", "packed.bin: the host answers 404"),
    "other tables": (GPU, "127.0.0.1", "it is another file than this page's; export the model again"),
    "too large": (GPU, "127.0.0.1", "a buffer of 1099512 MB is too large for this GPU"),
    "no runner": (GPU, "127.0.0.1", "worker.js cannot run"),
}


def too_large(site: Path) -> None:
    plan = json.loads((site / "plan.json").read_text())
    plan["buffers"]["pool 0"] = 1 << 40
    (site / "plan.json").write_text(json.dumps(plan))


BROKEN: dict[str, Callable[[Path], object]] = {
    "no plan": lambda site: (site / "plan.json").unlink(),
    "no tables": lambda site: (site / "packed.bin").unlink(),
    "other tables": lambda site: (site / "packed.bin").write_bytes(bytes(64)),
    "too large": too_large,
    "no runner": lambda site: (site / "worker.js").unlink(),
}


@pytest.fixture
def chromium() -> Iterator[Callable[..., Any]]:
    """A page of a browser with these flags."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as p:
        made = []

        def page(*flags: str) -> Any:
            made.append(p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *flags]))
            return made[-1].new_page()

        yield page
        for browser in made:
            browser.close()


def exported(folder: Path) -> Path:
    path = tiny.make(folder / "m.gguf", type="Q8_0")
    export_web(Opened(open_file(path), OpenOptions(ctx_size=64)), folder / "site")
    return folder / "site"


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_the_page_says_why_it_cannot_run(name: str, chromium: Callable[..., Any], tmp_path: Path) -> None:
    site = exported(tmp_path)
    if name in BROKEN:
        BROKEN[name](site)
    flags, host, words = REFUSED[name]
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = chromium(*flags)
    page.goto(f"http://{host}:{server.server_port}")
    page.wait_for_function("document.getElementById('model').textContent !== 'Loading…'", timeout=60_000)
    assert page.text_content("#model") == "It cannot run here"
    assert words in page.text_content("#facts")
    assert not any(page.is_visible(part) for part in ("#progress", "#file", "#send"))
    server.shutdown()


@pytest.mark.slow
def test_a_page_from_the_disk_says_that_it_needs_a_server(chromium: Callable[..., Any], tmp_path: Path) -> None:
    page = chromium(*GPU)
    page.goto((exported(tmp_path) / "index.html").as_uri())
    page.wait_for_selector("#unserved", timeout=30_000)
    assert "python -m http.server" in page.text_content("#unserved")
