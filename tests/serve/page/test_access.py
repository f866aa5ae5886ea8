"""Access: axe finds nothing on any view, on a desk and a phone, in light and dark; the keyboard alone suffices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.serve.page.conftest import DESK, PHONE, Tab

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
AXE = Path(os.environ.get("AXE") or ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js")

ANSWER = (
    "## Title\n\nSome *words*, `code`, a [link](https://a.example) and $\\frac{a}{b}$.\n\n- one\n- two\n\n> quoted\n\n"
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\ndef f(x):  # note\n    return 'text' + 12\n```\n\n"
    "\\[ \\sum_{i=1}^n i = \\unknown{x} \\]"
)
# A conversation with everything that an answer can hold.
FILL = """async (answer) => {
  const store = await import('/page/store.js');
  const talk = store.fresh();
  store.add(talk, { role: 'user', content: 'Show all', files: [{ name: 'notes.txt', text: 'hello' }] });
  const own = (token, p) => ({ token, id: 5, logprob: Math.log(p), bytes: [] });
  const item = (token, p) => ({ ...own(token, p), top_logprobs: [own(token, p), { token: 'x', id: 6, logprob: -3 }] });
  const tokens = [0.99, 0.6, 0.3, 0.01].map((p, i) => item(` word${i}`, p));
  const figures = { usage: { prompt: 9, cached: 0, answer: 4 }, speed: 29.4, first: 0.2, reason: 'stop' };
  store.add(talk, { role: 'assistant', content: answer, reasoning: 'A thought.', tokens, figures, model: 'tiny' });
  store.add(talk, { role: 'user', content: 'And then' });
  const fault = 'the prompt is too long';
  store.add(talk, { role: 'assistant', content: '', fault, tokens: [], figures: { reason: 'error' } });
  await store.keep(talk);
  localStorage.setItem('assay.conversation', talk.id);
}"""


def check(page: Any, what: str, *, view: bool = True) -> None:
    """Run axe: desk and phone, light and dark. For a mere state of a view the dark is judged by contrast alone."""
    found = []
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            options: dict[str, Any] = {"resultTypes": ["violations"]}
            if scheme == "dark" and not view:
                options["runOnly"] = ["color-contrast"]  # nothing else depends on the scheme
            result = page.evaluate("async options => (await axe.run(document, options)).violations", options)
            found += [
                f"{what} {size['width']} {scheme}: {v['id']}: {n['target']} {n['failureSummary']}"
                for v in result
                for n in v["nodes"]
            ]
    page.set_viewport_size(DESK)
    assert not found, "\n".join(found)


@pytest.fixture
def axed(tab: Tab) -> Tab:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `make axe` fetches it with npm")
    tab.page.evaluate(AXE.read_text())
    return tab


def test_axe_first_view_and_sheets(axed: Tab) -> None:
    page = axed.page
    check(page, "first view")
    page.click("#gear")
    check(page, "settings", view=False)
    page.keyboard.press("Escape")
    page.set_viewport_size(PHONE)
    page.click("#menu")
    check(page, "conversations", view=False)


def test_axe_chat(axed: Tab) -> None:
    page = axed.page
    page.evaluate(FILL, ANSWER)
    page.reload()
    playwright.expect(page.locator(".message")).to_have_count(4)
    page.evaluate(AXE.read_text())
    page.locator(".speed").first.click()
    page.locator(".message.assistant").first.hover()
    check(page, "chat")
    page.locator(".inline").first.click()
    page.locator(".prob").first.focus()
    check(page, "probabilities", view=False)
    page.locator(".message.user").first.hover()
    page.locator(".edit").first.click()
    check(page, "edit", view=False)
    page.locator(".talk").first.hover()
    page.locator(".talk .rename").first.click()
    check(page, "rename", view=False)
    page.keyboard.press("Escape")
    page.locator(".talk").first.hover()
    page.locator(".talk .delete").first.click()
    check(page, "undo", view=False)


def test_axe_tokens_and_layers(axed: Tab) -> None:
    expect, page = playwright.expect, axed.page
    page.click("#tab-tokens")
    check(page, "tokens, empty", view=False)
    page.click("#tab-chat")
    axed.ask("hello the world", 8)
    axed.wait()
    page.click("#tab-tokens")
    expect(page.locator("#choice")).to_be_visible()
    check(page, "tokens")
    page.fill("#text", "hello é")
    page.press("#text", "Enter")
    expect(page.locator("#tokens-note")).to_contain_text("characters")
    check(page, "tokens of a text", view=False)
    page.click("#tab-layers")
    expect(page.locator("#best")).to_be_visible()
    check(page, "layers")


def test_axe_compare_and_server(axed: Tab) -> None:
    expect, page = playwright.expect, axed.page
    page.click("#tab-compare")
    check(page, "compare, empty", view=False)
    page.fill("#temperature-b", "5")
    page.fill("#compare-tokens", "16")
    page.click("#compare-form button")
    expect(page.locator("#compare-note")).to_contain_text("They part")
    check(page, "compare")
    page.click("#tab-server")
    expect(page.locator("#curve svg")).to_be_visible()
    check(page, "server")


def test_axe_diagnose(axed: Tab) -> None:
    expect, page = playwright.expect, axed.page
    page.click("#tab-diagnose")
    expect(page.locator("#examine")).to_be_visible()
    check(page, "diagnose, empty", view=False)
    page.fill("#lines", '{"assay_dump": 1, "tokens": [1, 5, 6]}\n{"name": "attn_norm-0", "first": [9, 9, 9]}')
    page.click("#examine")
    expect(page.locator("#map button").first).to_be_visible(timeout=300_000)
    check(page, "diagnose")


def test_the_keyboard_alone_suffices(tab: Tab) -> None:
    """From the first view to an answer, its figures, its tokens and the settings, without a pointer."""
    expect, page = playwright.expect, tab.page

    def tab_to(selector: str) -> None:
        for _ in range(60):
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{selector} is not reached by Tab")

    tab_to("#gear")
    page.keyboard.press("Enter")
    tab_to("[name=max_tokens]")
    page.keyboard.type("6")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "gear"  # focus returns to what opened the sheet
    tab_to("#input")
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    tab.wait()
    expect(page.locator(".message.assistant")).to_have_count(1)
    tab_to(".speed")
    page.keyboard.press("Enter")
    expect(page.locator(".figures")).to_be_visible()
    tab_to(".talk.current .delete")
    tab_to(".to-tokens")
    page.keyboard.press("Enter")
    expect(page.locator("#tokens")).to_be_visible()
    tab_to(".scored")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#choice .bars")).to_be_visible()
