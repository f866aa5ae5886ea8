"""Progress: the code that works names stages, and the caller's listener shows them."""

from __future__ import annotations

import io
import json
import threading

import pytest

from assay.system import stages
from assay.system.stages import Callback, JsonLines, StageStep, each, note, reports, shown_by, stage, unseen


class Heard:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[StageStep] = []
        self.notes: list[str] = []
        self.ends = 0

    def step(self, step: StageStep) -> None:
        self.steps.append(step)

    def end(self) -> None:
        self.ends += 1

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_without_a_listener_nothing_happens() -> None:
    with stage("work", 3) as tell:
        tell(1)
    assert list(each("abc", "work")) == ["a", "b", "c"]
    note("text")
    unseen()


def test_the_first_and_the_last_step_arrive_however_fast_the_work_is() -> None:
    heard = Heard()
    with shown_by(heard), stage("work", 10_000, "nodes") as tell:
        for done in range(10_001):
            tell(done)
    assert heard.steps[0].done == 0 and heard.steps[-1].done == 10_000
    assert len(heard.steps) < 1000, "the steps between are thinned out"
    assert heard.steps[-1].amount == "10000 of 10000 nodes"


def test_a_stage_ends_when_the_work_fails() -> None:
    heard = Heard()
    with pytest.raises(ValueError, match="broken"), shown_by(heard), stage("work", 2):
        before = heard.ends
        raise ValueError("broken")
    assert heard.ends > before


def test_an_abandoned_loop_ends_its_stage() -> None:
    heard = Heard()
    with shown_by(heard):
        for _ in each(range(5), "work"):
            break
        assert heard.ends == 1


def test_the_listener_is_that_of_the_context() -> None:
    outer, inner = Heard(), Heard()
    with shown_by(outer):
        with shown_by(inner):
            note("inside")
        with shown_by(None):
            note("unheard")
        note("outside")
    assert (outer.notes, inner.notes) == (["outside"], ["inside"])


def test_threads_of_a_stage_tell_its_listener() -> None:
    heard = Heard()
    with shown_by(heard), stage("work", 2) as tell:
        thread = threading.Thread(target=tell, args=(2,))
        thread.start()
        thread.join()
    assert [step.done for step in heard.steps] == [0, 2]


def test_a_report_function_opens_a_stage_per_label() -> None:
    heard = Heard()
    with shown_by(heard), reports() as report:
        report("fetching", 1_000_000, 4_000_000)
        report("unpacking", 4_000_000, 4_000_000)
    assert [step.label for step in heard.steps] == ["fetching", "unpacking"]
    assert heard.steps[0].amount == "1 of 4 MB"
    told: list[tuple[str, int, int]] = []
    with shown_by(heard), reports(lambda *step: told.append(step)) as report:
        report("fetching", 1, 2)
    assert told == [("fetching", 1, 2)] and len(heard.steps) == 2, "a given function replaces the listener"


def test_a_callback_gets_notes_as_labels() -> None:
    told: list[tuple[str, int, int]] = []
    with shown_by(Callback(lambda *step: told.append(step))):
        note("2 nodes differ")
        with stage("work", 1) as tell:
            tell(1)
    assert told == [("2 nodes differ", 0, 0), ("work", 0, 1), ("work", 1, 1)]


def test_lines_of_a_child_process_are_json_and_few() -> None:
    out = io.StringIO()
    with shown_by(JsonLines(out)):
        note('a "note"\nof two lines')
        for _ in each(range(5000), "comparing", "nodes"):
            pass
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0] == {"event": "progress", "label": 'a "note"\nof two lines', "done": 0, "total": 0, "unit": ""}
    assert lines[1] == {"event": "progress", "label": "comparing", "done": 0, "total": 5000, "unit": "nodes"}
    assert len(lines) < 200


def test_what_is_left_is_estimated_from_what_is_done() -> None:
    assert StageStep("work", 25, 100, "", 10.0).left == pytest.approx(30.0)
    assert StageStep("work", 0, 100, "", 10.0).left is None
    assert StageStep("work", 5, 0, "", 10.0).left is None and StageStep("work", 5, 0).amount == ""
    assert StageStep("work", 1, 3, stages.PERCENT).amount == "33 %"
