"""The page in a real Chromium: chat, stop, regenerate, tokens, layers, keyboard, narrow screens, no foreign calls."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Server, start_server
from tests.tiny import make

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
if not CHROMIUM:
    pytest.skip("there is no chromium", allow_module_level=True)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make(tmp_path_factory.mktemp("page") / "tiny.gguf", n_ctx=4096, n_layer=4)
    server = start_server([("tiny", path)])
    yield server
    assert server.end() == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Tab:
    """A page, with everything it asked for and complained of."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(server.url)
        playwright.expect(self.page.locator("#model option")).to_have_count(1)

    def ask(self, text: str, n: int = 12) -> None:
        if self.page.locator("#settings").get_attribute("open") is None:
            self.page.click("#settings summary")
        self.page.fill("[name=max_tokens]", str(n))
        self.page.fill("[name=temperature]", "0")
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def wait(self) -> None:
        playwright.expect(self.page.locator("#send")).to_have_text("Send", timeout=60_000)


@pytest.fixture
def tab(browser: Any, chatty: Server) -> Iterator[Tab]:
    tab = Tab(browser, chatty, viewport={"width": 1100, "height": 760})
    yield tab
    assert tab.complaints == []
    assert all(url.startswith((chatty.url, "data:")) for url in tab.requests)
    tab.page.close()


def test_chat_and_regenerate(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello the world")
    tab.wait()
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    answer = page.locator(".message.assistant .body").inner_text()
    expect(page.locator(".message.assistant .meta")).to_contain_text(re.compile(r"\d+ in \(\d+ cached\), \d+ out"))
    expect(page.locator(".message.assistant .meta")).to_contain_text("tokens/s")
    page.click(".regenerate")
    tab.wait()
    expect(page.locator(".message.assistant")).to_have_count(1)
    assert page.locator(".message.assistant .body").inner_text() == answer  # greedy
    expect(page.locator(".branch")).to_have_text("2 of 2")
    tab.ask("and again")
    tab.wait()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator(".regenerate")).to_have_count(2)
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)


def test_reasoning_is_shown_apart_and_goes_back(browser: Any, tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}</think>{{ m.content }}{% endfor %}<think>"
    server = start_server([("tiny", make(tmp_path / "tiny.gguf", n_ctx=512, template=template))])
    tab = Tab(browser, server)
    sent: list[Any] = []
    tab.page.on("request", lambda r: sent.append(r.post_data_json) if r.method == "POST" else None)
    tab.ask("hello")
    tab.wait()
    thought = tab.page.locator(".message.assistant .reasoning").text_content()
    assert thought and tab.page.locator(".message.assistant .body").inner_text() == ""
    tab.ask("again")
    tab.wait()
    assert sent[-1]["messages"][1] == {"role": "assistant", "content": "", "reasoning_content": thought}
    assert tab.complaints == []
    tab.page.close()
    assert server.end() == 0


def test_stop(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page

    def without_end(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))

    page.route("**/v1/chat/completions", without_end)
    tab.ask("hello", 4000)
    expect(page.locator("#send")).to_have_text("Stop")
    expect(page.locator(".message.assistant .body")).not_to_be_empty()
    page.keyboard.press("Escape")
    tab.wait()
    expect(page.locator(".message.assistant .meta")).to_contain_text("stopped")


def test_an_error_is_shown(tab: Tab) -> None:
    tab.ask("hello " * 3000)
    tab.wait()
    playwright.expect(tab.page.locator(".message.fault .body")).to_contain_text("shorten it by")
    assert any("400" in text for text in tab.complaints)  # the browser's own line about the status
    tab.complaints.clear()


