"""The page: everything in one file, every cell clickable, seen by a real browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.judge.verdict import judge
from assay.verify.report import content, page, write_html
from tests import planting
from tests.synthetic import make_kquant

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make_kquant(tmp_path_factory.mktemp("model") / "synthetic.gguf")))


@pytest.fixture(scope="module")
def written(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on an engine with two faults, whose name contains HTML."""
    folder = tmp_path_factory.mktemp("report")
    case = planting.second(model.file.path, "rope-type", "norm-weight-twice")
    dump = planting.dump(case, "full", model, folder / "dump")
    found = diagnose(model, dump)
    path = folder / "report.html"
    write_html(path, model, dump, found.diff, found)
    return path


def test_the_page_is_self_contained(written: Path) -> None:
    text = written.read_text()
    assert "{{assay:" not in text
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert script is not None
    data = json.loads(script[1])
    assert data["verdict"] == "fault"
    assert {c["fault"] for c in data["causes"]} == {"rope-type", "norm-weight-twice"}
    without_links = re.sub(r'"links": \[.*?\]\]', "", script[1])
    assert "http" not in without_links and not re.search(r'(src|href)="http', text.replace(script[0], ""))


def test_text_from_strangers_stays_text(model: Model, tmp_path: Path) -> None:
    case = planting.second(model.file.path)
    dump = planting.dump(case, "logits", model, tmp_path)
    from dataclasses import replace

    evil = replace(dump, engine="</script><script>alert(1)</script>", source="<img src=x onerror=alert(1)>")
    diff = judge(model, evil)
    text = page(model, evil, diff)
    assert "<script>alert" not in text and "<img" not in text
    assert content(model, evil, diff)["engine"] == evil.engine


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_clicking_a_cell_shows_its_values(written: Path, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        sheet = browser.new_page(viewport={"width": 1300, "height": 1000})
        complaints: list[str] = []
        asked: list[str] = []
        sheet.on("pageerror", lambda e: complaints.append(str(e)))
        sheet.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        sheet.on("request", lambda r: asked.append(r.url))
        sheet.goto(written.as_uri())
        assert sheet.inner_text("#verdict") == "fault"
        assert sheet.locator("#map button").count() == 57
        assert sheet.inner_text("#detail h2") == "attn_norm-0"  # the first wrong node is open
        sheet.click("button[data-node='Qcur-1']")
        assert sheet.inner_text("#detail h2") == "Qcur-1"
        assert "wrong on its own inputs" in sheet.inner_text("#detail")
        assert sheet.locator("#detail tr.off").count() > 3
        assert sheet.get_attribute("button[data-node='Qcur-1']", "aria-pressed") == "true"
        # colour is not the only sign, and colours survive: own faults carry a mark and a background of their own
        assert sheet.inner_text("button[data-node='Qcur-1']") == "✕"
        colour = "el => getComputedStyle(el).backgroundColor"
        assert sheet.eval_on_selector("button[data-node='Qcur-1']", colour) != sheet.eval_on_selector(
            "button[data-node='embd']", colour
        )
        sheet.keyboard.press("Tab")
        sheet.screenshot(path=str(tmp_path / "report.png"), full_page=True)
        sheet.pdf(path=str(tmp_path / "report.pdf"))
        browser.close()
    assert not complaints
    assert asked == [written.as_uri()]
    assert (tmp_path / "report.pdf").stat().st_size > 5000


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800)])
def test_the_map_is_on_the_first_screen(written: Path, width: int, height: int) -> None:
    """On a phone and on a desk: the map and the open cell are seen without scrolling, and nothing is wider than it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        sheet = browser.new_page(viewport={"width": width, "height": height})
        sheet.goto(written.as_uri())
        shown = sheet.locator(".scroll").bounding_box()
        cell = sheet.locator("#map button[aria-pressed=true]").bounding_box()
        wide = sheet.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert shown is not None and cell is not None and wide <= width
    assert shown["y"] + shown["height"] <= height and shown["x"] + shown["width"] <= width
    assert shown["y"] <= cell["y"] and cell["y"] + cell["height"] <= shown["y"] + shown["height"] + 2
