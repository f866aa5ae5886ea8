"""Continuous batching: every sequence at once through one engine, step after step.

A step takes the next token of every sequence that decodes and at most one chunk of prompt tokens, so a long
prompt delays nobody by more than a chunk. Prompts are computed and sequences started in fair shares: whose client and
whose request had least goes first (`shares.py`), and no request takes the last quarter of the places or of the cache
for more than one of its sequences. When the cache is full the youngest gives its pages back and goes to the front of
the queue; later its prompt and answer are computed again. Because the engine gives the same bits however a sequence is
cut into steps and whoever shares them, neither batching nor chunks nor preemption nor the prefix cache change a token.

The scheduler has no thread: whoever wants tokens calls `step`. `worker.py` gives it one, `generate.py` steps it in
the caller's. A step that is broken off by an exception has changed nothing that the next one does not repeat.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from assay.engines.contract import PAGE, Array, CacheLost, Chunk, Output, PagedEngine, pages_for
from assay.errors import AssayError
from assay.runtime.lookahead import Lookahead
from assay.runtime.pages import OutOfPages, Pages
from assay.runtime.prefix_keys import common
from assay.runtime.sampler import scores
from assay.runtime.sequence import Job, Progress, Sequence, Sink, Update
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, NoLogits
from assay.runtime.shares import Shares
from assay.text import Tokenizer

_WORTH_COPYING = PAGE // 2  # tokens in common for which a sequence waits a step
RUNNING = 64  # sequences that run at once in a library or an offline batch, unless told otherwise
_FOLLOW = 63  # most tokens that an engine goes on by itself
_AHEAD, _SPAN = 15, 0.02  # most of them that are begun ahead, and seconds: whoever comes meanwhile waits so long
_TELL = 0.04  # seconds after which they are told, at the latest: telling has its price
News = list[tuple[Sequence, Update]]


def deliver(news: News) -> None:
    """Each update to whom it concerns."""
    for sequence, update in news:
        sequence.sink(update)


class _Draw:
    """A sequence that was computed, and the tokens that come of it."""

    def __init__(self, sequence: Sequence, output: Output, n: int) -> None:
        self.sequence, self.output, self.n = sequence, output, n
        self.draft: list[int] = []
        self.drawn: list[Update] = []
        self.error: AssayError | None = None

    def next(self, i: int) -> bool:
        """Draw from row i of those that have a token to draw; whether there is another row to draw from."""
        output, draft = self.output, self.draft
        try:
            if output.best is None:
                row = output.logits[len(output.logits) - 1 - len(draft) + i]
            else:
                row = output.more[i - 1] if i else output.best
            self.drawn.append(update := self.sequence.draw(row))
        except AssayError as error:  # NaN logits, a bias that forbids everything, a grammar at its limit
            self.error = error
            return False
        if draft:
            return i < len(draft) and not update.finish and self.sequence.ids[-1] == draft[i]
        return i < len(output.more) and not update.finish


class Meter:
    """What a scheduler tells of its work. This one listens to nothing."""

    def step(self, n_tokens: int, n_sequences: int, engine_s: float, sampling_s: float) -> None: ...

    def state(self, running: int, waiting: int, pages: Pages) -> None: ...

    def preempted(self) -> None: ...

    def tokens(self, sequence: Progress, n: int, now: float) -> None:
        """So many came together; the sequence's times are still those of the ones before."""

    def guessed(self, tokens: int, right: int) -> None: ...

    def finished(self, sequence: Progress, reason: str) -> None: ...


