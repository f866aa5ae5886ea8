"""Plans the next step: which sequences run, how many tokens of each are computed, and which pages they get.

A step has the next token of every decoding sequence and at most `chunk` prompt tokens. A long prompt therefore delays
the others by one chunk at most. Prompts are computed, and sequences admitted, in fair shares (`fair_shares.py`). One
request cannot take the last quarter of the places or of the cache for more than one of its sequences. If the cache is
full, the youngest sequence is preempted: it gives its pages back, goes to the front of the queue, and is computed again
later. After the certain tokens, a step may have drafted ones (`speculation.py`) or become a decode run of the engine.

Change this module to change scheduling policy. It computes nothing; `scheduler.py` runs the plan.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress

from assay.engines.contract import PAGE, PagedEngine, pages_for
from assay.runtime.fair_shares import FairShares
from assay.runtime.image_places import whole_images
from assay.runtime.pages import OutOfPages, Pages
from assay.runtime.prefix_keys import common
from assay.runtime.sequence import Sequence
from assay.runtime.speculation import MAX_DRAFT, Speculator

_MIN_COPY = PAGE // 2  # common tokens from which a sequence waits one step in order to copy a page
_MAX_RUN = 63  # tokens that a decode run generates after its first, at most
_MAX_QUEUE_DEPTH = 15  # decode steps launched before their predecessor is read, at most
_MAX_QUEUE_SECONDS = 0.02  # and their total duration: an arrival waits at most this long
_HEAVY_LEAD = 8  # chunks that a request must have had more than another one to count as heavy

Plan = dict[Sequence, int]  # the number of tokens to compute of each sequence


class StepPlanner:
    """The running and the waiting sequences of one engine, and the plan of each step."""

    def __init__(
        self,
        engine: PagedEngine,
        pages: Pages,
        *,
        max_running: int,
        chunk: int,
        speculator: Speculator | None,
        on_preempt: Callable[[], None],
    ) -> None:
        self.running: list[Sequence] = []  # by time of arrival
        self.waiting: deque[Sequence] = deque()
        self.shares = FairShares()
        self.max_running, self.chunk = max_running, chunk
        self.decode_seconds = 0.0  # duration of the last step that only decoded, per token
        self._pages, self._graph = pages, engine.graph
        # A stopped run has computed surplus tokens, which are cut from the state. It gives no rows to a draft head.
        runs = engine.graph.state.cuttable and not (speculator and speculator.reads)
        self._runner = engine.decode_runner if runs else None
        self._engine = engine
        self._speculator = speculator
        self._on_preempt = on_preempt

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to the queue."""
        self.waiting.append(sequence)
        self.shares.enter(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Free the pages and the place of a sequence that has ended."""
        if sequence.lease:
            self._pages.close(sequence.lease)
            sequence.lease = None
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.shares.leave(sequence)

    def plan(self, *, publishes: bool) -> Plan:
        """Plan the next step and reserve pages for it. `publishes`: updates go out while a decode run is under way."""
        plan: Plan = {}
        self._plan_decoding(plan)
        self._plan_prompts(plan)
        if self._speculator:
            self._plan_drafts(self._speculator, plan)
        if self._runner:
            self._plan_decode_run(self._runner.max_sequences, plan, publishes)
        for sequence, n in plan.items():
            self.shares.charge(sequence, n)
        return plan

    @staticmethod
    def only_decodes(plan: Plan) -> bool:
        """True if the plan has only next tokens of generating sequences, and their drafts."""
        return bool(plan) and all(s.pending == 1 and s.generated and not s.job.keep for s in plan)

    def queue_depth(self) -> int:
        """How many decode steps may be launched before the result of the first is read."""
        return min(_MAX_QUEUE_DEPTH, int(_MAX_QUEUE_SECONDS / self.decode_seconds)) if self.decode_seconds else 1

    def preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Move a running sequence to the front of the queue. Its tokens and text stay; its pages are given back."""
        assert sequence.lease
        self._pages.close(sequence.lease)
        sequence.lease = None
        sequence.discard_kept()
        sequence.draft, sequence.undrawn = [], None
        sequence.preempted += 1
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        plan.pop(sequence, None)
        self._on_preempt()

    def shift(self, sequence: Sequence) -> None:
        """Drop the oldest tokens of a full context. A running sequence keeps its place and computes the rest anew, in
        its fair share of prompt tokens."""
        lease, sequence.lease = sequence.lease, None
        sequence.shift()
        if lease:
            self._pages.close(lease)
            sequence.lease = self._pages.open(sequence.ids, sequence.salt)

    # --- parts of a plan

    def _plan_decoding(self, plan: Plan) -> None:
        for sequence in list(self.running):
            ready = sequence.pending == 1 and not sequence.blocked
            if ready and sequence in self.running and not self._reserve(sequence, 1, plan):
                self.preempt(sequence, plan)

    def _plan_prompts(self, plan: Plan) -> None:
        """Give the step's budget of prompt tokens to sequences in the order of their fair shares."""
        budget = self.chunk
        can_admit = True
        by_request: Counter[tuple[str, str]] = Counter()  # prompt tokens of this step
        waiting = (s for s in self.waiting if not s.blocked and not s.restoring)
        queue = sorted((*(s for s in self.running if s.pending > 1), *waiting), key=self._rank)
        for sequence in queue:
            if not sequence.lease:
                if not can_admit or not self._tokens_of(sequence, budget) or self._exceeds_share(sequence):
                    continue
                can_admit = len(self.running) < self.max_running and self._admit(sequence, plan)
                if not can_admit:  # later sequences must not overtake it
                    continue
                self.waiting.remove(sequence)
            n = self._tokens_of(sequence, budget)
            if self._is_heavy(sequence):
                n = min(n, max(self.chunk // 4 - by_request[sequence.job.owner], 0))
            if n and sequence.job.images:
                n = self._beside_images(sequence, n, budget)
            if n and sequence in self.running and self._reserve(sequence, n, plan):
                budget = max(budget - n, 0)
                by_request[sequence.job.owner] += n

    def _plan_drafts(self, speculator: Speculator, plan: Plan) -> None:
        """Add drafted tokens after the next ones, if free pages can hold them: drafts preempt no sequence."""
        for sequence in plan:
            sequence.draft = []
        if not self.only_decodes(plan):
            return
        most = MAX_DRAFT
        if not self._graph.state.cuttable:  # each drafted token leaves a state, so that the next can be taken back
            most = min(most, max(self._engine.spare_states - len(plan), 0) // len(plan))
        for sequence, draft in speculator.choose({s: max(min(s.max_further, most), 0) for s in plan}).items():
            assert sequence.lease
            with suppress(OutOfPages):
                self._pages.reserve(sequence.lease, 1 + len(draft))
                sequence.draft, plan[sequence] = draft, 1 + len(draft)

    def _plan_decode_run(self, max_sequences: int, plan: Plan, publishes: bool) -> None:
        """Let the engine continue by itself if every sequence decodes greedily.

        Sequences that wait now cannot be admitted before a running one ends, so a short run does not delay them.
        """
        for sequence in plan:
            sequence.run_tokens = 0
        if len(plan) < len(self.running) or not self.only_decodes(plan) or not self.decode_seconds:
            return
        if len(plan) > max_sequences or any(s.draft or s.top_k != 1 or s.adapters for s in plan):
            return
        if any(sequence.m_rope and sequence.job.images for sequence in plan):  # a run counts positions by slots
            return
        depth = self.queue_depth()
        limit = _MAX_RUN if depth and publishes and not self.waiting else depth
        for sequence in plan:
            assert sequence.lease
            n = max(0, min(limit, sequence.max_further))
            with suppress(OutOfPages):
                self._pages.reserve(sequence.lease, 1 + n)
                sequence.run_tokens = n

    # --- fair shares

    def _rank(self, sequence: Sequence) -> tuple[bool, tuple[int, int, float]]:
        """Sort key of the queue. Preempted sequences go first: they were admitted before."""
        return not sequence.preempted, self.shares.rank(sequence)

    def _exceeds_share(self, sequence: Sequence) -> bool:
        """True if its request already runs and would take more than its share of the places, or the last pages."""
        mine = sum(other.job.owner == sequence.job.owner for other in self.running)
        if not mine or not any(sequence.job.owner):
            return False
        places = max(1, self.max_running * 3 // 4 // self.shares.requests())
        needed = pages_for(len(sequence.ids) + 1)
        return mine >= places or self._pages.available - needed < self._pages.n_pages // 4

    def _is_heavy(self, sequence: Sequence) -> bool:
        """True for a long prompt whose request has had many chunks more than another request.

        The other request waits for each of these chunks, so a heavy one gets a quarter of a step at most.
        """
        if sequence.pending <= self.chunk or self._is_uncuttable(sequence):
            return False
        return self.shares.lead(sequence) > _HEAVY_LEAD * self.chunk

    def _tokens_of(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of the sequence go into a step that has `budget` prompt tokens left.

        A probe that fits a chunk is not cut. A text that cannot be cut and is longer than a chunk gets a step's whole
        budget. A scored prompt gets a quarter, because each of its rows costs a pass over the vocabulary.
        """
        if self._is_uncuttable(sequence):
            return sequence.pending if sequence.pending <= budget or budget == self.chunk else 0
        if sequence.job.keep and sequence.pending <= self.chunk and budget < sequence.pending:
            return 0
        scored = sequence.job.prompt_logprobs is not None
        n = min(sequence.pending, budget, max(self.chunk // 4, 1) if scored else budget)
        return n if self._graph.state.cuttable else self._to_snapshot(sequence, n, budget)

    def _beside_images(self, sequence: Sequence, n: int, budget: int) -> int:
        """As many tokens, but no picture whose rows see each other is cut. One that is larger than the rest of the
        budget waits for a step's whole budget."""
        whole = whole_images(sequence.job.images, sequence.computed, n)
        return whole if whole <= max(n, budget) or budget == self.chunk else 0

    def _to_snapshot(self, sequence: Sequence, n: int, budget: int) -> int:
        """At most n tokens, so that the step ends where a snapshot of the state is wanted, or at the end of a page.

        A prompt is resumed at page ends only, so its last step begins at its last page end.
        """
        start, last = sequence.computed, n == sequence.pending
        if sequence.lease:
            n = self._pages.next_place(sequence.lease, start + n) - start
        end = start + n
        whole = end - end % PAGE
        if last and end == start + sequence.pending:
            whole = end - 1 - (end - 1) % PAGE
            return whole - start if whole > start else n
        if whole > start:
            return whole - start
        return n if budget == self.chunk else 0  # the rest of a budget, less than a page: wait for the next step

    def _is_uncuttable(self, sequence: Sequence) -> bool:
        """True if a text must be computed in one chunk: tokens see later ones, or a kept node pools all of them."""
        return self._graph.whole or not self._graph.pooled.isdisjoint(sequence.job.keep)

    # --- pages

    def _reserve(self, sequence: Sequence, n: int, plan: Plan) -> bool:
        """Reserve pages for n more tokens. Younger sequences are preempted if that is necessary."""
        assert sequence.lease
        while True:
            try:
                self._pages.reserve(sequence.lease, n)
                plan[sequence] = n
                return True
            except OutOfPages:
                youngest = self.running[-1]
                if youngest is sequence:
                    return False
                self.preempt(youngest, plan)

    def _admit(self, sequence: Sequence, plan: Plan) -> bool:
        """Start a waiting sequence, unless the cache lacks room or this step computes a prefix it could share."""
        all_rows = sequence.job.prompt_logprobs is not None or sequence.job.keep  # cached tokens give no rows
        lease = self._pages.open([] if all_rows else sequence.keys(), sequence.salt)
        spare = len(self.running)  # each running sequence may need another page soon
        step = max([self.chunk, *(len(p.image.rows) for p in sequence.job.images if p.image.sees_itself)])
        fits = not self.running or self._pages.fits(lease, len(sequence.ids) + 1, step, spare)
        if not fits or self._shares_prefix_with_step(sequence, lease.length, plan):
            self._pages.close(lease)
            return False
        sequence.lease = lease
        sequence.start_constraint()
        if not sequence.times.admitted:
            sequence.times.admitted = time.monotonic()
            sequence.cached = lease.length
        at = len(self.running)  # a preempted sequence returns to its place by time of arrival
        while at and self.running[at - 1].times.arrived > sequence.times.arrived:
            at -= 1
        self.running.insert(at, sequence)
        return True

    def _shares_prefix_with_step(self, sequence: Sequence, start: int, plan: Plan) -> bool:
        """True if this step completes the page that the sequence would compute first, or one worth copying from.

        The sequence then waits one step and takes the page from the cache.
        """
        end = start - start % PAGE + PAGE
        keys = sequence.keys(0, end)
        for other, n in plan.items():
            if other.salt == sequence.salt and other.computed < end <= other.computed + n:
                same = common(other.keys(0, end), keys)
                if (same == end and end < len(sequence.ids)) or (self._pages.copies and same - start >= _MIN_COPY):
                    return True
        return False
