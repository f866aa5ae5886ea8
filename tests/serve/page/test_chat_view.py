"""The chat in a real Chromium: first view, answers, stop, edit, files, base models, faults."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.library.test_pictures import picture
from tests.picture_prompts import FOLDER
from tests.serve.conftest import Server, start_server
from tests.serve.page.conftest import DESK, Tab
from tests.tiny import make

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
pytestmark = pytest.mark.slow


def test_the_first_view_names_the_model_and_offers_four_ways_to_begin(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    welcome = page.locator("#welcome")
    expect(welcome.locator("h2")).to_have_text("tiny")
    expect(welcome.locator(".facts")).to_contain_text(
        re.compile(r"\d+ K parameters.*kB on disk.*4,096 tokens of context")
    )
    speed = page.locator("#speed")
    expect(speed).to_contain_text(re.compile(r"\d+ tokens/s here"), timeout=60_000)  # measured, not guessed
    expect(welcome.locator(".starters button")).to_have_count(4)
    welcome.locator("button", has_text="Break this into tokens").click()
    expect(page.locator("#tokens-note")).to_contain_text("characters")
    assert page.locator(".piece").count() > 5
    page.click("#tab-chat")
    welcome.locator("button", has_text="Watch it think").click()
    expect(page.locator(".grid tbody tr")).to_have_count(4)
    page.click("#tab-chat")
    tab.set(max_tokens=4)
    welcome.locator("button").first.click()
    expect(page.locator(".message.user .body")).to_contain_text("sky")
    tab.wait()
    expect(welcome).to_be_hidden()


def test_chat_and_regenerate(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello the world")
    tab.wait()
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    answer = page.locator(".message.assistant .body").inner_text()
    speed = page.locator(".message.assistant .speed")
    expect(speed).to_have_text(re.compile(r"^[\d.]+ tok/s$"))
    figures = page.locator(".message.assistant .figures")
    expect(figures).to_be_hidden()
    page.set_viewport_size({"width": 1280, "height": 380})
    speed.click()
    expect(speed).to_have_attribute("aria-expanded", "true")
    expect(figures).to_be_in_viewport(ratio=1)
    page.set_viewport_size(DESK)
    expect(figures).to_contain_text(re.compile(r"\d+ tokens, \d+ of them cached"))
    expect(figures).to_contain_text("tokens/s")
    expect(figures).to_contain_text(re.compile(r"after \d+\.\d+ s"))
    page.click(".regenerate")
    tab.wait()
    expect(page.locator(".message.assistant")).to_have_count(1)
    assert page.locator(".message.assistant .body").inner_text() == answer  # greedy
    expect(page.locator(".branch")).to_have_text("2 of 2")
    tab.ask("and again")
    tab.wait()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator(".regenerate")).to_have_count(2)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".message.user").first.hover()
    page.locator("[aria-label='Copy message']").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == "hello the world"
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)
    expect(page.locator("#welcome")).to_be_visible()


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


def test_a_base_model_continues_the_text(browser: Any, tmp_path: Path) -> None:
    """A model without a chat template has an answer too: the text as it stands, continued."""
    expect = playwright.expect
    server = start_server([("base", make(tmp_path / "base.gguf", n_ctx=512, template=None))])
    tab = Tab(browser, server)
    page = tab.page
    sent: list[Any] = []
    page.on("request", lambda r: sent.append((r.url, r.post_data_json)) if r.method == "POST" else None)
    expect(page.locator("#welcome")).to_contain_text("no chat template")
    expect(page.locator("#input")).to_have_attribute("placeholder", "Text for the model to continue")
    tab.ask("hello the", 8)
    tab.wait()
    expect(page.locator(".message.fault")).to_have_count(0)
    first = page.locator(".message.assistant .body").text_content()
    assert first
    expect(page.locator(".message.assistant .speed")).to_have_text(re.compile("tok/s"))
    tab.ask("more", 8)
    tab.wait()
    asked = [body["prompt"] for url, body in sent if url.endswith("/completion")]
    assert asked[-2:] == ["hello the", f"hello the{first}\nmore"]
    page.locator(".to-tokens").last.click()
    expect(page.locator(".scored").first).to_be_visible()
    page.click("#tab-compare")
    page.fill("#compare-tokens", "4")
    page.click("#compare-form button")
    expect(page.locator("#compare-note")).to_contain_text(re.compile("The same|They part"))
    assert tab.complaints == []
    page.close()
    assert server.end() == 0


def test_stop(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page

    def without_end(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))

    page.route("**/v1/chat/completions", without_end)
    tab.ask("hello", 4000)
    expect(page.locator("#send")).to_have_attribute("aria-label", "Stop")
    expect(page.locator(".message.assistant .body")).not_to_be_empty()
    page.keyboard.press("Escape")
    tab.wait()
    expect(page.locator(".message.assistant .tools")).to_contain_text("stopped")


def test_an_error_is_shown(tab: Tab) -> None:
    tab.ask("hello " * 3000)
    tab.wait()
    playwright.expect(tab.page.locator(".message.fault .body")).to_contain_text("shorten the prompt by")
    assert any("400" in text for text in tab.complaints)  # the browser's own line about the status
    tab.complaints.clear()


def test_pictures_are_sent_and_their_rows_shown(browser: Any, tmp_path: Path) -> None:
    """Dropped or chosen; the tokens of the prompt show the rows; a model without a tower refuses by name."""
    expect = playwright.expect
    shutil.copy(FOLDER / "gemma3-mmproj.gguf", tmp_path / "mmproj.gguf")
    model = shutil.copy(FOLDER / "gemma3-text.gguf", tmp_path / "eye.gguf")
    options = {"engine": "cpu", "ctx_size": 128, "template": "chatml", "threads": 1}
    server = start_server([("eye", Path(model))], options=options)
    tab = Tab(browser, server, viewport=DESK)
    page = tab.page
    file = {"name": "a.ppm", "mimeType": "image/x-portable-pixmap", "buffer": picture()}
    page.set_input_files("#file", files=[file])
    expect(page.locator("#files .chip img")).to_have_attribute("alt", "a.ppm")
    expect(page.locator("#files .chip small")).to_contain_text("9 tokens")
    sent: list[Any] = []
    page.on("request", lambda r: sent.append(r.post_data_json) if r.url.endswith("/chat/completions") else None)
    tab.ask("what is it", 3)
    tab.wait()
    kinds = [part["type"] for part in sent[0]["messages"][-1]["content"]]
    assert kinds == ["image_url", "text"]
    expect(page.locator(".message.user .attached img")).to_have_count(1)
    expect(page.locator(".message.fault")).to_have_count(0)
    page.click("#tab-tokens")
    expect(page.locator(".piece", has_text="[image]")).to_have_count(9)
    page.click("#tab-layers")
    page.fill("#prompt", "a")
    page.check("#pictured")
    page.click("#trace button")
    expect(page.locator("#grid thead th", has_text="[image]")).to_have_count(9)
    expect(page.locator("#grid tbody tr")).not_to_have_count(0)
    page.reload()
    page.click("#tab-chat")
    expect(page.locator(".message.user .attached img")).to_have_count(1)
    assert tab.complaints == []
    page.close()
    assert server.end() == 0


def test_a_picture_for_a_model_without_a_tower(tab: Tab) -> None:
    file = {"name": "a.ppm", "mimeType": "image/x-portable-pixmap", "buffer": picture()}
    tab.page.set_input_files("#file", files=[file])
    tab.ask("what is it", 3)
    tab.wait()
    playwright.expect(tab.page.locator(".message.fault")).to_contain_text("images are not supported by this model")
    tab.complaints.clear()  # the browser's own line about the status


def test_files_are_sent_as_text(tab: Tab, tmp_path: Path) -> None:
    expect, page = playwright.expect, tab.page
    sent: list[Any] = []
    page.on("request", lambda r: sent.append(r.post_data_json) if r.url.endswith("/chat/completions") else None)
    (tmp_path / "notes.md").write_text("a ``` fence\nb é")
    (tmp_path / "archive.bin").write_bytes(b"\x89PNG\0\xff")
    page.set_input_files("#file", tmp_path / "archive.bin")
    expect(page.locator("#toast")).to_contain_text("archive.bin: is not a text file")
    page.set_input_files("#file", tmp_path / "notes.md")
    expect(page.locator("#files .chip")).to_have_text(re.compile(r"notes\.md"))
    tab.ask("what is in it", 4)
    tab.wait()
    assert sent[-1]["messages"][0]["content"] == "what is in it\n\nnotes.md:\n````\na ``` fence\nb é\n````"
    expect(page.locator(".message.user .body")).to_have_text("what is in it")
    expect(page.locator(".message.user summary")).to_have_text(re.compile(r"notes\.md, \d+ B"))
    expect(page.locator("#files .chip")).to_have_count(0)
    page.set_input_files("#file", tmp_path / "notes.md")
    page.click("#files button")
    expect(page.locator("#files .chip")).to_have_count(0)


def test_probabilities_stand_in_the_text(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello", 6)
    tab.wait()
    page.click(".inline")
    expect(page.locator(".inline")).to_have_attribute("aria-pressed", "true")
    tokens = page.locator(".message.assistant .prob")
    assert 1 <= tokens.count() <= 6
    tokens.first.focus()
    assert page.locator("#tip .bars b").count() >= 5


def test_touching_a_token_shows_its_alternatives(browser: Any, chatty: Server) -> None:
    tab = Tab(browser, chatty, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page = tab.page
    tab.ask("hello", 6)
    tab.wait()
    page.locator(".inline").tap()
    page.locator(".message.assistant .prob").first.tap()
    playwright.expect(page.locator("#tip")).to_be_visible()
    page.locator("#input").tap()
    playwright.expect(page.locator("#tip")).to_be_hidden()
    assert tab.complaints == []
    page.close()


def test_the_theme_is_kept(tab: Tab) -> None:
    page = tab.page
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after
