"""Context shift: what stays, and that every token after it is that of a request with the tokens that stayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.runtime.context_shift import ContextShift
from assay.runtime.opening import Opened, OpenOptions, open_model
from assay.runtime.params import SamplerParams
from assay.runtime.scheduler import Scheduler, deliver
from assay.runtime.sequence import Job, Sequence, Update
from assay.runtime.speculation import Speculator
from tests import tiny
from tests.models import others

N_CTX = 64
LIVELY = SamplerParams(temp=1.4, top_k=0, top_p=1.0, min_p=0.0, seed=5)
PROMPT = tuple(range(3, 23))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = tiny.make(tmp_path_factory.mktemp("shift") / "tiny.gguf", window=24)
    return open_model(path, OpenOptions(ctx_size=N_CTX, cache_size=0))


@pytest.fixture(scope="module")
def engine(opened: Opened) -> PagedEngine:
    return opened.engine(scheduled=True)


def run(opened: Opened, engine: PagedEngine, *jobs: Job, **options: Any) -> list[tuple[Sequence, list[Update]]]:
    scheduler = Scheduler(engine, opened.tokenizer, n_ctx=N_CTX, chunk=16, **options)
    seen: list[list[Update]] = [[] for _ in jobs]
    made = [scheduler.make(job, news.append) for job, news in zip(jobs, seen, strict=True)]
    scheduler.add(made)
    while scheduler.busy:
        deliver(scheduler.step())
    scheduler.pages.check()
    assert not scheduler.pages._leases
    return list(zip(made, seen, strict=True))


def tokens(updates: list[Update]) -> list[int]:
    return [update.choice.id for update in updates if update.choice]


@pytest.mark.parametrize(
    ("shift", "n_prompt", "dropped"),
    [
        (ContextShift(), 20, (0, 32)),
        (ContextShift(keep=10, bos=True), 20, (11, 11 + 26)),
        (ContextShift(keep=-1, bos=True), 20, (20, 42)),
        (ContextShift(keep=5, discard=3), 20, (5, 8)),
        (ContextShift(keep=1000), 20, (60, 62)),
        (ContextShift(keep=5, discard=1000), 20, (5, 64)),
    ],
)
def test_what_a_full_context_drops(shift: ContextShift, n_prompt: int, dropped: tuple[int, int]) -> None:
    assert shift.dropped(n_prompt, 64) == dropped


@pytest.mark.parametrize("shift", [ContextShift(), ContextShift(keep=17), ContextShift(keep=-1, discard=30)])
def test_each_stretch_is_a_request_of_its_own(opened: Opened, engine: PagedEngine, shift: ContextShift) -> None:
    """Greedy: a new request, whose prompt are the tokens that stayed, gives the same tokens until its context is full.

    Others run beside it and alone; the numbers of tokens, and what stayed, are as told."""
    job = Job(PROMPT, max_tokens=130, shift=shift, ignore_eos=True)
    (sequence, updates), (_, plain) = run(opened, engine, job, Job(PROMPT[::-1], LIVELY, 30, ignore_eos=True))
    answer = tokens(updates)
    assert len(answer) == sequence.generated == 130
    assert updates[-1].finish == "length"
    assert len(tokens(plain)) == 30
    context, at = list(PROMPT), 0
    while at < len(answer):
        ((other, news),) = run(opened, engine, Job(tuple(context), max_tokens=None, ignore_eos=True))
        found = tokens(news)
        assert found[: len(answer) - at] == answer[at : at + len(found)]
        assert news[-1].finish == "context"
        start, end = shift.dropped(len(PROMPT), N_CTX)
        context, at = [*other.ids[:start], *other.ids[end:]], at + len(found)
    assert sequence.dropped > 0


def test_speculation_and_resuming_change_no_token(opened: Opened, engine: PagedEngine) -> None:
    """Drawn with random numbers, whose index goes on over the shifts."""
    job = Job(PROMPT, LIVELY, 150, shift=ContextShift(keep=4), ignore_eos=True)
    answer = tokens(run(opened, engine, job)[0][1])
    assert tokens(run(opened, engine, job, speculator=Speculator())[0][1]) == answer
    for cut in (40, 44, 45, 46, 120):
        given = Job(PROMPT, LIVELY, 150, shift=job.shift, ignore_eos=True, answered=tuple(answer[:cut]))
        assert tokens(run(opened, engine, given)[0][1]) == answer[cut:], cut


def test_without_it_the_answer_ends(opened: Opened, engine: PagedEngine) -> None:
    ((sequence, updates),) = run(opened, engine, Job(PROMPT, max_tokens=200, ignore_eos=True))
    assert updates[-1].finish == "context"
    assert sequence.generated == N_CTX + 1 - len(PROMPT)


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    others.make("mamba", path := tmp_path / "recurrent.gguf")
    with pytest.raises(AssayError, match=r"recurrent\.gguf: cannot shift its context: .* leave out --context-shift"):
        open_model(path, OpenOptions(context_shift=True))
