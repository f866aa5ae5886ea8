"""The other views in a real Chromium: tokens, layers, compare, diagnose, server; by keyboard and on narrow screens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from assay.verify.judge.known import KINDS
from tests.serve.conftest import Server
from tests.serve.page.conftest import Tab, dump_lines

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
pytestmark = pytest.mark.slow
VIEWS = ["chat", "tokens", "layers", "compare", "diagnose", "server"]

# What a cell of each kind looks like in the map: its mark and its colours.
DRAWN = """kinds => kinds.map(([id, mark]) => {
  const cell = document.createElement("span");
  cell.className = "cell " + id;
  document.querySelector(".report").append(cell);
  const style = getComputedStyle(cell), look = [mark, style.backgroundColor, style.borderTopWidth];
  cell.remove();
  return look;
})"""


def test_tokens_view(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    page.click("#tab-tokens")
    expect(page.locator("#tokens-note")).to_contain_text("Type a text")
    page.click("#tab-chat")
    tab.ask("hello <b>the</b> world", 8)
    tab.wait()
    page.click(".message.assistant .to-tokens")
    scored = page.locator(".scored")
    expect(scored.first).to_be_visible()
    assert 1 <= scored.count() <= 8
    first = page.locator("#pieces > *").nth(0).inner_text()
    assert first == "Answer"  # the answer comes before the prompt
    least = page.locator(".scored[aria-current]")  # on arrival the least certain token is chosen
    shares = scored.evaluate_all("all => all.map(e => Number(getComputedStyle(e).getPropertyValue('--doubtful')))")
    assert float(least.evaluate("e => getComputedStyle(e).getPropertyValue('--doubtful')")) == max(shares)
    scored.first.hover()
    assert page.locator("#choice .bars b").count() >= 5
    expect(scored.first).to_have_attribute("aria-current", "true")
    scored.first.focus()
    page.keyboard.press("ArrowRight")
    expect(scored.nth(1)).to_have_attribute("aria-current", "true")
    expect(page.locator("#pieces .key .prob")).to_have_count(4)  # the legend
    page.fill("#text", "hello é")
    page.press("#text", "Enter")
    expect(page.locator("#tokens-note")).to_contain_text("7 characters")
    expect(scored).to_have_count(0)


def test_layers_view_and_keyboard(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#layers")).to_be_visible()
    expect(page.locator(".grid tbody tr")).to_have_count(4)  # filled on arrival
    expect(page.locator("#best h2")).to_have_text("The model's answer")
    expect(page.locator("#best .bars b")).to_have_count(5)
    page.fill("#prompt", "hello world")
    page.press("#prompt", "Enter")
    expect(page.locator("#trace button")).to_be_enabled()
    columns = page.locator(".grid thead th").count() - 1
    assert page.locator(".grid tbody td").count() == 4 * columns
    expect(page.locator(".grid .answer th")).to_have_text("answer")
    assert page.locator(".grid .answer td").first.evaluate("e => getComputedStyle(e).position") == "sticky"
    page.focus("#grid")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#best h2")).to_have_text("Layer 2")
    expect(page.locator("#best .bars b")).to_have_count(5)


@pytest.mark.parametrize("view", VIEWS)
def test_narrow_screens_do_not_scroll_sideways(browser: Any, chatty: Server, view: str) -> None:
    tab = Tab(browser, chatty, viewport={"width": 360, "height": 640}, color_scheme="dark")
    if view in ("chat", "tokens"):
        tab.ask("hello " * 20, 30)
        tab.wait()
    tab.page.click(f"#tab-{view}")
    if view == "layers":
        playwright.expect(tab.page.locator(".grid tbody tr")).to_have_count(4)
    if view == "server":
        playwright.expect(tab.page.locator("#curve svg")).to_be_visible()
        table = tab.page.locator("#server-models .scroll").first  # what does not fit is marked
        playwright.expect(table).to_have_css("mask-image", re.compile("linear-gradient"))
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 360
    outside = tab.page.evaluate(
        "[...document.querySelectorAll('header *, button, input, textarea')].filter(e => e.offsetParent && "
        "(e.getBoundingClientRect().right > 361 || e.getBoundingClientRect().left < -1)).map(e => e.id || e.tagName)"
    )
    assert outside == []
    assert tab.complaints == []
    tab.page.close()


def test_compare_says_where_two_answers_part(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    page.click("#tab-compare")
    page.fill("#temperature-b", "0")
    page.fill("#compare-tokens", "8")
    page.click("#compare-form button")
    expect(page.locator("#compare-note")).to_contain_text("The same")
    page.fill("#temperature-b", "5")
    page.click("#compare-form button")
    expect(page.locator("#compare-note")).to_contain_text("They part at token")
    expect(page.locator("#answer-a .part")).to_have_count(1)
    expect(page.locator("#answer-b .part")).to_have_count(1)


def test_a_long_name_breaks_behind_a_dot_or_an_underscore(tab: Tab) -> None:
    found = tab.page.evaluate(
        """async () => {
          const { make, words } = await import('/page/figures.js');
          const box = make('p');
          box.style.cssText = 'width: 12rem; overflow-wrap: anywhere; font: 20px sans-serif';
          box.append(...words('read from llama.attention.layer_norm_rms_epsilon, 1.5'));
          document.body.append(box);
          return [box.textContent, box.innerHTML.split('<wbr>'), box.scrollWidth <= box.clientWidth];
        }"""
    )
    pieces = ["read from llama.", "attention.", "layer_", "norm_", "rms_", "epsilon, 1.5"]
    assert found == ["".join(pieces), pieces, True]


def test_server_view_is_live(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    page.click("#tab-server")
    expect(page.locator("#server-models h2").nth(1)).to_contain_text("tiny")
    models = page.locator("#server-models section").first
    expect(models).to_contain_text("model in memory")
    expect(models).to_contain_text("came from the cache")
    expect(models.locator("tbody tr").first).to_contain_text("in memory")
    before = page.locator("#server-note").inner_text()
    expect(page.locator("#server-note")).not_to_have_text(before)  # its own questions are counted
    assert page.locator("#curve svg").get_attribute("aria-label").startswith("Tokens per second")
    marks = page.locator("#curve text").all_text_contents()
    assert {"0", "60 s ago", "now"} <= set(marks)  # both axes
    # A stream of the test before may have ended in the last 60 s, which the curve shows.
    expect(page.locator("#curve text.rest")).to_contain_text("At rest", timeout=90_000)
    expect(page.locator("#server-models")).to_contain_text("No stream is running")


def test_diagnose_shows_the_map_and_the_cause(tab: Tab, chatty: Server, tmp_path: Path) -> None:
    expect, page = playwright.expect, tab.page
    page.click("#tab-diagnose")
    page.click("#examine")
    expect(page.locator("#diagnose-note")).to_contain_text("Drop a dump, or paste log lines")
    page.fill("#lines", dump_lines(chatty))
    page.click("#examine")
    expect(page.locator("#map button").first).to_be_visible(timeout=120_000)
    expect(page.locator("#report .lead")).not_to_be_empty()
    expect(page.locator("#map .own, #map .between")).to_have_count(0)
    page.fill("#lines", dump_lines(chatty, "l_out-1"))
    page.click("#examine")
    wrong = page.locator("#map .between")
    expect(wrong.first).to_be_visible(timeout=300_000)
    # Ten printed values are no inputs: the page calls nothing wrong on its own inputs.
    expect(wrong).to_have_count(1)
    expect(wrong).to_have_attribute("data-node", "l_out-1")
    expect(page.locator("#map .own")).to_have_count(0)
    expect(page.locator("#report .told")).to_contain_text("l_out-1 is the one node that differs")
    expect(page.locator("#detail")).to_contain_text("the mistake is in one of")
    page.locator("#map button[tabindex='0']").focus()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#detail h2")).to_have_text("l_out-0")
    looks = page.evaluate(DRAWN, [[kind.id, kind.mark] for kind in KINDS])
    assert len({tuple(look) for look in looks}) == len(KINDS), looks  # a legend tells the kinds apart
    dump = tmp_path / "dump.jsonl"
    dump.write_text("not a dump at all")
    page.set_input_files("#dump", dump)
    page.click("#examine")
    expect(page.locator("#examine")).to_be_enabled(timeout=60_000)
    said = page.locator("#diagnose-note").inner_text()
    assert said.startswith("dump.jsonl: ") and "/tmp" not in said, said
    page.click("#undrop")
    expect(page.locator("#lines")).to_be_visible()
