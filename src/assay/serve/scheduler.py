"""Continuous batching: one thread runs one engine, step after step, for every sequence at once.

A step takes the next token of every sequence that decodes and at most one chunk of prompt tokens, so a long
prompt delays nobody by more than a chunk. Sequences start in the order of arrival. When the cache is full the
youngest gives its pages back and goes to the front of the queue; later its prompt and answer are computed again.
Because the engine gives the same bits however a sequence is cut into steps and whoever shares them, neither
batching nor chunks nor preemption nor the prefix cache change a token.

Other threads only `submit`, `cancel` and `stop`; everything else belongs to the scheduler's own thread. What it
has to tell is handed to `post` once a step: `[(sink, update), …]`.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

from assay.engines.base import PAGE, Array, Chunk, Output, PagedEngine
from assay.errors import AssayError
from assay.runtime.pages import OutOfPages, Pages
from assay.runtime.sampler import Choice, sample, scores
from assay.serve.errors import ApiError
from assay.serve.limits import Limits
from assay.serve.meter import Meter
from assay.serve.sequence import Job, Sequence, Sink, Update
from assay.text import Tokenizer

Batch = list[tuple[Sink, Update]]
log = logging.getLogger("assay.serve")
REST = 1.0  # seconds without work after which freed memory goes back to the system


def deliver(batch: Batch) -> None:
    """The simplest `post`: on the scheduler's thread."""
    for sink, update in batch:
        sink(update)


