"""The engine of `examples/webgpu-engine` in headless Chromium: its broken kernels are named from what it posts."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.gguf.writer import Tensor
from assay.library import dump_receiver
from assay.library.verdicts import diagnose
from tests import tiny

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
TOKENS = "1,270,280,17,300"
PLANTED = {
    "barrier": "wgsl-barrier",
    "stride": "wgsl-stride",
    "uniform": "wgsl-uniform",
    "tail": "wgsl-tail",
    "overflow": "f16-act-overflow",
    "alias": "rope-inplace-alias",
    "transposed": "gguf-dims-order",  # as w-transposed, and in the output's product too
}
pytestmark = pytest.mark.slow


def loud(name: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Tensor:
    """As tiny's tensors; the last feed-forward layer has values beyond 65504, and scales them back."""
    made = tiny._tensor(name, shape, kind, rng)
    factor = {"blk.1.ffn_up.weight": 2.0**17, "blk.1.ffn_down.weight": 2.0**-17}.get(name, 1.0)
    return replace(made, data=np.asarray(made.data, np.float32) * np.float32(factor))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server of this repository with a model, and the model's file."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    model = tiny.make(folder / "model.gguf", n_embd=96, n_ff=160, tensor=loud)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", model
    server.shutdown()


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    if not CHROMIUM:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-webgpu"])
        yield browser.new_page()
        browser.close()


def posted(page: Any, site: str, fault: str, folder: Path) -> Path:
    """What the page posts to the receiver of `assay watch --http`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    query = f"model=/model.gguf&tokens={TOKENS}&fault={fault}&post=http://127.0.0.1:{port}"
    command = dump_receiver.command(port)
    with open(folder / "dump.jsonl", "wb") as dump, subprocess.Popen(command, stdout=dump) as receiver:
        page.goto(f"{site}/examples/webgpu-engine/?{query}")
        page.wait_for_function("document.getElementById('said').textContent !== 'Computing…'", timeout=120_000)
        assert page.text_content("#said") == "Posted."
        assert receiver.wait(60) == 0
    return folder / "dump.jsonl"


@pytest.mark.parametrize("fault", PLANTED)
def test_a_broken_kernel_is_named(fault: str, page: Any, site: tuple[str, Path], tmp_path: Path) -> None:
    address, model = site
    found = diagnose(model, posted(page, address, fault, tmp_path)).result
    named = [found.broken.fault] if found.broken else [cause.fault for cause in found.causes]
    assert named[:1] == [PLANTED[fault]], found.to_dict()


def test_the_right_kernels_have_no_fault(page: Any, site: tuple[str, Path], tmp_path: Path) -> None:
    address, model = site
    found = diagnose(model, posted(page, address, "", tmp_path)).result
    assert found.verdict == "healthy", found.to_dict()
