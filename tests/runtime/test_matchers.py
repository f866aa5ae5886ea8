"""Grammars are matched in processes of their own: a slow one ends with an error, and no other sequence waits for it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.errors import AssayError
from assay.runtime.generate import Generator
from assay.runtime.matchers import Matcher
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.scheduler import Scheduler
from assay.runtime.sequence import Job, Update
from assay.runtime.sequence_errors import GrammarError
from assay.runtime.speculation import Speculator
from assay.runtime.worker import Worker
from tests import tiny
from tests.waiting import wait_until

pytest.importorskip("llguidance")
# Every text has very many derivations: each further token takes longer than the one before.
AMBIGUOUS = "root ::= s\ns ::= " + " | ".join("s " * k for k in range(2, 14)) + ' | [a-z ] | ""'
WORDS = 'root ::= word (" " word){40,60}\nword ::= [a-f] [a-z] [a-z] | "the" | "1" [0-9]* "."'
LIVELY = SamplerParams(temp=1.3, top_k=0, top_p=1.0, min_p=0.0, seed=11)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_model(tiny.make(tmp_path_factory.mktemp("match") / "tiny.gguf", n_ctx=512), OpenOptions(cache_size=0))


def children(pid: int) -> list[int]:
    """All processes that descend from one."""
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return []
    return [found for child in map(int, direct) for found in (child, *children(child))]


def test_a_slow_grammar_ends_and_an_honest_stream_does_not_wait(opened: Opened) -> None:
    scheduler = Scheduler(opened.engine(scheduled=True), opened.tokenizer, n_ctx=opened.n_ctx)
    worker = Worker(scheduler)
    slow: list[Update] = []
    honest: list[Update] = []
    over = threading.Event()
    tokens_meanwhile = 0

    def note(update: Update) -> None:
        nonlocal tokens_meanwhile
        slow.append(update)
        if update.finish:
            tokens_meanwhile = len(honest)
            over.set()

    prompt = tuple(opened.tokenizer.encode("hello the world"))
    hostile = opened.grammars.gbnf(AMBIGUOUS)
    free = Job(prompt, GREEDY, 400, ignore_eos=True)
    worker.submit([Job(prompt, LIVELY, 400, constraint=hostile, ignore_eos=True)], [note])
    worker.submit([free], [honest.append])
    assert over.wait(600)  # the grammar's budget is processor time, which other tests may take
    wait_until(lambda: bool(honest and honest[-1].finish), 120)
    assert slow[-1].finish == "error" and isinstance(slow[-1].error, GrammarError)
    assert "grammar: takes too long (more than 1 s of processor time for a token" in str(slow[-1].error)
    assert 1 < len(slow) < 40
    assert tokens_meanwhile > 4 * len(slow), "the honest stream went on while masks were computed"
    alone: list[Update] = []
    worker.submit([free], [alone.append])
    wait_until(lambda: bool(alone and alone[-1].finish), 60)
    assert [update.choice for update in honest] == [update.choice for update in alone]
    worker.stop(AssayError("done"))
    worker.join()
    scheduler.pages.check()
    scheduler.close()


class Late(Matcher):
    """A matcher whose answers seem to be on their way for a while."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rng = random.Random(5)

    def masked(self) -> bool:
        return super().masked() and self._rng.random() < 0.4

    def settled(self) -> bool:
        return super().settled() and self._rng.random() < 0.4