def give_back() -> None:
    """Freed memory to the system: the C library keeps what large requests held, and does not say for how long."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


class Scheduler:
    """Submit jobs from any thread; their sinks get updates until one that finishes."""

    def __init__(
        self,
        engine: PagedEngine,
        tokenizer: Tokenizer,
        *,
        n_ctx: int | None = None,
        limits: Limits | None = None,
        meter: Meter | None = None,
        post: Callable[[Batch], None] = deliver,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.limits = limits or Limits()
        self.meter = meter or Meter()
        self.pages = Pages(engine.n_pages, copy=engine.copy_page)
        self.n_ctx = min(n_ctx or self.pages.capacity, self.pages.capacity)
        self._post = post
        self._batch: Batch = []
        self._running: list[Sequence] = []  # by arrival
        self._waiting: deque[Sequence] = deque()
        # Shared with other threads, under the lock:
        self._wake = threading.Condition()
        self._inbox: list[Sequence] = []
        self._live = 0
        self._attention = False  # somebody was cancelled
        self._stop: ApiError | None = None
        self._thread = threading.Thread(target=self._run, name="assay-engine", daemon=True)
        self._thread.start()

    # --- from any thread

    def submit(self, jobs: Seq[Job], sinks: Seq[Sink]) -> list[Sequence]:
        """All of them or, when the queue has no room, none."""
        sequences = [Sequence(job, self.tokenizer, sink) for job, sink in zip(jobs, sinks, strict=True)]
        with self._wake:
            if self._stop:
                raise self._stop
            room = self.limits.running + self.limits.waiting - self._live
            if len(sequences) > room:
                raise ApiError(
                    "rate_limit_exceeded",
                    f"the queue is full ({self._live} requests running or waiting); try again later",
                    headers={"Retry-After": str(self._retry_after())},
                )
            self._live += len(sequences)
            self._inbox += sequences
            self._wake.notify()
        return sequences

    def cancel(self, sequences: Seq[Sequence]) -> None:
        """Free what they hold, at the latest after the step under way. Finished ones are left alone."""
        with self._wake:
            for sequence in sequences:
                sequence.cancelled = True
            self._attention = True
            self._wake.notify()

    def stop(self, error: ApiError) -> None:
        """End everything that is not finished with `error`, and the thread."""
        with self._wake:
            self._stop = self._stop or error
            self._wake.notify()

    def join(self) -> None:
        self._thread.join()

    @property
    def load(self) -> tuple[int, int]:
        """How many run and how many wait."""
        return len(self._running), max(self._live - len(self._running), 0)

    def _retry_after(self) -> int:
        return max(1, min(60, round(self.meter.seconds_per_request * self._live / self.limits.running)))

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                rest: float | None = REST
                while not (self._inbox or self._running or self._waiting or self._attention or self._stop):
                    if not self._wake.wait(rest):
                        give_back()
                        rest = None
                arrived, self._inbox = self._inbox, []
                self._attention = False
                stop = self._stop
            self._waiting.extend(arrived)
            if stop:
                for sequence in (*self._running, *self._waiting):
                    self._finish(sequence, "error", error=stop)
                self._flush()
                return
            try:
                self._reap()
                self._step()
            except Exception as error:  # whatever it was, nobody is left waiting for an answer
                log.exception("a step failed")
                for sequence in list(self._running) or list(self._waiting):
                    self._finish(sequence, "error", error=ApiError("internal_error", f"the engine failed: {error}"))
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            try:
                self._post(batch)
            except RuntimeError:  # the event loop is gone, and with it everybody who listened
                log.debug("nobody listens")
        self.meter.state(*self.load, self.pages)

    def _reap(self) -> None:
        """Let go of those whose client went away or whose time is up."""
        now = time.monotonic()
        for sequence in (*self._running, *self._waiting):
            if sequence.cancelled:
                self._finish(sequence, "cancelled")
            elif now > sequence.job.deadline:
                took = now - sequence.times.arrived
                message = f"the request took longer than it may ({took:.1f} s, {sequence.generated} tokens generated)"
                self._finish(sequence, "error", error=ApiError("deadline_exceeded", message))

    def _step(self) -> None:
        plan = self._plan()
        chunks = {
            sequence: Chunk(sequence.part(n), sequence.computed, sequence.lease.pages, sequence.outputs(n))
            for sequence, n in plan.items()
            if sequence.lease
        }
        started = time.monotonic()
        together = [sequence for sequence in chunks if not sequence.job.keep]
        outputs: list[tuple[Sequence, Output]] = []
        if together:
            outputs += zip(together, self.engine.forward([chunks[s] for s in together]), strict=True)
        for sequence in chunks:
            if sequence.job.keep:  # by itself: its nodes, and its faults, are nobody else's business
                try:
                    outputs.append((sequence, self.engine.forward([chunks[sequence]], sequence.job.keep)[0]))
                except AssayError as error:
                    self._finish(sequence, "error", error=ApiError("invalid_value", str(error)))
        computed = time.monotonic()
        for sequence, output in outputs:
            try:
                self._advance(sequence, plan[sequence], output)
            except AssayError as error:  # NaN logits, a bias that forbids everything, a grammar at its limit
                self._finish(sequence, "error", error=ApiError("internal_error", str(error)))
        if plan:
            self.meter.step(sum(plan.values()), len(plan), computed - started, time.monotonic() - computed)

    # --- who computes what in the next step

    def _plan(self) -> dict[Sequence, int]:
        """How many tokens of each sequence to compute; room for them is reserved."""
        plan: dict[Sequence, int] = {}
        for sequence in list(self._running):
            if sequence.pending == 1 and sequence in self._running and not self._reserve(sequence, 1, plan):
                self._preempt(sequence, plan)
        budget = self.limits.chunk
        for sequence in list(self._running):
            n = self._share(sequence, budget)
            if n and sequence.pending > 1 and sequence in self._running:
                budget -= n * self._reserve(sequence, n, plan)
        while budget and self._waiting and len(self._running) < self.limits.running:
            sequence = self._waiting[0]
            if not self._share(sequence, budget) or not self._admit(sequence, plan):
                break
            self._waiting.popleft()
            n = self._share(sequence, budget)
            budget -= n * self._reserve(sequence, n, plan)
        return plan

    def _share(self, sequence: Sequence, budget: int) -> int:
        """How much of the step's budget it takes. A probe waits for a whole chunk rather than be cut smaller; a
        prompt that is scored takes less, for every row of it costs a pass over the vocabulary."""
        if sequence.job.keep and budget < min(sequence.pending, self.limits.chunk):
            return 0
        scored = sequence.job.prompt_logprobs is not None
        return min(sequence.pending, budget, max(self.limits.chunk // 4, 1) if scored else budget)

    def _reserve(self, sequence: Sequence, n: int, plan: dict[Sequence, int]) -> bool:
        """Room for n more tokens, if need be at the cost of younger sequences."""
        assert sequence.lease
        while True:
            try:
                self.pages.reserve(sequence.lease, n)
                plan[sequence] = n
                return True
            except OutOfPages:
                youngest = self._running[-1]
                if youngest is sequence:
                    return False
                self._preempt(youngest, plan)

    def _preempt(self, sequence: Sequence, plan: dict[Sequence, int]) -> None:
        """Back to the front of the queue. Tokens, random state and text so far stay; only the cache is given up."""
        assert sequence.lease
        self.pages.close(sequence.lease)
        sequence.lease = None
        sequence.prompt_choices.clear()
        sequence.nodes.clear()
        sequence.preempted += 1
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)
        plan.pop(sequence, None)
        self.meter.preempted()

    def _admit(self, sequence: Sequence, plan: dict[Sequence, int]) -> bool:
        """Start it, unless the cache has too little room, or this very step computes a prefix it could share."""
        fresh = sequence.job.prompt_logprobs is not None or sequence.job.keep  # all rows are wanted
        lease = self.pages.open([] if fresh else sequence.ids)
        needed = -(-(len(sequence.ids) + 1) // PAGE) - lease.n_pages
        spare = len(self._running)  # each of them may want another page soon
        if (self._running and needed + spare > self.pages.available) or self._twin(sequence, lease.length, plan):
            self.pages.close(lease)
            return False
        sequence.lease = lease
        if not sequence.times.admitted:
            sequence.times.admitted = time.monotonic()
            sequence.cached = min(lease.length, sequence.n_prompt)
        at = len(self._running)  # a preempted one comes back to its place among its elders
        while at and self._running[at - 1].times.arrived > sequence.times.arrived:
            at -= 1
        self._running.insert(at, sequence)
        return True

    def _twin(self, sequence: Sequence, start: int, plan: dict[Sequence, int]) -> bool:
        """Whether another sequence of this step completes the page that this one would compute first."""
        end = start - start % PAGE + PAGE
        if end >= len(sequence.ids):
            return False
        return any(
            other.computed < end <= other.computed + n and other.ids[:end] == sequence.ids[:end]
            for other, n in plan.items()
        )

    # --- what came of it

    def _advance(self, sequence: Sequence, n: int, output: Output) -> None:
        assert sequence.lease
        start = sequence.computed
        self.pages.commit(sequence.lease, sequence.ids[start : start + n])
        for name, value in output.nodes.items():
            sequence.nodes.setdefault(name, []).append(value)
        if sequence.job.prompt_logprobs is not None and start < sequence.n_prompt:
            self._score_prompt(sequence, start, output.logits)
        if sequence.pending:
            return
        if sequence.job.max_tokens == 0:
            self._finish(sequence, "length")
        else:
            self._draw(sequence, output.logits[-1])

    def _score_prompt(self, sequence: Sequence, start: int, logits: Array) -> None:
        top = sequence.job.prompt_logprobs or 0
        for row, token in zip(logits, sequence.ids[start + 1 : sequence.n_prompt], strict=False):
            sequence.prompt_choices.append(scores(row, token, top))

    def _draw(self, sequence: Sequence, logits: Array) -> None:
        """The next token, and whether it is the last."""
        job, constraint = sequence.job, sequence.constraint
        allowed = constraint.mask(logits) if constraint else logits
        token = sample(allowed, sequence.ids, job.params, sequence.rng).id
        choice = Choice(token) if job.logprobs is None else scores(logits, token, job.logprobs)
        if constraint:
            constraint.accept(token)
        sequence.ids.append(token)
        now = time.monotonic()
        self.meter.token(sequence, now)
        sequence.times.first = sequence.times.first or now
        sequence.times.last = now
        ended = token in self.tokenizer.eog and not job.ignore_eos
        text = sequence.stops.push("" if ended else sequence.detokenizer.push(token))
        if ended or sequence.stops.found is not None or (constraint and constraint.complete):
            self._finish(sequence, "stop", choice, text)
        elif sequence.generated >= job.max_tokens or len(sequence.ids) > self.n_ctx:
            self._finish(sequence, "length", choice, text)
        else:
            self._batch.append((sequence.sink, Update(choice, text)))

    def _finish(
        self,
        sequence: Sequence,
        reason: str,
        choice: Choice | None = None,
        text: str = "",
        error: ApiError | None = None,
    ) -> None:
        if sequence.lease:
            self.pages.close(sequence.lease)
            sequence.lease = None
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        if sequence.stops.found is None and reason in ("stop", "length"):
            text += sequence.stops.push(sequence.detokenizer.flush()) + sequence.stops.flush()
        with self._wake:
            self._live -= 1
        sequence.finished = True
        self.meter.finished(sequence, reason)
        self._batch.append((sequence.sink, Update(choice, text, reason, error)))
