"""The page: everything in one file, every cell clickable, seen by a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from assay.gguf import open_file
from assay.models import Model, load
from assay.system.documents import asset, off_by, rounded
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.judge.verdict import judge
from assay.verify.report import content, page, write_html
from tests import planting
from tests.synthetic import make_kquant

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE") or ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js")
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


@pytest.fixture(scope="module")
def partial(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on ten printed values and an rms of each node."""
    folder = tmp_path_factory.mktemp("partial")
    dump = planting.dump(planting.second(model.file.path, "rope-type"), "last", model, folder / "dump")
    found = diagnose(model, dump)
    path = folder / "report.html"
    write_html(path, model, dump, found.diff, found)
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_the_fix_leads_and_can_be_copied(chromium: Any, written: Path) -> None:
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    sheet = context.new_page()
    sheet.goto(written.as_uri())
    first = sheet.locator(".lead").first
    assert first.locator("h2").inner_text() == "Fix 1 of 2"
    size = "el => parseFloat(getComputedStyle(el).fontSize)"
    fix = first.locator(".do")
    others = sheet.evaluate(
        "Math.max(...[...document.querySelectorAll('.report *:not(.do):not(.do *)')]"
        ".map(el => parseFloat(getComputedStyle(el).fontSize)))"
    )
    assert fix.evaluate(size) > others, "nothing is larger than the fix"
    first.locator("button.copy").click()
    assert sheet.evaluate("navigator.clipboard.readText()") == fix.inner_text()
    assert first.locator("button.copy").inner_text() == "Copied"
    titles = sheet.locator(".cause h3").all_inner_texts()
    assert titles.count("The mistake looks like this") == 2
    assert "`" not in sheet.inner_text("body"), "words between backticks are shown as code"
    assert not re.search(r"\d{5}\.\d|\d{6}", sheet.inner_text(".causes")), "numbers are rounded for people"
    context.close()


def test_a_partial_dump_blames_no_node_on_its_own_inputs(chromium: Any, partial: Path) -> None:
    sheet = chromium.new_page()
    sheet.goto(partial.as_uri())
    assert sheet.locator("#map .own").count() == 0
    assert sheet.locator("#map .between").count() == 2
    assert sheet.locator("#map .differs").count() == 50
    assert "50 that cannot be judged by themselves" in sheet.inner_text(".told")
    legend = sheet.inner_text(".legend")
    assert "differs; it cannot be judged by itself" in legend and "wrong on its own inputs" not in legend
    sheet.close()


def test_the_map_is_walked_by_the_arrow_keys(chromium: Any, written: Path) -> None:
    sheet = chromium.new_page()
    sheet.goto(written.as_uri())
    assert sheet.locator("#map button[tabindex='0']").count() == 1, "one stop of the Tab key"
    sheet.locator("#map button[tabindex='0']").focus()
    for key, expected in (
        ("ArrowDown", "attn_norm-1"), ("ArrowRight", "Qcur_proj-1"), ("ArrowUp", "Qcur_proj-0"), ("ArrowUp", "embd"),
        ("ArrowUp", "embd"), ("ArrowDown", "attn_norm-0"),
    ):  # fmt: skip
        sheet.keyboard.press(key)
        assert sheet.inner_text("#detail h2") == expected
        assert sheet.evaluate("document.activeElement.dataset.node") == expected
    sheet.close()


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_scrolls_inside_the_report(chromium: Any, written: Path, width: int) -> None:
    sheet = chromium.new_page(viewport={"width": width, "height": 740})
    sheet.goto(written.as_uri())
    hidden = sheet.evaluate(
        "[...document.querySelectorAll('.report *')].filter(el => getComputedStyle(el).overflow.match(/auto|scroll/)"
        " && (el.scrollWidth > el.clientWidth || el.scrollHeight > el.clientHeight)).map(el => el.className)"
    )
    assert hidden == []
    sheet.close()


NUMBERS = {
    "times(67360.88)": "67,000×", "times(0.27)": "0.27×", "times(2.2e8)": "220 million×", "times(0)": "0×",
    "rounded(2.2e-7)": "2.2 × 10⁻⁷", "rounded(1234.5)": "1,200", "rounded(null)": "–", "rounded(-0.5)": "-0.5",
    "off(2.2e-7)": "off by 0.047 %", "off(1.3)": "off by 110 %", "off(1e-15)": "off by 1 part in 32 million",
    "off(18 * 1e4)": "off by 420×", "off(null)": "off by more than can be said", "off(0)": "equal",
    "words('use `eps` <b>').map(x => x.outerHTML ?? x).join('|')": "use |<code>eps</code>| <b>",
    "percent(0.999999)": "more than 99.99 %", "percent(0.9934)": "99.34 %", "percent(1)": "100 %",
}  # fmt: skip


def test_numbers_for_people(chromium: Any) -> None:
    """In the report's script, and in the pages that Python writes."""
    sheet = chromium.new_page()
    source = "data:text/javascript;charset=utf-8," + quote(asset("serve/page/figures.js"))
    shown = sheet.evaluate(
        "async ([source, asked]) => { const { times, rounded, off, percent, words } = await import(source);"
        " const all = {}; for (const one of asked) all[one] = eval(one); return all; }",
        [source, list(NUMBERS)],
    )
    sheet.close()
    assert shown == NUMBERS
    assert [rounded(x) for x in (67360.88, 0.27, 2.2e8, 0, 1234.5)] == ["67,000", "0.27", "220 million", "0", "1,200"]
    assert [off_by(x) for x in (2.2e-7, 1.3, 1e-15, 18e4, 0)] == [
        "0.047 %",
        "110 %",
        "1 part in 32 million",
        "420×",
        "0",
    ]


def test_axe_finds_nothing(chromium: Any, written: Path, partial: Path) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `make axe` fetches it with npm")
    for path in (written, partial):
        for width, scheme in ((1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")):
            context = chromium.new_context(
                viewport={"width": width, "height": 740}, color_scheme=scheme, bypass_csp=True
            )
            sheet = context.new_page()
            sheet.goto(path.as_uri())
            sheet.evaluate(AXE.read_text())
            found = sheet.evaluate("async () => (await axe.run()).violations.map(v => [v.id, v.nodes[0].html])")
            assert found == [], (path.name, width, scheme)
            context.close()
