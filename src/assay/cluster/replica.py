"""A replica: one scheduler and its engine behind frames.

    router → replica   submit (id, job) · cancel (ids) · beat (heartbeat)
    replica → router   hello (fingerprint, cached pages) · news (updates) · beat (load, pages added and evicted)

A connection owns the sequences that came over it. When it breaks they are cancelled, because the router moves them to
another replica. The heartbeat is sent by the event loop and has the number of engine steps. So the router can tell a
dead process (no heartbeat) from a stuck engine (heartbeats, but no steps).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from assay.cluster import jobs
from assay.cluster.fingerprint import fingerprint
from assay.cluster.frame_schema import VERSIONS, checked
from assay.cluster.frames import Array, Channel, Frame
from assay.cluster.launchers import Launcher
from assay.cluster.local_model import open_here
from assay.cluster.split import SplitEngine
from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.runtime.pages import Pages
from assay.runtime.scheduler import Meter, Scheduler, Updates, deliver
from assay.runtime.sequence import Sequence, Update
from assay.runtime.worker import Worker

log = logging.getLogger("assay.cluster")
BEAT_S = 0.1  # seconds between heartbeats
ALONE_S = 5.0  # seconds without a frame from the router, after which it counts as gone
LATELY_S = 10.0  # seconds for which a stall of the event loop is remembered
MANY = 1 << 20  # queue limit of the replica: the router enforces the real one


class Counts(Meter):
    """Totals of a scheduler. They only grow."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = dict.fromkeys(("steps", "step_tokens", "tokens", "preempted"), 0)
        self.totals |= {"engine_s": 0.0, "sampling_s": 0.0}

    def step(self, n_tokens: int, n_sequences: int, engine_s: float, sampling_s: float) -> None:
        for name, n in (("steps", 1), ("step_tokens", n_tokens), ("engine_s", engine_s), ("sampling_s", sampling_s)):
            self.totals[name] += n

    def preempted(self) -> None:
        self.totals["preempted"] += 1

    def tokens(self, sequence: Any, n: int, now: float) -> None:
        self.totals["tokens"] += n


class HeldPrefixes:
    """The prefixes in the cache, for each router that listens. The scheduler's thread updates it."""

    def __init__(self, pages: Pages) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._changes: dict[object, dict[str, bool]] = {}
        pages.watch = self._changed

    def _changed(self, name: str, here: bool) -> None:
        with self._lock:
            (self._names.add if here else self._names.discard)(name)
            for changes in self._changes.values():
                changes[name] = here

    def listen(self, who: object) -> list[str]:
        """All cached prefixes. From now on `changes` has the differences for this listener."""
        with self._lock:
            self._changes[who] = {}
            return list(self._names)

    def changes(self, who: object) -> dict[str, bool]:
        with self._lock:
            found = self._changes[who]
            self._changes[who] = {}
            return found

    def leave(self, who: object) -> None:
        with self._lock:
            self._changes.pop(who, None)