class Scheduler:
    """Add jobs, call `step` while it is `busy`. Not for several threads at once."""

    def __init__(
        self,
        engine: PagedEngine,
        tokenizer: Tokenizer,
        *,
        n_ctx: int | None = None,
        running: int = RUNNING,
        chunk: int = 128,
        meter: Meter | None = None,
        lookahead: Lookahead | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.meter = meter or Meter()
        cuttable = engine.graph.state.cuttable  # else a wrong guess could not be taken back
        self.lookahead = lookahead if lookahead and engine.arithmetic.steady and cuttable else None
        self.pages = Pages.of(engine)
        self.n_ctx = min(n_ctx or self.pages.capacity, self.pages.capacity)
        self.most, self.chunk = running, min(chunk, self.pages.step)
        self.report: Callable[[News], None] | None = None  # hears what there is to tell while a step goes on
        self.wanted: Callable[[], bool] = lambda: False  # whether somebody waits for the end of a step
        self.computing = False  # whether the engine is at work this moment
        self.running: list[Sequence] = []  # by arrival
        self.waiting: deque[Sequence] = deque()
        self._shares = Shares()
        self._news: News = []
        self._pace = 0.0  # seconds of the last step that had nothing but next tokens

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self._news)

    def make(self, job: Job, sink: Sink) -> Sequence:
        """A sequence that can be added."""
        if not job.keep and not self.engine.graph.generates:
            raise NoLogits(self.engine.model.file.path.name)
        return Sequence(job, self.tokenizer, self.n_ctx, sink)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """To the end of the queue."""
        for sequence in sequences:
            self.waiting.append(sequence)
            self._shares.enter(sequence)
            if sequence.over:
                text, reason = sequence.over
                self._finish(sequence, Update(None, text, reason))

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """Free what they hold. Finished ones are left alone."""
        for sequence in sequences:
            if not sequence.finished:
                self._finish(sequence, Update(None, sequence.rest(), "cancelled"))

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> None:
        """End them with an error."""
        for sequence in list(sequences):
            self._finish(sequence, Update(finish="error", error=error))

    def forget(self) -> None:
        """The cache is lost: what runs is computed again from its tokens."""
        for sequence in reversed(list(self.running)):
            self._preempt(sequence, {})
        self.pages.clear()

    def step(self) -> News:
        """Compute once, if there is anything to compute; what there is to tell since the last step."""
        self._reap()
        plan = self._plan()
        if plan:
            try:
                self._compute(plan)
            except CacheLost:
                self.forget()
        return self.news()

    def close(self) -> None:
        """Let go of the engine, and of the one that guesses for it."""
        self.engine.close()
        if self.lookahead and self.lookahead.drafter:
            self.lookahead.drafter.close()

    def news(self) -> News:
        """What has not been told yet."""
        told, self._news = self._news, []
        return told

    def _reap(self) -> None:
        """Let go of those whose time is up."""
        now = time.monotonic()
        for sequence in [s for s in (*self.running, *self.waiting) if now > s.job.deadline]:
            took = now - sequence.times.arrived
            message = f"the request took longer than it may ({took:.1f} s, {sequence.generated} tokens generated)"
            self.fail([sequence], DeadlinePassed(message))

    def _compute(self, plan: dict[Sequence, int]) -> None:
        chunks = {
            sequence: Chunk(
                sequence.part(n),
                sequence.computed,
                sequence.lease.pages,
                sequence.outputs(n),
                windows=sequence.lease.windows,
                state_slot=max(sequence.lease.state_slot, 0),
                best=sequence.best,
                follow=sequence.follow,
                ahead=self._ahead_of(),
            )
            for sequence, n in plan.items()
            if sequence.lease
        }
        started = time.monotonic()
        together = [sequence for sequence in chunks if not sequence.job.keep]
        outputs: list[tuple[Sequence, Output]] = []
        if together:
            outputs += zip(together, self._forward([chunks[s] for s in together]), strict=True)
        probes: dict[tuple[str, ...], list[Sequence]] = {}
        for sequence in chunks:
            if sequence.job.keep:
                probes.setdefault(sequence.job.keep, []).append(sequence)
        for keep, group in probes.items():
            outputs += self._probe(group, [chunks[s] for s in group], keep)
        computed, decoding = time.monotonic(), self._decoding(plan)
        draws = [_Draw(sequence, output, plan[sequence]) for sequence, output in outputs]
        rounds = self._draw(draws)
        if decoding:
            if any(sequence.follow for sequence in plan):  # tokens came while others were drawn
                computed = time.monotonic()
            else:
                rounds = 1
            self._pace = (computed - started) / rounds
            if self.lookahead:
                self.lookahead.costs.note(sum(plan.values()), self._pace)
        for draw in draws:
            self._advance(draw)
        n = sum(plan.values()) + sum(len(output.more) for _, output in outputs)
        self.meter.step(n, len(plan), computed - started, time.monotonic() - computed)

    def _probe(
        self, group: list[Sequence], chunks: list[Chunk], keep: tuple[str, ...]
    ) -> list[tuple[Sequence, Output]]:
        """Those that keep the same nodes, together; one by one after a fault, for it is nobody else's business."""
        try:
            return list(zip(group, self._forward(chunks, keep), strict=True))
        except CacheLost:
            raise
        except AssayError as error:
            if len(group) == 1:
                self.fail(group, error)
                return []
        return [found for s, chunk in zip(group, chunks, strict=True) for found in self._probe([s], [chunk], keep)]

    def _forward(self, chunks: list[Chunk], keep: tuple[str, ...] = ()) -> list[Output]:
        try:
            self.computing = True
            return self.engine.forward(chunks, keep)
        finally:
            self.computing = False

    # --- who computes what in the next step

    def _plan(self) -> dict[Sequence, int]:
        """How many tokens of each sequence to compute; room for them is reserved."""
        plan: dict[Sequence, int] = {}
        for sequence in list(self.running):
            if sequence.pending == 1 and sequence in self.running and not self._reserve(sequence, 1, plan):
                self._preempt(sequence, plan)
        budget = self.chunk
        room = True
        heavy: Counter[tuple[str, str]] = Counter()  # tokens of this step that went to requests far ahead of others
        queue = sorted((*(s for s in self.running if s.pending > 1), *self.waiting), key=self._rank)
        for sequence in queue:
            if not sequence.lease:
                if not room or not self._share(sequence, budget) or self._crowds(sequence):
                    continue
                room = len(self.running) < self.most and self._admit(sequence, plan)
                if not room:  # nobody overtakes it
                    continue
                self.waiting.remove(sequence)
            n = self._share(sequence, budget)
            if self._ahead(sequence):
                n = min(n, max(self.chunk // 4 - heavy[sequence.job.owner], 0))
            if n and sequence in self.running and self._reserve(sequence, n, plan):
                budget = max(budget - n, 0)
                heavy[sequence.job.owner] += n
        if self.lookahead:
            self._look_ahead(self.lookahead, plan)
        if self.engine.follows and self.engine.graph.state.cuttable:
            self._follow(plan)
        for sequence, n in plan.items():
            self._shares.charge(sequence, n)
        return plan

    @staticmethod
    def _decoding(plan: dict[Sequence, int]) -> bool:
        """Whether the step has nothing but the next tokens of sequences that generate, and what is guessed of them."""
        return bool(plan) and all(s.pending == 1 and s.generated and not s.job.keep for s in plan)

    def _look_ahead(self, lookahead: Lookahead, plan: dict[Sequence, int]) -> None:
        """Guessed tokens behind the next ones, where there is room that nobody else holds."""
        for sequence in plan:
            sequence.draft = []
        if not self._decoding(plan):
            return
        for sequence, draft in lookahead.choose({s: max(s.room, 0) for s in plan}).items():
            assert sequence.lease
            with suppress(OutOfPages):
                self.pages.reserve(sequence.lease, 1 + len(draft))
                sequence.draft, plan[sequence] = draft, 1 + len(draft)

    def _follow(self, plan: dict[Sequence, int]) -> None:
        """Tokens that the engine draws by itself, where the best logit is everybody's choice. Those who wait even now
        cannot begin before somebody ends."""
        for sequence in plan:
            sequence.follow = 0
        if len(plan) < len(self.running) or not self._decoding(plan) or not self._pace:
            return
        if any(sequence.draft or sequence.best != 1 for sequence in plan):
            return
        ahead = self._ahead_of()
        most = _FOLLOW if ahead and self.report and not self.waiting else ahead
        for sequence in plan:
            assert sequence.lease
            n = max(0, min(most, sequence.room))
            with suppress(OutOfPages):
                self.pages.reserve(sequence.lease, 1 + n)
                sequence.follow = n

    def _ahead_of(self) -> int:
        """How many steps may be begun before one is seen."""
        return min(_AHEAD, int(_SPAN / self._pace)) if self._pace else 1

    def _rank(self, sequence: Sequence) -> tuple[bool, tuple[int, int, float]]:
        """A sequence that has lost its pages goes first: it was let in before."""
        return not sequence.preempted, self._shares.rank(sequence)

    def _crowds(self, sequence: Sequence) -> bool:
        """Whether it would take room that is kept for others: more than a share of the places, or the last pages."""
        mine = sum(other.job.owner == sequence.job.owner for other in self.running)
        if not mine or not any(sequence.job.owner):
            return False
        places = max(1, self.most * 3 // 4 // self._shares.requests())
        wanted = pages_for(len(sequence.ids) + 1)
        return mine >= places or self.pages.available - wanted < self.pages.n_pages // 4

    def _share(self, sequence: Sequence, budget: int) -> int:
        """How much of the step's budget it takes. A probe that fits a chunk is not cut; a text that must be run whole
        and does not fit one has a step's budget for itself. A prompt that is scored takes less, for every row of it
        costs a pass over the vocabulary."""
        if self._whole(sequence):
            return sequence.pending if sequence.pending <= budget or budget == self.chunk else 0
        if sequence.job.keep and sequence.pending <= self.chunk and budget < sequence.pending:
            return 0
        scored = sequence.job.prompt_logprobs is not None
        return min(sequence.pending, budget, max(self.chunk // 4, 1) if scored else budget)

    def _ahead(self, sequence: Sequence) -> bool:
        """Whether it is long and its request has had many chunks more than another's, which waits for each of them:
        then a quarter of a step is enough for all of the request."""
        if sequence.pending <= self.chunk or self._whole(sequence):
            return False
        return self._shares.lead(sequence) > 8 * self.chunk

    def _whole(self, sequence: Sequence) -> bool:
        """Whether it cannot be cut: a token sees later ones, or what is kept is made of all of them."""
        graph = self.engine.graph
        return graph.whole or not graph.pooled.isdisjoint(sequence.job.keep)

    def _reserve(self, sequence: Sequence, n: int, plan: dict[Sequence, int]) -> bool:
        """Room for n more tokens, if need be at the cost of younger sequences."""
        assert sequence.lease
        while True:
            try:
                self.pages.reserve(sequence.lease, n)
                plan[sequence] = n
                return True
            except OutOfPages:
                youngest = self.running[-1]
                if youngest is sequence:
                    return False
                self._preempt(youngest, plan)

    def _preempt(self, sequence: Sequence, plan: dict[Sequence, int]) -> None:
        """Back to the front of the queue. Tokens and text so far stay; only the cache is given up."""
        assert sequence.lease
        self.pages.close(sequence.lease)
        sequence.lease = None
        sequence.forget()
        sequence.draft = []
        sequence.preempted += 1
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        plan.pop(sequence, None)
        self.meter.preempted()

    def _admit(self, sequence: Sequence, plan: dict[Sequence, int]) -> bool:
        """Start it, unless the cache has too little room, or this very step computes a prefix it could share."""
        fresh = sequence.job.prompt_logprobs is not None or sequence.job.keep  # all rows are wanted
        lease = self.pages.open([] if fresh else sequence.ids)
        spare = len(self.running)  # each of them may want another page soon
        fits = not self.running or self.pages.fits(lease, len(sequence.ids) + 1, self.chunk, spare)
        if not fits or self._twin(sequence, lease.length, plan):
            self.pages.close(lease)
            return False
        sequence.lease = lease
        if not sequence.times.admitted:
            sequence.times.admitted = time.monotonic()
            sequence.cached = lease.length
        at = len(self.running)  # a preempted one comes back to its place among its elders
        while at and self.running[at - 1].times.arrived > sequence.times.arrived:
            at -= 1
        self.running.insert(at, sequence)
        return True

    def _twin(self, sequence: Sequence, start: int, plan: dict[Sequence, int]) -> bool:
        """Whether another sequence of this step completes the page that this one would compute first, or one that
        begins as it does: a step later it is copied."""
        end = start - start % PAGE + PAGE
        ids = sequence.ids[:end]
        for other, n in plan.items():
            if other.computed < end <= other.computed + n:
                same = common(other.ids[:end], ids)
                if (same == end and end < len(sequence.ids)) or (self.pages.copies and same - start >= _WORTH_COPYING):
                    return True
        return False

    # --- what came of it

    def _draw(self, draws: list[_Draw]) -> int:
        """Row after row, all sequences in turn, and how many there were. An engine that goes on by itself computes the
        next ones meanwhile, until somebody ends or others wait."""
        drawing = [draw for draw in draws if self._take(draw)]
        i, now = 0, time.monotonic()
        told, until = now, min((draw.sequence.job.deadline for draw in drawing), default=now)
        while drawing:
            left = [draw for draw in drawing if draw.next(i)]
            now = time.monotonic()
            if self.engine.follows and (len(left) < len(drawing) or now > until or self.wanted()):
                self.engine.halt()
            drawing, i = left, i + 1
            if self.report and drawing and now > told + _TELL:
                for draw in draws:
                    self._advance(draw)
                self.report(self.news())
                told = now
        return i

    def _advance(self, draw: _Draw) -> None:
        """The tokens that were drawn go into the cache, but for the last, and to whom they concern."""
        sequence, drawn = draw.sequence, draw.drawn
        if drawn and sequence.lease:
            self.pages.commit(sequence.lease, sequence.ids[sequence.computed : -1])
            if sequence.follow:
                self._shares.charge(sequence, len(drawn))
            if self.lookahead:
                self.lookahead.learn(sequence, sequence.ids[-len(drawn) :])
                if draw.draft:
                    self.meter.guessed(len(draw.draft), len(drawn) - 1)
            draw.drawn = []
            self._tell(sequence, drawn)
        if draw.error and not sequence.finished:
            self.fail([sequence], EngineFailed(str(draw.error)))

    def _take(self, draw: _Draw) -> bool:
        """What was computed is in the cache; whether there is a token to draw."""
        sequence, output = draw.sequence, draw.output
        assert sequence.lease
        start = sequence.computed
        self.pages.commit(sequence.lease, sequence.ids[start : start + draw.n])
        sequence.keep(output.nodes)
        if sequence.job.prompt_logprobs is not None and start < sequence.n_prompt:
            self._score_prompt(sequence, start, output.logits)
        if not sequence.pending and sequence.job.max_tokens == 0:
            self._finish(sequence, Update(None, "", "length"))
        draw.draft, sequence.draft = ([], sequence.draft) if sequence.pending else (sequence.draft, [])
        return not sequence.pending and not sequence.finished

    def _tell(self, sequence: Sequence, drawn: list[Update]) -> None:
        """Tokens that were drawn."""
        now = time.monotonic()
        self.meter.tokens(sequence, len(drawn), now)
        sequence.times.first = sequence.times.first or now
        sequence.times.last = now
        self._news += [(sequence, update) for update in drawn if not update.finish]
        if drawn[-1].finish:
            self._finish(sequence, drawn[-1])

    def _score_prompt(self, sequence: Sequence, start: int, logits: Array) -> None:
        top = sequence.job.prompt_logprobs or 0
        for row, token in zip(logits, sequence.ids[start + 1 : sequence.n_prompt], strict=False):
            sequence.prompt_choices.append(scores(row, token, top))

    def _finish(self, sequence: Sequence, update: Update) -> None:
        assert update.finish
        if sequence.lease:
            self.pages.close(sequence.lease)
            sequence.lease = None
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.finished = True
        if self.lookahead and self.lookahead.drafter:
            self.lookahead.drafter.forget(sequence)
        self._shares.leave(sequence)
        self.meter.finished(sequence, update.finish)
        self._news.append((sequence, update))
