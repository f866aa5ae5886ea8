"""Continuous batching: all sequences go through one engine together, step after step.

`StepPlanner` decides which tokens a step computes. The scheduler runs the step, draws the next tokens from its logits,
commits what was computed to the page cache, and publishes an `Update` for every token. The engine gives the same bits
however a sequence is cut into steps and whatever else is in the batch. Therefore neither batching nor chunked prompts,
preemption or the prefix cache change a token.

The scheduler has no thread; its caller calls `step`. `generate.py` does so in the thread of its user, `worker.py` in a
thread for a server. A step that an exception breaks off has no effect that the next step does not repeat.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows

from assay.engines.contract import Array, CacheLost, Chunk, DecodeRun, Output, PagedEngine, TopK
from assay.errors import AssayError
from assay.runtime.cache_folder import CacheFolder
from assay.runtime.image_places import check_images
from assay.runtime.matchers import wait
from assay.runtime.pages import Pages
from assay.runtime.prefix_store import PrefixStore
from assay.runtime.sampler import scores
from assay.runtime.sequence import Job, Progress, Sequence, Sink, Update
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, GrammarError, NoLogits, NoShift
from assay.runtime.speculation import Drafter, Speculator
from assay.runtime.step_planner import Plan, StepPlanner
from assay.text import Tokenizer

RUNNING = 64  # sequences that a library or an offline batch runs at once by default
_GRACE_SECONDS = 0.005  # a step waits this long for constraints that are usually in time
_LATE_DRAWS = 8  # and not at all for those draws of a sequence after its constraint was late
_BLOCKED_SECONDS = 0.01  # a step without any other work waits this long for a constraint
_PUBLISH_SECONDS = 0.04  # longest time between two publications during a decode run: each has a cost
Updates = list[tuple[Sequence, Update]]


def deliver(updates: Updates) -> None:
    """Pass each update to the sink of its sequence."""
    for sequence, update in updates:
        sequence.sink(update)


class _Drawing:
    """The results of a step for one sequence, and the tokens drawn from them so far."""

    def __init__(self, sequence: Sequence, n: int, output: Output | None, rows: Array | Rows[TopK] = ()) -> None:
        self.sequence, self.n, self.output = sequence, n, output  # n: tokens that the step computed
        self.start = 0  # where they begin
        self.rows = rows  # to draw from; those of a decode run are given, others are taken from the output
        self.draft: list[int] = []
        self.drawn: list[Update] = []
        self.taken = 0  # of `drawn`, whose next row was decided
        self.error: AssayError | None = None

    @classmethod
    def of_blocked(cls, sequence: Sequence) -> _Drawing:
        """A sequence that waited for its constraint: the row or the token that was left over."""
        drawing = cls(sequence, 0, None, [] if sequence.undrawn is None else sequence.undrawn[None])
        sequence.undrawn = None
        return drawing

    def draw(self, i: int) -> None:
        """Draw a token from row i. If the mask is not here, the first row is kept for later and others are dropped."""
        sequence = self.sequence
        try:
            if sequence.unsettled:
                return
            if not sequence.can_draw():
                if i == 0:
                    sequence.undrawn = self.rows[0].copy()  # type: ignore[union-attr]
                return
            update = sequence.ended_by_resume() or sequence.draw(self.rows[i])
        except AssayError as error:  # NaN logits, a bias that forbids every token, a grammar at its limit
            self.error = error
            return
        if update:
            self.drawn.append(update)

    def settle(self, i: int) -> bool:
        """Take the token of row i, if the constraint has. True if the next row can be drawn from, too."""
        try:
            update = self.sequence.settle()
        except AssayError as error:
            self.error = error
            return False
        if update:
            self.drawn.append(update)
        if self.error or self.sequence.blocked or len(self.drawn) <= self.taken:
            return False
        self.taken = len(self.drawn)
        if self.drawn[-1].finish or i + 1 >= len(self.rows):
            return False
        return not self.draft or self.sequence.ids[-1] == self.draft[i]


class Meter:
    """Receives measurements of a scheduler's work. This base class ignores them."""

    def step(self, n_tokens: int, n_sequences: int, engine_s: float, sampling_s: float) -> None: ...

    def state(self, running: int, waiting: int, pages: Pages) -> None: ...

    def preempted(self) -> None: ...

    def restored(self, n_tokens: int) -> None:
        """Prompt tokens came back from the folder of prefixes."""

    def tokens(self, sequence: Progress, n: int, now: float) -> None:
        """n tokens arrived at once; called before `sequence.times` is updated."""

    def speculated(self, drafted: int, accepted: int) -> None: ...

    def finished(self, sequence: Progress, reason: str) -> None: ...