class Replica:
    """The service. One event loop for connections, one thread for the scheduler."""

    def __init__(self, spec: Mapping[str, Any], launcher: Launcher) -> None:
        self.opened = open_here(spec)
        self.engine = self._engine(spec, launcher)
        self.pictures = self.opened.pictures if spec.get("sees") else None
        projector = self.pictures.projector if self.pictures else None
        self.fingerprint = fingerprint(self.opened.file.path, self.engine, self.opened.n_ctx, projector)
        self._towers = ThreadPoolExecutor(1, thread_name_prefix="assay-tower")
        self.counts = Counts()
        self.scheduler = Scheduler(
            self.engine, self.opened.tokenizer, n_ctx=self.opened.n_ctx,
            running=spec["running"], chunk=spec["chunk"], meter=self.counts,
            speculator=self.opened.speculator(self.engine),
        )  # fmt: skip
        self.held = HeldPrefixes(self.scheduler.pages)
        self.worker = Worker(self.scheduler, waiting=MANY, post=self._post)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outboxes: set[_Outbox] = set()
        self._pulse: asyncio.Task[None] | None = None
        self._stood: deque[tuple[float, float]] = deque(maxlen=16)  # stalls of the event loop: end, duration

    def _engine(self, spec: Mapping[str, Any], launcher: Launcher) -> PagedEngine:
        if spec.get("split"):
            return SplitEngine(self.opened, spec, launcher)
        engine = self.opened.engine(scheduled=True)
        if engine.warm_up:
            engine.warm_up()
        return engine

    def close(self) -> None:
        self.worker.stop(AssayError("the replica is shutting down"))
        self.worker.join()
        self._towers.shutdown(cancel_futures=True)
        if self.pictures:
            self.pictures.projector.close()
        self.scheduler.close()

    async def attend(self, channel: Channel) -> None:
        self._loop = asyncio.get_running_loop()
        outbox = _Outbox(channel)
        self._outboxes.add(outbox)
        self._pulse = self._pulse or asyncio.ensure_future(self._watch_for_stalls())
        held = self.held.listen(outbox)
        channel.send(
            {
                "op": "hello",
                "speaks": list(VERSIONS),
                "fingerprint": self.fingerprint,
                "engine": self.engine.name,
                "isa": self.engine.isa,
                "pages": self.scheduler.pages.n_pages,
                "held": held,
                "stood_s": max((gap for when, gap in self._stood if time.monotonic() - when < LATELY_S), default=0.0),
            }
        )
        beats = asyncio.ensure_future(self._beats(outbox))
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                async with asyncio.timeout(ALONE_S):
                    message = checked(await channel.receive(), "router to replica")
                if message.op == "version":
                    outbox.version = message.head["version"]
                elif message.op == "submit":
                    if not message.head["job"].keys() & {"grammar", "images"}:
                        self._submit(outbox, message, self._job(outbox, message))
                        continue
                    task = asyncio.ensure_future(self._prepared(outbox, message))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                elif message.op == "cancel":
                    self._cancel(outbox, message.head["ids"])
        except TimeoutError:
            log.info("no frame from the router at %s for %s s", channel.peer, ALONE_S)
        finally:
            self._outboxes.discard(outbox)
            self.held.leave(outbox)
            beats.cancel()
            for task in tasks:
                task.cancel()
            self.worker.cancel(list(outbox.sequences.values()))

    def _job(self, outbox: _Outbox, message: Frame, arrived: float | None = None) -> Any:
        try:
            if message.head["id"] in outbox.unwanted:
                raise AssayError("job: was cancelled")
            given = message.head["job"], message.arrays
            return jobs.to_job(*given, self.opened.grammars, self.pictures, arrived)
        except AssayError as error:
            return error

    async def _prepared(self, outbox: _Outbox, message: Frame) -> None:
        """Compile a grammar or encode pictures in another thread, so that heartbeats continue.

        One tower runs at a time, in a thread of its own: grammars do not wait for pictures.
        """
        thread = self._towers if "images" in message.head["job"] else None
        work = partial(self._job, outbox, message, time.monotonic())
        job = await asyncio.get_running_loop().run_in_executor(thread, work)
        self._submit(outbox, message, job)

    def _submit(self, outbox: _Outbox, message: Frame, job: Any) -> None:
        number = message.head["id"]
        if number in outbox.unwanted:
            outbox.unwanted.discard(number)
            return
        try:
            if isinstance(job, Exception):
                raise job
            outbox.expect(number, len(job.answered))
            outbox.sequences[number] = self.worker.submit([job], [partial(outbox.put, number)])[0]
        except AssayError as error:
            outbox.put(number, Update(finish="error", error=error))
            outbox.flush()

    def _cancel(self, outbox: _Outbox, numbers: list[int]) -> None:
        known = [outbox.sequences[n] for n in numbers if n in outbox.sequences]
        outbox.unwanted.update(n for n in numbers if n not in outbox.sequences)
        self.worker.cancel(known)

    def _post(self, news: Updates) -> None:
        """Called by the scheduler's thread: deliver on the event loop."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver, news)

    def _deliver(self, news: Updates) -> None:
        deliver(news)
        for outbox in self._outboxes:
            outbox.flush()

    async def _watch_for_stalls(self) -> None:
        """Record stalls of this event loop. After a silence they tell the router whether the network was at fault."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(BEAT_S)
            now = time.monotonic()
            if now - before > 2 * BEAT_S:
                self._stood.append((now, now - before))

    async def _beats(self, outbox: _Outbox) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            running, waiting = self.worker.load
            oldest = min((s.times.arrived for s in tuple(self.scheduler.waiting)), default=None)
            outbox.channel.send(
                {
                    "op": "beat",
                    "running": running,
                    "waiting": waiting,
                    "queued_s": 0.0 if oldest is None else time.monotonic() - oldest,
                    "pages_available": self.scheduler.pages.available,
                    "held": self.held.changes(outbox),
                    "queue": [number for number, s in outbox.sequences.items() if s.lease is None],
                    **self.counts.totals,
                    **self.scheduler.state_counts(),
                }
            )


class _Outbox:
    """The updates for one router. All updates of a step go out in one frame."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.sequences: dict[int, Sequence] = {}
        self.unwanted: set[int] = set()  # cancelled before their job was submitted
        self.version = 1  # of the frames, until the router names another one
        self._at: dict[int, int] = {}  # index of the next token of each answer
        self._begun: set[int] = set()
        self._updates: list[dict[str, Any]] = []
        self._arrays: dict[str, Array] = {}

    def expect(self, number: int, answered: int) -> None:
        """A sequence begins after so many tokens of its answer."""
        self._at[number] = answered

    def put(self, number: int, update: Update) -> None:
        found = jobs.from_update(update) | {"id": number}
        sequence = self.sequences.get(number)
        if update.choice is not None:
            at = self._at[number]
            self._at[number] += 1
            if self.version >= 2:
                found["at"] = at
            if sequence is not None and sequence.row_digests:
                found["row"] = sequence.row_digests[at - len(sequence.job.answered)].hex()
        if sequence is not None and number not in self._begun:
            self._begun.add(number)
            times = sequence.times
            found |= {"cached": sequence.cached, "queued_s": max(times.admitted - times.arrived, 0.0)}
            found["took_s"] = time.monotonic() - times.arrived
            if sequence.prompt_choices:
                found["prompt"] = [jobs.from_choice(choice) for choice in sequence.prompt_choices]
        if update.finish:
            self._begun.discard(number)
            self._at.pop(number, None)
            self.sequences.pop(number, None)
            for name, parts in sequence.nodes.items() if sequence is not None else ():
                self._arrays |= {f"{number}/{i}/{name}": part for i, part in enumerate(parts)}
            if sequence is not None and sequence.pool and update.error is None and update.finish != "cancelled":
                self._arrays[f"{number}/0/{jobs.POOLED}"], found["pooled"] = sequence.pool.state
        self._updates.append(found)

    def flush(self) -> None:
        if self._updates:
            updates, self._updates = self._updates, []
            arrays, self._arrays = self._arrays, {}
            self.channel.send({"op": "news", "updates": updates}, arrays)
