"""The box: what runs inside can compute and answer, and nothing else."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.system import box as module
from assay.system.box import LIMITS, Box
from assay.system.fair_queue import CLIENT

PROBER = Path(__file__).with_name("prober.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    made = Box("template", PROBER)
    yield made
    made.stop()


def test_plain_data_goes_in_and_out(box: Box) -> None:
    value = {"text": "é\ud800\n", "list": [1, 2.5, None, True], "deep": {"a": {"b": []}}}
    assert box.ask({"try": "echo", "with": [value]}) == {"value": value}


def test_the_environment_is_empty(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    box.stop()
    assert set(box.ask({"try": "environment"})["value"]) <= {"SYSTEMROOT", "TZ", "LC_CTYPE"}  # the last is Python's own


def test_no_descriptor_is_inherited(box: Box, tmp_path: Path) -> None:
    with open(tmp_path / "open", "w") as held:
        os.set_inheritable(held.fileno(), True)
        box.stop()
        assert box.ask({"try": "descriptors"}) == {"value": [0, 1, 2]}


@linux
@pytest.mark.parametrize("what", ["read", "write", "list", "unlink", "mkdir", "chmod", "link", "rename", "exec"])
def test_the_file_system_is_out_of_reach(box: Box, tmp_path: Path, what: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    os.chmod(victim, 0o644)
    target = {"list": tmp_path, "mkdir": tmp_path / "new", "link": tmp_path / "new", "exec": Path("/bin/true")}
    arguments = [str(target.get(what, victim))] + [str(tmp_path / "moved")] * (what == "rename")
    assert "refused" in box.ask({"try": what, "with": arguments})
    assert victim.read_text() == "here" and victim.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [victim]


@linux
@pytest.mark.parametrize("what", [["fork"], ["socket"], ["pair"], ["kill", os.getpid()]])
def test_no_process_and_no_network(box: Box, what: list[object]) -> None:
    assert "refused" in box.ask({"try": what[0], "with": what[1:]})


def test_too_much_memory_is_an_answer(box: Box) -> None:
    reply = box.ask({"try": "grow", "with": [1 << 20]})
    assert reply["fault"] == "memory"
    assert box.ask({"try": "echo", "with": [1]}) == {"value": 1}


def test_no_end_is_the_clocks_business(box: Box) -> None:
    started = time.monotonic()
    assert box.ask({"try": "spin"}, seconds=1.0) == {"fault": "time"}
    assert time.monotonic() - started < 5
    assert box.ask({"try": "echo", "with": [2]}) == {"value": 2}


def test_a_death_is_an_answer_and_the_next_request_finds_a_new_process(box: Box) -> None:
    assert box.ask({"try": "die"}) == {"fault": "died"}
    assert box.ask({"try": "echo", "with": [3]}) == {"value": 3}


def test_a_flood_of_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "template", replace(LIMITS["template"], reply=1000))
    small = Box("template", PROBER)
    assert small.ask({"try": "flood", "with": [5000]}) == {"fault": "died"}
    assert small.ask({"try": "flood", "with": [500]}) == {"value": "x" * 500}
    small.stop()


def test_who_waits_for_a_busy_box_does_not_wait_for_ever() -> None:
    impatient = Box("archive", PROBER)  # one process
    impatient.limits = replace(impatient.limits, wait=0.5)
    spinning = threading.Thread(target=impatient.ask, args=({"try": "spin"}, 3.0))
    impatient.ask({"try": "echo", "with": [0]})
    spinning.start()
    time.sleep(0.2)
    started = time.monotonic()
    assert impatient.ask({"try": "echo", "with": [1]}) == {"fault": "busy"}
    assert time.monotonic() - started < 2.5
    spinning.join()
    assert impatient.ask({"try": "echo", "with": [1]}) == {"value": 1}
    impatient.stop()


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setitem(LIMITS, "template", replace(LIMITS["template"], processes=1, quick=0.3, line=4, wait=60))
    made = Box("template", PROBER)
    yield made
    made.stop()


def in_thread(client: str, ask: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    """The answer to `ask`, asked for a client in a thread of its own."""
    found: Future[dict[str, Any]] = Future()

    def work() -> None:
        CLIENT.set(client)
        found.set_result(ask())

    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
    return found


def test_slow_requests_do_not_hold_up_quick_ones(lanes: Box) -> None:
    """Three spin for four seconds each: another client's request is answered before the first of them ends."""
    lanes.ask({"try": "echo", "with": [0]})
    slow = [in_thread("a", lambda i=i: lanes.ask({"try": "spin", "with": [i]}, 4.0)) for i in range(3)]  # type: ignore[misc]
    time.sleep(0.1)
    quick = in_thread("b", lambda: lanes.ask({"try": "echo", "with": [1]}))
    assert quick.result(60) == {"value": 1}
    assert not any(found.done() for found in slow), "they must still run for this to mean anything"
    lanes.stop()


def test_a_slow_request_is_answered_in_the_slow_lane(lanes: Box) -> None:
    assert lanes.ask({"try": "nap", "with": [0.6]}, 5.0) == {"value": "awake"}


def test_starting_is_not_time_of_the_request(lanes: Box) -> None:
    """The process needs longer to start than the quick lane allows; it is not killed for that."""
    assert lanes.ask({"try": "echo", "with": [1]}, 0.3) == {"value": 1}


def test_equal_requests_at_once_are_computed_once(lanes: Box) -> None:
    first = in_thread("a", lambda: lanes.ask({"try": "count_after", "with": [0.2]}))
    second = in_thread("b", lambda: lanes.ask({"try": "count_after", "with": [0.2]}))
    assert first.result(60) == second.result(60) == {"value": 1}
    assert lanes.ask({"try": "count_after", "with": [0.2]}) == {"value": 2}


def test_a_flood_loses_its_own_places(lanes: Box) -> None:
    """Four may wait. Who floods is refused first; another client finds a place."""
    lanes.ask({"try": "echo", "with": [0]})
    flood = [in_thread("a", lambda i=i: lanes.ask({"try": "nap", "with": [0.2, i]})) for i in range(12)]  # type: ignore[misc]
    time.sleep(0.1)
    other = in_thread("b", lambda: lanes.ask({"try": "echo", "with": [1]}))
    assert other.result(60) == {"value": 1}
    answers = [found.result(60) for found in flood]
    assert answers.count({"fault": "busy"}) >= 7 and {"value": "awake"} in answers


def test_every_box_has_its_limits() -> None:
    for limits in module.LIMITS.values():
        assert limits.memory <= 1536 << 20 and limits.seconds <= 60 and limits.cpu_s <= 60
