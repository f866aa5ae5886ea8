"""Results in a notebook: each shows its page in a frame; evaluation from Python is that of the command line."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

import assay
from assay.cli import main
from tests import tiny

TEXT = "hello world the word in on a hello world " * 12


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("notebook")
    return tiny.make(folder / "a.gguf"), tiny.make(folder / "b.gguf", type="Q4_0")


def framed(result: object) -> str:
    """The page inside the frame."""
    shown = result._repr_html_()  # type: ignore[attr-defined]
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts"[^>]*></iframe>', shown)
    assert found
    page = html.unescape(found[1])
    assert page.startswith("<!doctype html>")
    assert "</html>" in page
    return page


def test_every_result_shows_its_page(files: tuple[Path, Path]) -> None:
    with assay.load(files[0], "reference") as model, assay.load(files[1], "reference") as other:
        trace = model.trace("hello world")
        assert "attn_norm-0" in framed(trace)
        assert "attn_norm-0" in framed(assay.diff(model, trace))
        assert "KL divergence" in framed(other.evaluate(TEXT, model, window=32))
        assert "blk.0.ffn_up.weight" in framed(assay.diff(str(files[0]), str(files[1])))
    assert assay.check(files[0], "reference", lengths=(2,))._repr_html_() is None  # no page: the words are shown


def test_evaluation_is_the_command_lines(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = ["-f", str(text), "--window", "32", "--engine", "reference", "--json"]
    assert main(["eval", str(files[1]), "--kl", str(files[0]), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    with assay.load(files[0], "reference") as base, assay.load(files[1], "reference") as model:
        found = model.evaluate(TEXT, base, window=32)
        assert found.kl == told["kl"]["value"]
        assert found.perplexity == told["perplexity"]["value"]
        assert model.evaluate(TEXT, window=32).kl is None
        assert model.evaluate(TEXT, model, window=32).kl == pytest.approx(0, abs=1e-12)
        found.save_html(tmp_path / "page.html")
    assert "<mark>" in (tmp_path / "page.html").read_text()


def test_ids_as_numpy(files: tuple[Path, Path]) -> None:
    with assay.load(files[0]) as model:
        ids = np.array(model.tokenize("hello world"))
        settings = {"max_new_tokens": 4, "do_sample": False, "repetition_penalty": 1.1, "top_k": 40, "top_p": 0.9}
        assert model.generate(ids, **settings).ids == model.generate(ids.tolist(), **settings).ids
        assert model.logits(ids).shape == (len(ids), model.model.hparams.n_vocab)


CELL = """
import time
from assay.library import notebook
from assay.system.stages import each
notebook._DELAY_S = notebook._PACE_S = -1
with notebook.watched(None):
    for _ in each(range(3), "comparing <b>", "nodes"):
        time.sleep(0.06)
"""


def test_a_kernel_shows_a_bar_and_removes_it() -> None:
    """A real kernel runs the cell; the bar is one display that is updated, and empty in the end."""
    inprocess = pytest.importorskip("ipykernel.inprocess", reason="ipykernel is not installed")
    manager = inprocess.InProcessKernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.execute(CELL)
    shown = []
    while True:
        message = client.get_iopub_msg(timeout=20)
        if message["msg_type"] == "error":
            raise AssertionError(message["content"])
        if message["msg_type"] in ("display_data", "update_display_data"):
            content = message["content"]
            shown.append((message["msg_type"], content["transient"]["display_id"], content["data"]["text/html"]))
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    assert shown[0][0] == "display_data" and {kind for kind, _, _ in shown[1:]} == {"update_display_data"}
    assert len({display for _, display, _ in shown}) == 1
    assert "comparing &lt;b&gt;" in shown[0][2] and "of 3 nodes" in shown[1][2]
    assert shown[-1][2] == ""


def test_progress_goes_to_the_callback_or_nowhere(files: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, int, int]] = []
    with assay.load(files[0], "reference", progress=lambda *step: told.append(step)) as model:
        trace = model.trace("hello world")
        assert assay.diff(model, trace, progress=lambda *step: told.append(step))
        assert assay.diff(model, trace)
    assert ("comparing with the definition", len(model.model.graph), len(model.model.graph)) in told
    assert capfd.readouterr() == ("", ""), "a script gets no bar that it did not ask for"
