"""Conversations in a real Chromium: kept, edited, searched, renamed, exported, deleted, restored; sheets on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import Server
from tests.serve.page.conftest import PHONE, Tab

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
pytestmark = pytest.mark.slow


def test_conversations_survive_are_edited_exported_and_deleted(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello the world", 4)
    tab.wait()
    answer = page.locator(".message.assistant .body").inner_text()
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    assert page.locator(".message.assistant .body").inner_text() == answer
    page.locator(".message.user").hover()
    page.click(".edit")
    page.fill(".editing textarea", "something else")
    page.click(".editing button[type=submit]")
    tab.wait()
    expect(page.locator(".message.user .body")).to_have_text("something else")
    page.locator(".message.user").hover()
    page.locator(".message.user [aria-label='Previous version']").click()
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    assert page.locator(".message.assistant .body").inner_text() == answer
    page.click("#gear")
    with page.expect_download() as download:
        page.click("#export")
    page.keyboard.press("Escape")
    kept = json.loads(Path(download.value.path()).read_text())
    assert [m["role"] for m in kept["messages"]] == ["user", "assistant"]
    assert len(kept["conversation"]["nodes"]) == 4
    page.click("#clear")
    expect(page.locator(".message")).to_have_count(0)
    tab.ask("a second one", 4)
    tab.wait()
    rows = page.locator(".talk")
    expect(rows).to_have_count(2)
    page.locator(".talk.current").hover()
    page.locator(".talk.current .delete").click()
    expect(rows).to_have_count(1)
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    page.locator(".toast button").click()
    expect(page.locator(".message.user .body")).to_have_text("a second one")
    expect(rows).to_have_count(2)
    page.locator(".talk.current").hover()
    page.locator(".talk.current .delete").click()
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)


def test_on_a_phone_a_message_is_edited_within_the_screen_and_escape_gives_it_back(
    browser: Any, chatty: Server
) -> None:
    expect = playwright.expect
    tab = Tab(browser, chatty, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    page = tab.page
    tab.ask("hello the world", 4)
    tab.wait()
    edit = page.locator(".message.user .edit")
    edit.click()
    field = page.locator(".editing textarea")
    field.fill("half typed")
    box = field.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360
    assert page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.querySelector('#messages'))") == 0
    edit.click()
    expect(field).to_have_value("half typed")
    field.press("Escape")
    expect(page.locator(".editing")).to_have_count(0)
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    expect(edit).to_be_focused()
    assert tab.complaints == []
    page.close()


def test_an_answer_stays_in_its_conversation_when_another_is_opened(tab: Tab) -> None:
    """It is stopped and kept there; of a conversation that is deleted nothing comes back."""
    expect, page = playwright.expect, tab.page

    def without_end(route: Any) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))

    page.route("**/v1/chat/completions", without_end)
    tab.ask("hello the world", 4000)
    expect(page.locator(".message.assistant .body")).not_to_be_empty()
    page.locator(".talk.current .open").click()  # the open one: goes on
    expect(page.locator("#send")).to_have_attribute("aria-label", "Stop")
    page.click("#clear")
    tab.wait()
    expect(page.locator(".message")).to_have_count(0)
    page.locator(".talk .open").click()
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message.assistant .tools")).to_contain_text("stopped")
    page.click("#clear")
    tab.ask("a second one", 4000)
    expect(page.locator(".message.assistant .body")).not_to_be_empty()
    page.locator(".talk.current").hover()
    page.locator(".talk.current .delete").click()
    tab.wait()
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    expect(page.locator(".message")).to_have_count(2)
    page.reload()
    expect(page.locator(".talk")).to_have_count(1)


def test_search_and_rename(tab: Tab) -> None:
    expect, page = playwright.expect, tab.page
    tab.ask("hello the world", 4)
    tab.wait()
    page.click("#clear")
    tab.ask("another", 4)
    tab.wait()
    page.fill("#search", "THE WORLD")
    expect(page.locator(".talk")).to_have_count(1)
    page.fill("#search", "nobody said this")
    expect(page.locator("#conversations")).to_contain_text("No conversation has these words")
    page.fill("#search", "")
    page.locator(".talk", has_text="hello").locator(".open").focus()
    page.keyboard.press("Tab")  # to Rename
    page.keyboard.press("Enter")
    page.keyboard.type("My talk")
    page.keyboard.press("Enter")
    expect(page.locator(".talk", has_text="My talk")).to_have_count(1)
    page.locator(".talk", has_text="My talk").locator(".open").click()
    expect(page.locator(".message.user .body")).to_have_text("hello the world")
    page.reload()
    expect(page.locator(".talk.current .open")).to_have_text("My talk")


def test_on_a_phone_conversations_and_settings_are_sheets_and_the_tabs_a_bar_below(
    browser: Any, chatty: Server
) -> None:
    expect = playwright.expect
    tab = Tab(browser, chatty, viewport=PHONE, has_touch=True, is_mobile=True)
    page = tab.page
    tab.ask("hello the world", 4)
    tab.wait()
    bar = page.locator(".tabs").bounding_box()
    assert bar["y"] + bar["height"] == pytest.approx(PHONE["height"], abs=2)
    expect(page.locator("#history")).to_be_hidden()
    page.locator("#menu").tap()
    expect(page.locator("#drawer .talk")).to_have_count(1)
    page.locator("#drawer #clear").tap()
    expect(page.locator("#drawer")).to_be_hidden()
    expect(page.locator("#welcome")).to_be_visible()
    page.locator("#tab-tokens").tap()
    page.locator("#menu").tap()
    page.locator("#drawer .talk .open").tap()
    expect(page.locator(".message.user .body")).to_have_text("hello the world")  # and the chat is open again
    page.locator("#menu").tap()
    page.locator("#drawer .talk .delete").tap()
    expect(page.locator("#drawer .talk")).to_have_count(0)
    page.locator(".toast button").tap()  # Undo is reached although the sheet is open
    expect(page.locator("#drawer .talk")).to_have_count(1)
    page.keyboard.press("Escape")
    page.locator("#gear").tap()
    sheet = page.locator("#settings").bounding_box()
    assert sheet["y"] > 0 and sheet["y"] + sheet["height"] == pytest.approx(PHONE["height"], abs=2)
    page.locator("#settings [data-close]").tap()
    expect(page.locator("#settings")).to_be_hidden()
    assert tab.complaints == []
    page.close()


def test_conversations_of_an_older_page_are_listed(browser: Any, chatty: Server) -> None:
    """The first form of the store had conversations alone; the list is made from them once."""
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{chatty.url}/health")
    page.evaluate(
        """() => new Promise(done => {
          const asked = indexedDB.open('assay', 1);
          asked.onupgradeneeded = () => asked.result.createObjectStore('conversations', { keyPath: 'id' });
          asked.onsuccess = () => {
            const nodes = { a: { id: 'a', parent: null, role: 'user', content: 'An old question' },
              b: { id: 'b', parent: 'a', role: 'assistant', content: 'An *old* answer', facts: ['9.1 tokens/s'] } };
            const talk = { id: 'old', title: 'Old talk', changed: 1, nodes, leaf: 'b' };
            const put = asked.result.transaction('conversations', 'readwrite').objectStore('conversations').put(talk);
            put.onsuccess = () => { asked.result.close(); done(); };
          };
        })"""
    )
    page.goto(chatty.url)
    playwright.expect(page.locator(".talk .open")).to_have_text("Old talk")
    page.fill("#search", "QUESTION")
    page.locator(".talk .open").click()
    playwright.expect(page.locator(".message.assistant em")).to_have_text("old")
    page.locator(".speed").click()
    playwright.expect(page.locator(".figures")).to_contain_text("9.1 tokens/s")
    context.close()