def _can_speculate(engine: PagedEngine, drafter: Drafter | None) -> bool:
    """Whether drafted tokens get the bits of plain decoding, and wrong ones can be taken back from the state.

    An engine that computes drafted tokens one by one gains nothing, so it drafts only where a drafter was asked for.
    """
    exact = engine.arithmetic.steady or (engine.exact_drafts and drafter is not None)
    return exact and bool(engine.graph.state.cuttable or engine.spare_states)


class Scheduler:
    """Add jobs, and call `step` while it is `busy`. It must not be used by several threads at once."""

    def __init__(
        self,
        engine: PagedEngine,
        tokenizer: Tokenizer,
        *,
        n_ctx: int | None = None,
        running: int = RUNNING,
        chunk: int = 128,
        meter: Meter | None = None,
        speculator: Speculator | None = None,
        folder: CacheFolder | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.meter = meter or Meter()
        self._drafter = speculator.drafter if speculator else None
        self.speculator = speculator if speculator and _can_speculate(engine, self._drafter) else None
        self.pages = Pages.of(engine)
        self.store = PrefixStore(engine, self.pages, folder, self.meter.restored) if folder else None
        if self.speculator and self.speculator.drafter:
            self.speculator.drafter.attach(engine, self.pages)
        self._reads = self.speculator.reads if self.speculator else ()
        self._state_bytes = engine.memory.states if self.pages.states else 0
        self.n_ctx = min(n_ctx or self.pages.capacity, self.pages.capacity)
        self.max_running = running
        self._planner = StepPlanner(
            engine, self.pages,
            max_running=running, chunk=min(chunk, self.pages.step), speculator=self.speculator,
            on_preempt=self.meter.preempted,
        )  # fmt: skip
        self.running, self.waiting = self._planner.running, self._planner.waiting
        self.publish: Callable[[Updates], None] | None = None  # takes updates while a decode run is under way
        self.must_stop: Callable[[], bool] = lambda: False  # whether a decode run should end early
        self.computing = False  # whether the engine is computing now
        self._updates: Updates = []

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting or self._updates)

    def state_counts(self) -> dict[str, int]:
        """State slots: all, those of running sequences, those of snapshots, and bytes; empty if the graph has none."""
        if not self.pages.states:
            return {}
        use = self.pages.states.use
        return {
            "state_slots": use.slots, "state_running": use.running, "state_snapshots": use.snapshots,
            "state_bytes": self._state_bytes,
        }  # fmt: skip

    def make(self, job: Job, sink: Sink) -> Sequence:
        """A sequence for the job, ready to be added."""
        if not job.keep and not self.engine.graph.generates:
            raise NoLogits(self.engine.model.file.path.name)
        if job.shift and not self.engine.graph.state.cuttable:
            raise NoShift(self.engine.model.file.path.name)
        if job.images:
            check_images(self.engine, job.images, self.pages.step)
            if job.prompt_logprobs is not None:
                raise AssayError(
                    "picture: log-probabilities of the prompt cannot be made for a prompt with pictures; ask without"
                )
        sequence = Sequence(job, self.tokenizer, self.n_ctx, sink)
        sequence.m_rope = bool(self.engine.model.hparams.axes)
        sequence.hashed_on_device = bool(self.engine.top_values and self.engine.top_values.digests)
        known = self.engine.adapters
        asked = enumerate(adapter.scale for adapter in known) if job.adapters is None else sorted(job.adapters)
        sequence.adapters = tuple((number, scale) for number, scale in asked if scale)
        if wrong := [number for number, _ in sequence.adapters if not 0 <= number < len(known)]:
            raise AssayError(f"adapter {wrong[0]}: there is none of this number (found {len(known)} adapters)")
        sequence.salt = b"".join(known[number].digest + struct.pack("<f", scale) for number, scale in sequence.adapters)
        if self.engine.arithmetic.mixed:
            sequence.answer_from = sequence.prompt_part
        return sequence

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Append sequences to the queue."""
        for sequence in sequences:
            self._planner.add(sequence)
            if sequence.ended_before:
                text, reason = sequence.ended_before
                self._finish(sequence, Update(None, text, reason))
            elif self.store:
                self.store.want(sequence)

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End sequences and free their pages. Finished ones are ignored."""
        for sequence in sequences:
            if not sequence.finished:
                self._finish(sequence, Update(None, sequence.flush_text(), "cancelled"))

    def fail(self, sequences: Iterable[Sequence], error: Exception) -> None:
        """End sequences with an error."""
        for sequence in list(sequences):
            self._finish(sequence, Update(finish="error", error=error))

    def discard_cache(self) -> None:
        """Preempt all sequences and empty the prefix cache, because the engine has lost the contents of its pages."""
        saver, self.pages.saver = self.pages.saver, None  # what is lost must not be saved
        if self.store:
            self.store.abort()
        for sequence in reversed(list(self.running)):
            self._planner.preempt(sequence, {})
        self.pages.clear()
        self.pages.saver = saver

    def step(self) -> Updates:
        """Compute one step if there is work. Returns all updates since the last call."""
        self._fail_overdue()
        blocked = self._draw_blocked()
        if self.store and self.store.busy:
            self.store.advance(alone=False)
        plan = self._planner.plan(publishes=self.publish is not None)
        if plan:
            try:
                self._compute(plan)
            except CacheLost:
                self.discard_cache()
        elif self.store and self.store.busy:
            self.store.advance(alone=True)
        elif blocked and not self._updates:
            wait([sequence.constraint for sequence in blocked], _BLOCKED_SECONDS)
        return self.take_updates()

    def close(self) -> None:
        """Write pending prefixes to disk, then close the engine and the drafter's engine."""
        if self.store:
            self.store.close()
        if self._drafter:
            self._drafter.close()
        self.engine.close()

    def take_updates(self) -> Updates:
        """Updates that were not returned yet."""
        updates, self._updates = self._updates, []
        return updates

    def _fail_overdue(self) -> None:
        """End sequences whose deadline has passed."""
        now = time.monotonic()
        for sequence in [s for s in (*self.running, *self.waiting) if now > s.job.deadline]:
            took = now - sequence.times.arrived
            message = f"the request exceeded its time limit ({took:.1f} s, {sequence.generated} tokens generated)"
            self.fail([sequence], DeadlinePassed(message))

    # --- computing a step

    def _compute(self, plan: Plan) -> None:
        """Run the engine on a plan, then draw and commit the tokens."""
        chunks = {
            sequence: Chunk(
                sequence.next_tokens(n),
                sequence.computed,
                sequence.lease.pages,
                sequence.outputs_for(n),
                windows=sequence.lease.windows,
                state_slot=max(sequence.lease.state_slot, 0),
                drafted=len(sequence.draft),
                adapters=sequence.adapters,
                pictures=sequence.next_pictures(n),
                prompt=sequence.prompt_among(n),
                second=sequence.job.second,
                digest=sequence.job.receipt,
            )
            for sequence, n in plan.items()
            if sequence.lease
        }
        started = time.monotonic()
        drawings: list[_Drawing] = []
        run: DecodeRun | None = None
        generating = [sequence for sequence in chunks if not sequence.job.keep]
        if generating:
            drawings, run = self._forward_generating(generating, [chunks[s] for s in generating], plan)
        probes: dict[tuple[str, ...], list[Sequence]] = {}
        for sequence in chunks:
            if sequence.job.keep:
                probes.setdefault(sequence.job.keep, []).append(sequence)
        for keep, group in probes.items():
            outputs = self._forward_probes(group, [chunks[s] for s in group], keep)
            drawings += [_Drawing(sequence, plan[sequence], output) for sequence, output in outputs]
        computed, decodes = time.monotonic(), self._planner.only_decodes(plan)
        rounds = self._draw(drawings, run)
        if decodes:
            if run:  # later steps were computed while tokens were drawn
                computed = time.monotonic()
            else:
                rounds = 1
            self._planner.decode_seconds = (computed - started) / rounds
            if self.speculator:
                self.speculator.costs.record(sum(plan.values()), self._planner.decode_seconds)
        for drawing in drawings:
            self._commit_drawn(drawing)
            self._take_back(drawing)
        self._shift_full([drawing.sequence for drawing in drawings])
        n = sum(plan.values()) + (sum(len(results) - 1 for results in run.results) if run else 0)
        self.meter.step(n, len(plan), computed - started, time.monotonic() - computed)

    def _forward_generating(
        self, sequences: list[Sequence], chunks: list[Chunk], plan: Plan
    ) -> tuple[list[_Drawing], DecodeRun | None]:
        """One step of sequences that generate: a decode run if one was planned, else with the cheapest outputs."""
        engine, top_values, runner = self.engine, self.engine.top_values, self.engine.decode_runner
        self.computing = True
        try:
            if runner and any(s.run_tokens for s in sequences):
                run = runner.start(chunks, [s.run_tokens for s in sequences], self._planner.queue_depth())
                rows = zip(sequences, run.results, strict=True)
                return [_Drawing(sequence, plan[sequence], None, results) for sequence, results in rows], run
            ks = [s.top_k for s in sequences] if top_values and not self._reads else [0]
            if top_values and all(ks):
                outputs = top_values.forward(chunks, max(ks))
            else:
                outputs = engine.forward(chunks, self._reads) if self._reads else engine.forward(chunks)
        finally:
            self.computing = False
        return [_Drawing(s, plan[s], output) for s, output in zip(sequences, outputs, strict=True)], None

    def _forward_probes(
        self, group: list[Sequence], chunks: list[Chunk], keep: tuple[str, ...]
    ) -> list[tuple[Sequence, Output]]:
        """One step of probes that keep the same nodes. After an error they run one by one, so that only one fails."""
        self.computing = True
        try:
            return list(zip(group, self.engine.forward(chunks, keep), strict=True))
        except CacheLost:
            raise
        except AssayError as error:
            if len(group) == 1:
                self.fail(group, error)
                return []
        finally:
            self.computing = False
        return [
            found for s, chunk in zip(group, chunks, strict=True) for found in self._forward_probes([s], [chunk], keep)
        ]

    # --- drawing tokens

    def _draw(self, drawings: list[_Drawing], run: DecodeRun | None) -> int:
        """Draw row after row, all sequences in turn; returns the number of rows.

        During a decode run the engine computes later rows meanwhile. The run is stopped when a sequence ends, a
        deadline passes, or a new request waits; its surplus tokens are discarded.
        """
        return self._draw_rows([drawing for drawing in drawings if self._commit_computed(drawing)], drawings, run)

    def _draw_rows(self, active: list[_Drawing], drawings: list[_Drawing], run: DecodeRun | None = None) -> int:
        i, now = 0, time.monotonic()
        published, deadline = now, min((drawing.sequence.job.deadline for drawing in active), default=now)
        while active:
            self._await_constraints(active, Sequence.can_draw)
            for drawing in active:
                drawing.draw(i)
            self._await_constraints(active, lambda sequence: not sequence.unsettled or sequence.has_settled())
            left = [drawing for drawing in active if drawing.settle(i)]
            now = time.monotonic()
            if run and (len(left) < len(active) or now > deadline or self.must_stop()):
                run.stop()
            active, i = left, i + 1
            if self.publish and active and now > published + _PUBLISH_SECONDS:
                for drawing in drawings:
                    self._commit_drawn(drawing)
                self.publish(self.take_updates())
                published = now
        return i

    def _draw_blocked(self) -> list[Sequence]:
        """Continue sequences whose constraint has answered. Returns those that still wait."""
        blocked = [sequence for sequence in (*self.running, *self.waiting) if sequence.blocked]
        if not blocked:
            return blocked
        drawings = [_Drawing.of_blocked(sequence) for sequence in blocked]
        self._draw_rows(drawings, drawings)
        for drawing in drawings:
            self._commit_drawn(drawing)
        self._shift_full(blocked)
        return [sequence for sequence in blocked if sequence.blocked]

    def _await_constraints(self, drawings: list[_Drawing], is_done: Callable[[Sequence], bool]) -> None:
        """Wait a little for constraints that are usually in time; a sequence that was late lately is not awaited."""
        until = 0.0
        awaited = [d for d in drawings if d.sequence.constraint and not d.sequence.late]
        while awaited:
            awaited = [d for d in awaited if not self._is_done(d, is_done)]
            now = time.monotonic()
            until = until or now + _GRACE_SECONDS
            if awaited and now >= until:
                for drawing in awaited:
                    drawing.sequence.late = _LATE_DRAWS
                return
            if awaited:
                wait([drawing.sequence.constraint for drawing in awaited], until - now)

    @staticmethod
    def _is_done(drawing: _Drawing, is_done: Callable[[Sequence], bool]) -> bool:
        try:
            return is_done(drawing.sequence)
        except AssayError:  # raised again when the token is drawn
            return True

    def _commit_computed(self, drawing: _Drawing) -> bool:
        """Commit the tokens that the step computed to the cache. True if there is a token to draw."""
        sequence, output = drawing.sequence, drawing.output
        assert sequence.lease
        start = drawing.start = sequence.computed
        self.pages.commit(sequence.lease, sequence.keys(start, start + drawing.n), each=bool(sequence.draft))
        if output and sequence.job.keep:
            sequence.collect(output.nodes)
        if output and sequence.job.prompt_logprobs is not None and start < sequence.n_prompt:
            self._score_prompt(sequence, start, output.logits)
        if not sequence.pending and sequence.job.max_tokens == 0:
            self._finish(sequence, Update(None, "", "length"))
        if sequence.pending or sequence.finished:
            return False
        drawing.draft, sequence.draft = sequence.draft, []
        if output:
            drawing.rows = output.logits[-1 - len(drawing.draft) :] if output.top is None else (output.top,)
        return True

    def _commit_drawn(self, drawing: _Drawing) -> None:
        """Commit all drawn tokens but the last, which is not computed yet, and queue their updates."""
        sequence, drawn = drawing.sequence, drawing.drawn
        if drawn and not sequence.finished:
            if sequence.lease:
                self.pages.commit(sequence.lease, sequence.keys(sequence.computed, -1), each=bool(drawing.draft))
            if sequence.run_tokens:
                self._planner.shares.charge(sequence, len(drawn))
            if self.speculator:
                self.speculator.learn(sequence, [update.choice.id for update in drawn if update.choice])
                if drawing.draft:
                    self.meter.speculated(len(drawing.draft), len(drawn) - 1)
            drawing.drawn, drawing.taken = [], 0
            sequence.late = max(sequence.late - 1, 0)
            self._queue_updates(sequence, drawn)
        if drawing.error and not sequence.finished:
            error = drawing.error
            self.fail([sequence], error if isinstance(error, GrammarError) else EngineFailed(str(error)))

    def _take_back(self, drawing: _Drawing) -> None:
        """Take rejected tokens back from the state, and give the drafter the rows of the others."""
        sequence, lease, output = drawing.sequence, drawing.sequence.lease, drawing.output
        if not lease or sequence.job.keep:
            return
        if drawing.draft and self.pages.states:
            self.engine.cut_state(lease.state_slot, lease.length)
        if self._reads and output and self.speculator and self.speculator.drafter and not sequence.job.images:
            kept = {name: output.nodes[name][: lease.length - drawing.start] for name in self._reads}
            self.speculator.drafter.observe(sequence, drawing.start, kept)

    def _shift_full(self, sequences: list[Sequence]) -> None:
        """Let sequences whose context is full go on without their oldest tokens. The rest is computed as a prompt."""
        for sequence in sequences:
            if sequence.full and not sequence.finished and not sequence.blocked:
                self._planner.shift(sequence)
                if self.speculator and self.speculator.drafter:
                    self.speculator.drafter.forget(sequence)

    def _queue_updates(self, sequence: Sequence, drawn: list[Update]) -> None:
        """Queue the updates of drawn tokens; the last may end the sequence."""
        now = time.monotonic()
        self.meter.tokens(sequence, len(drawn), now)
        sequence.times.first = sequence.times.first or now
        sequence.times.last = now
        self._updates += [(sequence, update) for update in drawn if not update.finish]
        if drawn[-1].finish:
            self._finish(sequence, drawn[-1])

    def _score_prompt(self, sequence: Sequence, start: int, logits: Array) -> None:
        """Append the log-probabilities of the prompt tokens that follow the computed rows."""
        top = sequence.job.prompt_logprobs or 0
        for row, token in zip(logits, sequence.ids[start + 1 : sequence.n_prompt], strict=False):
            sequence.prompt_choices.append(scores(row, token, top))

    def _finish(self, sequence: Sequence, update: Update) -> None:
        """End a sequence: free its pages and queue its last update."""
        assert update.finish
        self._planner.remove(sequence)
        if sequence.restoring and self.store:
            self.store.forget(sequence)
        sequence.finished = True
        sequence.close()
        if self.speculator and self.speculator.drafter:
            self.speculator.drafter.forget(sequence)
        self.meter.finished(sequence, update.finish)
        self._updates.append((sequence, update))