def test_tokens_view(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello <b>the</b> world", 8)
    tab.wait()
    page.click(".message.assistant .meta button:has-text('Tokens')")
    scored = page.locator(".piece.scored")
    expect(scored.first).to_be_visible()
    assert 1 <= scored.count() <= 8
    scored.first.hover()
    expect(page.locator("#tip tr")).to_have_count(5)
    page.mouse.move(0, 0)
    expect(page.locator("#tip")).to_be_hidden()
    scored.first.focus()
    expect(page.locator("#tip")).to_be_visible()
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
    page.fill("#prompt", "hello world")
    page.press("#prompt", "Enter")
    expect(page.locator(".grid tbody tr")).to_have_count(4)
    columns = page.locator(".grid thead th").count() - 1
    assert page.locator(".grid tbody td").count() == 4 * columns
    page.focus("#grid")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#tip")).to_contain_text("layer 2")
    expect(page.locator("#tip tr")).to_have_count(5)


@pytest.mark.parametrize("view", ["chat", "tokens", "layers", "compare", "diagnose", "server"])
def test_narrow_screens_do_not_scroll_sideways(browser: Any, chatty: Server, view: str) -> None:
    tab = Tab(browser, chatty, viewport={"width": 360, "height": 640}, color_scheme="dark")
    tab.ask("hello " * 20, 30)
    tab.wait()
    tab.page.click(f"#tab-{view}")
    if view == "layers":
        tab.page.click("#trace button")
        playwright.expect(tab.page.locator(".grid tbody tr")).to_have_count(4)
    assert tab.page.evaluate("document.documentElement.scrollWidth") == 360
    outside = tab.page.evaluate(
        "[...document.querySelectorAll('header *, button, input, textarea')].filter(e => e.offsetParent && "
        "(e.getBoundingClientRect().right > 361 || e.getBoundingClientRect().left < -1)).map(e => e.id || e.tagName)"
    )
    assert outside == []
    assert tab.complaints == []
    tab.page.close()


def test_markdown_is_elements_and_nothing_else(tab: Tab) -> None:
    page = tab.page
    text = (
        "# Title\n\nSome **bold**, *slanted* and `code`; [a](https://a.example) [b](javascript:alert(1)) <b>raw</b>\n\n"
        "- one\n- two\n  - inner\n\n1. first\n2. second\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\nprint('<i>hi</i>')\n```\n\n---\nunclosed **and ``` more"
    )
    page.evaluate(
        "async text => { const { markdown } = await import('/page/markdown.js');"
        " const { make } = await import('/page/dom.js');"
        " const body = make('div', { class: 'body' }, markdown(text));"
        " const article = make('article', { class: 'message assistant' }, body);"
        " document.getElementById('messages').replaceChildren(article); }",
        text,
    )
    at = page.locator("#messages")
    assert at.locator("h3").inner_text() == "Title"
    assert [at.locator(kind).first.inner_text() for kind in ("strong", "em", "p code")] == ["bold", "slanted", "code"]
    assert at.locator("a").evaluate_all("all => all.map(a => a.href)") == ["https://a.example/"]
    assert at.locator("b, i").count() == 0
    assert "<b>raw</b>" in at.inner_text()
    assert at.locator("ul > li").count() == 3
    assert at.locator("ol > li").all_inner_texts() == ["first", "second"]
    assert at.locator("blockquote").inner_text().strip() == "quoted"
    assert at.locator("td").all_inner_texts() == ["1", "2"]
    assert at.locator("pre code").inner_text() == "print('<i>hi</i>')"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    at.locator(".copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == "print('<i>hi</i>')"


def test_conversations_survive_are_edited_exported_and_deleted(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello the world", 4)
    tab.wait()
    answer = page.locator(".message.assistant .body").inner_text()
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    assert page.locator(".message.assistant .body").inner_text() == answer
    page.click(".edit")
    page.fill(".editing textarea", "something else")
    page.click(".editing button[type=submit]")
    tab.wait()
    expect(page.locator(".message.user .body")).to_have_text("something else")
    page.click("[aria-label='Previous version']")
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    assert page.locator(".message.assistant .body").inner_text() == answer
    with page.expect_download() as download:
        page.click("#export")
    kept = json.loads(Path(download.value.path()).read_text())
    assert [m["role"] for m in kept["messages"]] == ["user", "assistant"]
    assert len(kept["conversation"]["nodes"]) == 4
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)
    tab.ask("a second one", 4)
    tab.wait()
    expect(page.locator("#conversations option")).to_have_count(2)
    page.click("#delete")
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    page.reload()
    expect(page.locator("#conversations option")).to_have_count(1)


def test_probabilities_stand_in_the_text(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello", 6)
    tab.wait()
    page.click(".inline")
    expect(page.locator(".inline")).to_have_attribute("aria-pressed", "true")
    tokens = page.locator(".message.assistant .prob")
    assert 1 <= tokens.count() <= 6
    tokens.first.focus()
    expect(page.locator("#tip tr")).to_have_count(5)


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


def test_server_view_is_live(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    page.click("#tab-server")
    expect(page.locator("#server-models h2")).to_have_text("tiny")
    before = page.locator("#server-note").inner_text()
    expect(page.locator("#server-note")).not_to_have_text(before)  # its own questions are counted
    assert page.locator("#curve svg").get_attribute("aria-label").startswith("Tokens per second")


def test_diagnose_shows_the_map_and_the_cause(tab: Tab, chatty: Server, tmp_path: Path) -> None:
    import httpx

    expect, page = playwright.expect, tab.page
    ids = httpx.post(f"{chatty.url}/tokenize", json={"content": "hello", "add_special": True}).json()["tokens"]
    asked = {"tokens": ids, "nodes": ["*norm*", "l_out-*"]}
    found = httpx.post(f"{chatty.url}/v1/trace", json=asked, timeout=60).json()
    lines = [{"assay_dump": 1, "engine": "mine", "tokens": ids}]
    lines += [{"name": n["name"], "shape": n["shape"], "first": n["first"], "rms": n["rms"]} for n in found["nodes"]]
    page.click("#tab-diagnose")
    page.click("#examine")
    expect(page.locator("#diagnose-note")).to_contain_text("Drop a dump, or paste log lines")
    page.fill("#lines", "\n".join(map(json.dumps, lines)))
    page.click("#examine")
    expect(page.locator("#map .node").first).to_be_visible(timeout=120_000)
    expect(page.locator("#cause")).not_to_be_empty()
    at = next(i for i, line in enumerate(lines) if line.get("name") == "l_out-2")
    lines[at] = lines[at] | {"first": [-x for x in lines[at]["first"]]}
    page.fill("#lines", "\n".join(map(json.dumps, lines)))
    page.click("#examine")
    expect(page.locator("#map .node.wrong").first).to_be_visible(timeout=120_000)
    expect(page.locator("#diagnose-note")).to_contain_text("wrong on their own inputs")
    dump = tmp_path / "dump.jsonl"
    dump.write_text("not a dump at all")
    page.set_input_files("#dump", dump)
    page.click("#examine")
    expect(page.locator("#examine")).to_be_enabled(timeout=60_000)
    assert "/tmp" not in page.locator("#diagnose-note").inner_text()
    assert any("400" in text for text in tab.complaints)
    tab.complaints.clear()


def test_the_theme_is_kept(tab: Tab) -> None:
    page = tab.page
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_the_page_asks_for_nothing_inline_or_foreign() -> None:
    folder = Path(__file__).parents[2] / "src" / "assay" / "serve" / "page"
    for path in folder.iterdir():
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        assert "innerHTML" not in text
        assert len(text.splitlines()) < 250
    html = (folder / "index.html").read_text()
    assert " style=" not in html
    assert not re.search(r"\son\w+=", html)