def run(opened: Opened, make: Callable[[], Any], *, speculator: Speculator | None = None) -> list[Any]:
    """Four constrained answers and a free one, computed together."""
    engine = opened.engine()
    generator = Generator(engine, opened.tokenizer, n_ctx=opened.n_ctx, speculator=speculator)
    prompt = opened.tokenizer.encode("hello the world")
    work = [
        generator.generate(prompt, SamplerParams(temp=1.3, seed=i), max_tokens=40, constraint=make, logprobs=1)
        for i in range(4)
    ]
    work.append(generator.generate(prompt, GREEDY, max_tokens=60, ignore_eos=True))
    done = [one.result for one in generator.together(work)]
    generator.pages.check()
    engine.close()
    return [(result.ids, result.text, result.finish_reason, result.logprobs) for result in done]


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafts"])
def test_a_late_mask_changes_no_token(opened: Opened, drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make = opened.grammars.gbnf(WORDS)
    expected = run(opened, make)
    monkeypatch.setattr("assay.runtime.grammar.Matcher", Late)
    monkeypatch.setattr("assay.runtime.scheduler._GRACE_SECONDS", 0.0)
    assert run(opened, make, speculator=Speculator() if drafts else None) == expected


def test_preempted_sequences_keep_their_place_in_the_grammar(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has room for two of five sequences: they are preempted, some while they wait for a mask."""
    make = opened.grammars.gbnf(WORDS)
    expected = run(opened, make)
    small = open_model(opened.file.path, OpenOptions(ctx_size=96, cache_size=0))
    monkeypatch.setattr("assay.runtime.grammar.Matcher", Late)
    monkeypatch.setattr("assay.runtime.scheduler._GRACE_SECONDS", 0.0)
    found = run(small, make)
    assert [row[0][:40] for row in found] == [row[0][:40] for row in expected]


def test_a_sequence_may_wait_for_its_turn(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an answer counts from the question, not from the arrival of the request."""
    make = opened.grammars.gbnf(WORDS)
    matcher = make()
    time.sleep(0.3)
    monkeypatch.setattr("assay.runtime.matchers._ANSWER_S", 0.2)
    matcher.start()
    matcher.masked()
    monkeypatch.undo()
    wait_until(matcher.masked)
    matcher.close()


def test_an_answer_that_was_given_whole_ends_at_once(opened: Opened) -> None:
    make = opened.grammars.gbnf('root ::= "the" [a-c]')
    generator = Generator(opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)
    prompt = opened.tokenizer.encode("hello")
    whole = generator.generate(prompt, LIVELY, constraint=make).run()
    assert whole.finish_reason == "grammar"
    for cut in range(len(whole.ids) + 1):
        rest = generator.generate(prompt, LIVELY, constraint=make, answered=whole.ids[:cut]).run()
        assert rest.ids == whole.ids[cut:] and rest.finish_reason == "grammar"
    with pytest.raises(AssayError, match="grammar: "):
        generator.generate(prompt, LIVELY, constraint=make, answered=[*whole.ids, whole.ids[0]]).run()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_processes_end_with_their_answers_and_are_replaced(opened: Opened) -> None:
    make = opened.grammars.gbnf(WORDS)
    processes = opened.grammars._processes
    assert processes and processes._process
    root = processes._process.pid
    generator = Generator(opened.engine(), opened.tokenizer, n_ctx=opened.n_ctx)
    prompt = opened.tokenizer.encode("hello")
    before = set(children(root))  # some may belong to earlier tests, and end at any time
    work = generator.generate(prompt, LIVELY, max_tokens=40, constraint=make)
    events = iter(work)
    next(events)
    own = set(children(root)) - before
    assert len(own) == 1
    list(events)
    wait_until(lambda: not own & set(children(root)), 20)
    killed = generator.generate(prompt, LIVELY, max_tokens=40, constraint=make)
    events = iter(killed)
    next(events)
    ended = children(root)
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(AssayError, match="grammar: takes too long"):
        list(events)
    wait_until(lambda: not set(ended) & set(children(root)), 20)
    again = opened.grammars.gbnf(WORDS)
    assert generator.generate(prompt, LIVELY, max_tokens=40, constraint=again).run().ids == work.result.ids
    os.kill(root, signal.SIGKILL)
    wait_until(lambda: processes._process is None or processes._process.poll() is not None, 20)
    other = opened.grammars.gbnf(WORDS + " ")
    assert generator.generate(prompt, LIVELY, max_tokens=40, constraint=other).run().ids == work.result.ids


def test_threads_stand_in_where_no_process_can_be_copied(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(opened, opened.grammars.gbnf(WORDS))
    fresh = open_model(opened.file.path, OpenOptions(cache_size=0))
    monkeypatch.delattr(os, "fork")
    assert run(fresh, fresh.grammars.gbnf(WORDS)) == expected
    with pytest.raises(GrammarError, match="takes too long"):
        work = Generator(fresh.engine(), fresh.tokenizer, n_ctx=fresh.n_ctx).generate(
            fresh.tokenizer.encode("hello"), LIVELY, constraint=fresh.grammars.gbnf(AMBIGUOUS), ignore_eos=True
        )
        work.run()
