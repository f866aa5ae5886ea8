"""The router: places streams on replicas, fails over when a replica is lost, and autoscales.

The server's handlers submit jobs to it. A replica is lost in three cases: its connection breaks; it sends no frame for
0.45 s while another replica could continue; or its engine makes no step although it has work. The streams of a lost
replica move at once. Another replica needs only the prompt, the tokens so far and the seed, because bits depend on
nothing else. The client receives the same tokens as without the loss. A stream moves only between replicas with the
same fingerprint.

A request that kills replicas must not kill all of them, and a request that was only present must not be punished.
So a stream is blamed for a loss if the replica may have started it. Its next token clears it. A replica that reconnects
and reports no stall clears it too, because then only the network was cut. A stream blamed MOVES times in a row gets a
trial: it runs alone on a replica until its next token. If that replica is lost too, the stream ends with an error.

Everything here runs on one event loop. A late frame for a stream that has moved is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from assay.cluster import jobs
from assay.cluster.affinity import cost
from assay.cluster.frame_schema import NoCommonVersion
from assay.cluster.frames import Array, Channel, ConnectionBroken, MalformedFrame
from assay.cluster.launchers import Launcher
from assay.cluster.picture_frames import check_sendable
from assay.cluster.replica_link import SILENT, TICK_S, WORD_S, Link, RoutedStream
from assay.engines.contract import Arithmetic
from assay.errors import AssayError
from assay.runtime.prefix_keys import page_names
from assay.runtime.scheduler import Meter
from assay.runtime.sequence import Job, Progress, Sink, Update
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, QueueFull

log = logging.getLogger("assay.cluster")
MOVES = 2  # blamed losses in a row, without a token between, before a stream is tried alone
AGAIN_S = 5.0  # seconds for which a lost replica whose process lives may reconnect
STUCK_S = 60.0  # seconds with work but without an engine step
SPAWN_S = 30.0  # longest pause between two attempts to start a replica


@dataclass(frozen=True)
class Bounds:
    """Autoscaling: between `least` and `most` replicas, decided by queue time."""

    least: int = 1
    most: int = 1
    up_s: float = 1.0  # queue time on every replica after which one is added
    down_s: float = 60.0  # idle time after which a replica is removed
    drain_s: float = 30.0  # time for a draining replica to finish its streams; then they move


@dataclass
class Tally:
    """Counters of the router."""

    moves: int = 0
    lost: int = 0
    errors: int = 0
    silences: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=10_000))
    """Interruptions by failover: seconds from token to token, and the router's own part of them.

    The router's part leaves out the time without any replica, and the queue and prefill of the new one.
    """


class Fleet:
    """The router of one model. Call `start`, then submit jobs; each sink gets updates until one that finishes."""

    def __init__(
        self,
        launcher: Launcher,
        spec: Mapping[str, Any],
        *,
        token: str,
        bounds: Bounds | None = None,
        waiting: int = 256,
        meter: Meter | None = None,
        choose: Callable[[list[Link], list[str], int], Link] | None = None,
    ) -> None:
        self.launcher, self.token = launcher, token
        self.spec = {**spec, "kind": "replica", "token": token}
        self.bounds = bounds or Bounds()
        self.meter = meter or Meter()
        self.links: list[Link] = []
        self.tally = Tally()
        self.finished: Callable[[RoutedStream, Link], None] | None = None  # the auditor's callback
        self._choose = choose or cheapest
        self._queue = waiting
        self._numbers = count(1)
        self._unplaced: list[RoutedStream] = []  # streams that no replica can take now
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = 0
        self._stop: Exception | None = None
        self._changed = asyncio.Event()
        self._stream_s = 1.0  # duration of a stream in seconds, a running mean
        self._served = False  # whether a replica was ever up
        self._failure: AssayError | None = None  # the error of the last failed start of a replica

    # --- used by the server's handlers

    @property
    def ready(self) -> bool:
        return bool(self.up)

    def submit(self, given: Sequence[Job], sinks: Sequence[Sink]) -> list[RoutedStream]:
        if self._stop:
            raise self._stop
        live = self.live
        if live + len(given) > max(len(self.up), 1) * self.spec["running"] + self._queue:
            slots = max(len(self.up), 1) * self.spec["running"]
            raise QueueFull(live, max(1, min(60, round(self._stream_s * live / slots))))
        for job in given:
            check_sendable(job.images)
        streams = [RoutedStream(job, sink) for job, sink in zip(given, sinks, strict=True)]
        for stream in streams:
            self.place(stream)
        return streams

    def cancel(self, sequences: Sequence[Progress]) -> None:
        for stream in sequences:
            if isinstance(stream, RoutedStream) and not stream.finished:
                if stream.link:
                    stream.link.cancel([stream.number])
                self._end(stream, Update(finish="cancelled"))

    def stop(self, error: Exception) -> None:
        self._stop = self._stop or error
        for stream in [*self._unplaced, *(s for link in self.links for s in link.streams.values())]:
            if stream.link:
                stream.link.cancel([stream.number])
            self._end(stream, Update(finish="error", error=error))

    async def end(self, error: Exception) -> None:
        self.stop(error)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for link in self.links:
            if link.channel:
                link.channel.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.launcher.close)

    store = None  # replicas keep no prefixes on disk

    def arithmetic(self, sequence: Progress) -> Arithmetic | None:
        """The arithmetic of the replicas that computed a stream."""
        found = sequence.fingerprint if isinstance(sequence, RoutedStream) else None
        return Arithmetic(**found["arithmetic"]) if found else None

    def streams(self) -> list[Progress]:
        return [stream for link in self.links for stream in link.streams.values() if stream.began]

    def rows(self) -> list[dict[str, Any]]:
        return [link.row() for link in self.links]

    # --- state

    @property
    def up(self) -> list[Link]:
        return [link for link in self.links if link.state == "up"]

    @property
    def live(self) -> int:
        return len(self._unplaced) + sum(len(link.streams) for link in self.links)

    async def start(self) -> None:
        """Start the replicas, and wait until the first one is up."""
        self._task(self._monitor())
        self._start_missing()
        while not self.up:
            if self._failure and not self._starting and not self.links:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_complete(self) -> None:
        """Wait until the least number of replicas is up."""
        while len(self.up) < self.bounds.least:
            self._changed.clear()
            await self._changed.wait()

    # --- streams

    def place(self, stream: RoutedStream, avoid: Link | None = None) -> None:
        """Send a stream to the replica with the lowest cost, or keep it until a replica can take it."""
        equal = [
            link for link in self.up
            if not link.trial and stream.fingerprint in (None, link.fingerprint) and link.takes(stream.job)
        ]  # fmt: skip
        links = [link for link in equal if link is not avoid] or equal
        links = [link for link in links if not link.quiet] or links
        if not links:
            stream.unplaced = stream.unplaced or time.monotonic()
            self._unplaced.append(stream)
            return
        if stream.unplaced:
            stream.unplaced_s += time.monotonic() - stream.unplaced
            stream.unplaced = 0.0
        names = page_names(stream.ids)
        if len(stream.blamed) >= MOVES:
            link = min(links, key=lambda link: len(link.streams))
            link.trial = stream
        else:
            link = self._choose(links, names, len(stream.ids))
        stream.fingerprint = link.fingerprint
        link.send(stream, next(self._numbers), names)

    def move(self, stream: RoutedStream, why: str, *, strike: bool) -> None:
        """Move a stream to another replica. `strike` blames the stream for the loss if it may have caused it."""
        link = stream.link
        if link:
            if strike and link.may_blame(stream):
                stream.blamed.append(link)
            link.leave(stream)
        stream.moves += 1
        self.tally.moves += 1
        stream.moved_at = stream.generated
        if stream.pinned:
            self._end(stream, Update(finish="error", error=EngineFailed(why)))
        elif len(stream.blamed) > MOVES:
            message = f"{why}; the request was moved {MOVES} times without a new token, and is not moved again"
            self._end(stream, Update(finish="error", error=EngineFailed(message)))
        else:
            self.place(stream, avoid=link)

    def only(self, job: Job, sink: Sink, link: Link) -> RoutedStream:
        """Submit a job that runs on one replica only, without failover."""
        if link.channel is None:
            raise AssayError(f"{link.name}: not connected")
        stream = RoutedStream(job, sink)
        stream.pinned = True
        stream.fingerprint = link.fingerprint
        link.send(stream, next(self._numbers), page_names(stream.ids))
        return stream

    def _apply_update(self, stream: RoutedStream, found: Mapping[str, Any], nodes: dict[str, list[Array]]) -> None:
        """Apply an update from the replica that has the stream."""
        update, link, now = jobs.to_update(found), stream.link, time.monotonic()
        assert link
        if isinstance(update.error, EngineFailed):
            self.move(stream, str(update.error), strike=True)
            return
        if "prompt" in found and not stream.prompt_choices:
            stream.prompt_choices = [jobs.to_choice(row) for row in found["prompt"]]
        if "cached" in found and not stream.times.admitted:
            stream.cached = min(found["cached"], stream.n_prompt)
            stream.times.admitted = stream.times.arrived + found["queued_s"]
        if stream.pool and "pooled" in found:
            stream.pool.restore(_pooled(nodes), max(found["pooled"], 1))
        stream.nodes = nodes or stream.nodes
        link.began(stream)
        if update.choice is not None:
            if stream.moves and stream.generated == stream.moved_at and stream.times.last:
                silence = now - stream.times.last
                self.tally.silences.append((silence, silence - stream.unplaced_s - found.get("took_s", 0.0)))
                stream.unplaced_s = 0.0
            stream.ids.append(update.choice.id)
            if "row" in found:
                stream.row_digests.append(bytes.fromhex(found["row"]))
            stream.blamed.clear()
            if not stream.pinned:
                self.meter.tokens(stream, 1, now)
            stream.times.first = stream.times.first or now
            stream.times.last = now
        if update.finish:
            self._end(stream, update, link)
        else:
            stream.sink(update)

    def _end(self, stream: RoutedStream, update: Update, link: Link | None = None) -> None:
        assert update.finish
        if stream.link:
            stream.link.leave(stream)
        elif stream in self._unplaced:
            self._unplaced.remove(stream)
        stream.finished = True
        stream.sink(update)
        if stream.pinned:
            return
        self._stream_s += 0.1 * (time.monotonic() - stream.times.arrived - self._stream_s)
        self.tally.errors += update.finish == "error"
        self.meter.finished(stream, update.finish)
        if self.finished and link and update.finish not in ("error", "cancelled"):
            self.finished(stream, link)

    def _place_waiting(self) -> None:
        """A replica can take streams again: place those that had none."""
        self._served = True
        waiting, self._unplaced = self._unplaced, []
        for stream in waiting:
            self.place(stream)
        self._changed.set()

    def _rebalance(self, fresh: Link) -> None:
        """Move a share of the queued streams of other replicas to a new one, the longest waiting first."""
        waiting = [
            stream for link in self.up if link.like(fresh)
            for number in link.beat.get("queue", ()) if (stream := link.streams.get(number))
            and fresh.takes(stream.job) and not (stream.began or stream.pinned or link.trial is stream)
        ]  # fmt: skip
        for stream in sorted(waiting, key=lambda stream: stream.times.arrived)[:: len(self.up)]:
            if stream.link:
                stream.link.cancel([stream.number])
                stream.link.leave(stream)
            fresh.send(stream, next(self._numbers), page_names(stream.ids))

    # --- replicas

    def _task(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start_missing(self) -> None:
        """Start replicas until the least number is running or starting."""
        there = sum(link.state in ("starting", "up", "lost") for link in self.links) + self._starting
        for _ in range(self.bounds.least - there):
            self.add_replica()

    def add_replica(self) -> None:
        """Start one more replica."""
        self._starting += 1
        self._task(self._run_replica())

    async def spawn(self) -> Link:
        """Start a replica, without connecting to it."""
        return Link(await asyncio.to_thread(self.launcher.spawn, self.spec), self.spec.get("n_vocab", 0))

    async def guest(self) -> Link:
        """Start and connect a replica that gets no streams by placement, only by `only`."""
        link = await self.spawn()
        await link.handshake(self.token, timeout=5.0)
        link.state = "guest"
        self.links.append(link)
        self._task(self._listen(link))
        return link

    async def _listen(self, link: Link) -> None:
        assert link.channel
        await self._handle_frames(link, link.channel)

    async def dismiss(self, link: Link) -> None:
        """Kill a guest replica."""
        self.links.remove(link)
        if link.channel:
            link.channel.close()
        await asyncio.to_thread(link.handle.kill)

    def replace(self, link: Link) -> None:
        """Drain a replica that cannot be trusted, and start another one."""
        link.state = "draining"
        self._task(self.drain(link))
        self._start_missing()

    async def _run_replica(self) -> None:
        """The life cycle of one replica: start, connect, serve, kill, replace."""
        try:
            link = await self.spawn()
        except AssayError as error:
            log.error("%s", error)
            self._failure = error
            self._starting -= 1
            self._changed.set()
            await asyncio.sleep(min(SPAWN_S, 1.0 + 2 * self.tally.lost))
            if self._served:
                self._start_missing()
            return
        self._starting -= 1
        self.links.append(link)
        try:
            await self._keep_connected(link)
        finally:
            draining, link.state = link.state == "draining", "gone"
            self.links.remove(link)
            self._changed.set()
            await asyncio.to_thread(link.handle.kill)
            if not draining and not self._stop:
                if link.malformed or not link.hello:  # the next one may be no better: do not start it in a loop
                    await asyncio.sleep(min(SPAWN_S, 1.0 + 2 * self.tally.lost))
                self._start_missing()

    async def _keep_connected(self, link: Link) -> None:
        """Handle the frames of a replica, and reconnect for AGAIN_S after a break."""
        since = time.monotonic()
        while link.state != "draining" and time.monotonic() - since < AGAIN_S:
            if not await asyncio.to_thread(link.handle.alive):
                return
            try:
                channel = await link.handshake(self.token, timeout=1.0)
            except NoCommonVersion as error:
                log.error("%s", error)
                self._failure = error
                return
            except ConnectionBroken as error:
                log.info("%s", error)
                self._failure = self._failure if link.hello else error
                await asyncio.sleep(0.2)
                continue
            link.state, link.idle_since = "up", time.monotonic()
            if link.cut_off:
                for stream in self._unplaced + [s for other in self.links for s in other.streams.values()]:
                    stream.blamed = [other for other in stream.blamed if other is not link]
            self._place_waiting()
            if link.state == "up":
                self._rebalance(link)
            await self._handle_frames(link, channel)
            if link.malformed:
                return  # what it sends cannot be trusted: it is replaced
            since = time.monotonic()

    async def _handle_frames(self, link: Link, channel: Channel) -> None:
        """Handle the frames of a replica until its connection ends. Whatever it sends, its streams move."""
        while True:
            try:
                link.handle_frame(await channel.receive(), self._apply_update)
            except ConnectionBroken as error:
                link.malformed = isinstance(error, MalformedFrame)
                self.mark_lost(link, str(error))
                return
            except Exception as error:  # of a kind that the table of frames does not know
                link.malformed = True
                log.exception("%s: a frame could not be handled", link.name)
                self.mark_lost(link, f"a frame could not be handled ({error})")
                return

    def mark_lost(self, link: Link, why: str) -> None:
        """Close the connection of a replica and move its streams to others."""
        if link.channel:
            link.channel.close()
            link.channel = None
        if link.state == "up":
            link.state = "lost"
            link.lost += 1
            self.tally.lost += 1
            if not self._stop:
                log.warning("%s lost (%s); %d streams move", link.name, why, len(link.streams))
        for stream in list(link.streams.values()):
            self.move(stream, f"{link.name} was lost ({why})", strike=True)

    async def drain(self, link: Link) -> None:
        """Remove a replica: it gets no new streams, and those that do not finish in time move."""
        link.state = "draining"
        until = time.monotonic() + self.bounds.drain_s
        while link.streams and time.monotonic() < until:
            await asyncio.sleep(TICK_S)
        numbers = list(link.streams)
        for stream in list(link.streams.values()):
            self.move(stream, f"{link.name} was drained", strike=False)
        link.cancel(numbers)
        if link.channel:
            link.channel.close()

    async def _monitor(self) -> None:
        """Every tick: detect silent and stalled replicas, end streams past their deadline, autoscale."""
        word, scale = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for link in list(self.links):
                if link.state not in ("up", "draining", "guest") or link.channel is None:
                    continue
                link.silent += 1
                link.still += bool(link.beat.get("running"))
                silence = link.silent * TICK_S
                if link.silent > SILENT and any(other.like(link) and not other.quiet for other in self.up):
                    self.mark_lost(link, f"silent for {silence:.2f} s")
                elif silence > AGAIN_S or link.still * TICK_S > STUCK_S:  # the only replica gets more time
                    why = f"silent for {silence:.0f} s" if silence > AGAIN_S else f"no step for {STUCK_S:g} s"
                    self.mark_lost(link, why)
                    with suppress(OSError):
                        await asyncio.to_thread(link.handle.kill)
                elif now - word > WORD_S:
                    link.channel.send({"op": "beat"})
            word = now if now - word > WORD_S else word
            if self._unplaced and self.up:  # a trial has ended, or a replica came up
                self._place_waiting()
            for stream in [s for s in self._unplaced if now > s.job.deadline]:
                message = f"no replica was available before the deadline ({stream.generated} tokens generated)"
                self._end(stream, Update(finish="error", error=DeadlinePassed(message)))
            if now - scale > 0.25:
                scale = now
                self._scale(now)

    def _scale(self, now: float) -> None:
        """Add a replica when streams queue on every one; remove one that was idle for long."""
        up, bounds = self.up, self.bounds
        for link in up:
            if link.streams:
                link.idle_since = now
        wanted = sum(link.state in ("starting", "up", "lost") for link in self.links) + self._starting
        waits = min((link.beat.get("queued_s", 0.0) for link in up), default=0.0)
        if (waits > bounds.up_s or (self._unplaced and up)) and wanted < bounds.most and not self._starting:
            log.info("autoscale: queue time %.1f s, %d unplaced streams: adding a replica", waits, len(self._unplaced))
            self.add_replica()
        idle = [link for link in up if now - link.idle_since > bounds.down_s]
        if idle and len(up) > bounds.least:
            log.info("autoscale: %s is idle: removing it", idle[-1].name)
            self._task(self.drain(idle[-1]))


def _pooled(nodes: dict[str, list[Array]]) -> Array:
    """The pooled vector of a finished job."""
    rows = nodes.pop(jobs.POOLED, [])
    if len(rows) != 1 or rows[0].ndim != 1 or rows[0].dtype.kind != "f":
        raise MalformedFrame("frame news: the pooled vector is missing, or not one row of numbers")
    return rows[0]


def cheapest(links: list[Link], names: list[str], n_tokens: int) -> Link:
    """The replica with the lowest cost; of equals, the one with the fewest streams."""
    return min(links, key=lambda link: (cost(link.known, names, n_tokens, link.decoding), len(link.streams)))
