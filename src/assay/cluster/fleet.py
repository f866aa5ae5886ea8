"""The router: streams on replicas, and their move when one dies. It is what a server's handlers submit jobs to.

A replica is lost when its connection breaks, when it has said nothing for 0.45 s (and another one could go on),
or when its engine stands still with work before it. Its streams go elsewhere at once: prompt, tokens so far and seed
are all that another replica needs, and because bits depend on nothing else, the client receives what it would have
received. Only replicas with the same fingerprint go on with a stream.

Who killed it? A request that kills replicas must not go through all of them, and one that was only there must not pay
for it. A stream is blamed for a loss if the replica may have begun with it. Its next token clears it; so does a replica
that was silent, comes back and says that it never stood still: only the way was cut. Blamed MOVES times in a row, it is
tried alone: where it goes nobody else comes until it has a token. If that replica is lost too, it gets an error.

Everything here runs on one event loop. A frame that comes for a stream which has moved meanwhile finds nobody.
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
from assay.cluster.frames import Array, ConnectionBroken
from assay.cluster.launchers import Launcher
from assay.cluster.replica_link import SILENT, TICK_S, WORD_S, Link, RoutedStream
from assay.errors import AssayError
from assay.runtime.prefix_keys import page_names
from assay.runtime.scheduler import Meter
from assay.runtime.sequence import Job, Progress, Sink, Update
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, QueueFull

log = logging.getLogger("assay.cluster")
MOVES = 2  # in a row, without a token between
AGAIN_S = 5.0  # a replica that was lost but lives may come back for so long
STUCK_S = 60.0  # with work and without a step
SPAWN_S = 30.0  # between two attempts to start a replica, at most


@dataclass(frozen=True)
class Bounds:
    """How many replicas there are: between `least` and `most`, by how long streams wait."""

    least: int = 1
    most: int = 1
    up_s: float = 1.0  # a stream that has waited so long on every replica asks for another one
    down_s: float = 60.0  # a replica that was not needed for so long goes
    drain_s: float = 30.0  # to finish what it has; then that moves


@dataclass
class Tally:
    """What the router has counted."""

    moves: int = 0
    lost: int = 0
    errors: int = 0
    silences: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=10_000))
    """Seconds around a move: from token to token, and of these what was neither the time in which no replica was up nor
    the new replica's queue and prefill."""


class Fleet:
    """Submit jobs; their sinks get updates until one that finishes. `start` first."""

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
        self.finished: Callable[[RoutedStream, Link], None] | None = None  # who looks at answers that have ended
        self._choose = choose or cheapest
        self._queue = waiting
        self._numbers = count(1)
        self._homeless: list[RoutedStream] = []  # no replica can take them now
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting = 0
        self._stop: Exception | None = None
        self._changed = asyncio.Event()
        self._spread = 1.0  # seconds of a stream, a running mean
        self._served = False  # whether a replica has ever been up
        self._failure: AssayError | None = None  # of the last attempt to start a replica

    # --- what handlers use

    @property
    def ready(self) -> bool:
        return bool(self.up)

    def submit(self, given: Sequence[Job], sinks: Sequence[Sink]) -> list[RoutedStream]:
        if self._stop:
            raise self._stop
        live = self.live
        if live + len(given) > max(len(self.up), 1) * self.spec["running"] + self._queue:
            slots = max(len(self.up), 1) * self.spec["running"]
            raise QueueFull(live, max(1, min(60, round(self._spread * live / slots))))
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
        for stream in [*self._homeless, *(s for link in self.links for s in link.streams.values())]:
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

    def streams(self) -> list[Progress]:
        return [stream for link in self.links for stream in link.streams.values() if stream.began]

    def who(self) -> list[dict[str, Any]]:
        return [link.row() for link in self.links]

    # --- the state of things

    @property
    def up(self) -> list[Link]:
        return [link for link in self.links if link.state == "up"]

    @property
    def live(self) -> int:
        return len(self._homeless) + sum(len(link.streams) for link in self.links)

    async def start(self) -> None:
        """Until the first replica is up; the others come as they are ready."""
        self._task(self._watch())
        self._heal()
        while not self.up:
            if self._failure and not self._starting and not self.links:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    async def settled(self) -> None:
        """Until as many replicas are up as there should be at least."""
        while len(self.up) < self.bounds.least:
            self._changed.clear()
            await self._changed.wait()

    # --- streams

    def place(self, stream: RoutedStream, avoid: Link | None = None) -> None:
        """Send a stream to the replica where it costs least, or keep it until there is one."""
        equal = [link for link in self.up if not link.trial and stream.fingerprint in (None, link.fingerprint)]
        links = [link for link in equal if link is not avoid] or equal
        links = [link for link in links if not link.quiet] or links
        if not links:
            stream.homeless = stream.homeless or time.monotonic()
            self._homeless.append(stream)
            return
        if stream.homeless:
            stream.homeless_s += time.monotonic() - stream.homeless
            stream.homeless = 0.0
        names = page_names(stream.ids)
        if len(stream.blamed) >= MOVES:
            link = min(links, key=lambda link: len(link.streams))
            link.trial = stream
        else:
            link = self._choose(links, names, len(stream.ids))
        stream.fingerprint = link.fingerprint
        link.send(stream, next(self._numbers), names)

    def move(self, stream: RoutedStream, why: str, *, strike: bool) -> None:
        """Go on elsewhere."""
        link = stream.link
        if link:
            if strike and link.accuses(stream):
                stream.blamed.append(link)
            link.leave(stream)
        stream.moves += 1
        self.tally.moves += 1
        stream.moved_at = stream.generated
        if stream.pinned:
            self._end(stream, Update(finish="error", error=EngineFailed(why)))
        elif len(stream.blamed) > MOVES:
            message = f"{why}; the request was moved {MOVES} times without coming further, and is not moved again"
            self._end(stream, Update(finish="error", error=EngineFailed(message)))
        else:
            self.place(stream, avoid=link)

    def only(self, job: Job, sink: Sink, link: Link) -> RoutedStream:
        """A stream that is computed on one replica or not at all."""
        if link.channel is None:
            raise AssayError(f"{link.name}: is not connected")
        stream = RoutedStream(job, sink)
        stream.pinned = True
        stream.fingerprint = link.fingerprint
        link.send(stream, next(self._numbers), page_names(stream.ids))
        return stream

    def _news(self, stream: RoutedStream, found: Mapping[str, Any], nodes: dict[str, list[Array]]) -> None:
        """An update of a stream that is where the frame came from."""
        update, link, now = jobs.to_update(found), stream.link, time.monotonic()
        assert link
        if isinstance(update.error, EngineFailed):
            self.move(stream, str(update.error), strike=True)
            return
        if "prompt" in found and not stream.prompt_choices:
            stream.prompt_choices = [jobs.to_choice(row) for row in found["prompt"]]
        if "cached" in found and not stream.times.admitted:
            stream.cached = found["cached"]
            stream.times.admitted = stream.times.arrived + found["queued_s"]
        if stream.pool and "pooled" in found:
            stream.pool.restore(nodes.pop(jobs.POOLED)[0], found["pooled"])
        stream.nodes = nodes or stream.nodes
        link.began(stream)
        if update.choice is not None:
            if stream.moves and stream.generated == stream.moved_at and stream.times.last:
                silence = now - stream.times.last
                self.tally.silences.append((silence, silence - stream.homeless_s - found.get("took_s", 0.0)))
                stream.homeless_s = 0.0
            stream.ids.append(update.choice.id)
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
        elif stream in self._homeless:
            self._homeless.remove(stream)
        stream.finished = True
        stream.sink(update)
        if stream.pinned:
            return
        self._spread += 0.1 * (time.monotonic() - stream.times.arrived - self._spread)
        self.tally.errors += update.finish == "error"
        self.meter.finished(stream, update.finish)
        if self.finished and link and update.finish not in ("error", "cancelled"):
            self.finished(stream, link)

    def _settle(self) -> None:
        """Somebody can take streams again."""
        self._served = True
        waiting, self._homeless = self._homeless, []
        for stream in waiting:
            self.place(stream)
        self._changed.set()

    def _relieve(self, fresh: Link) -> None:
        """Of the streams that wait elsewhere, one that has just come takes its share, those first that wait longest."""
        waiting = [
            stream for link in self.up if link.like(fresh)
            for number in link.beat.get("queue", ()) if (stream := link.streams.get(number))
            and not (stream.began or stream.pinned or link.trial is stream)
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

    def _heal(self) -> None:
        """Start what is missing."""
        there = sum(link.state in ("starting", "up", "lost") for link in self.links) + self._starting
        for _ in range(self.bounds.least - there):
            self.grow()

    def grow(self) -> None:
        """Another replica."""
        self._starting += 1
        self._task(self._life())

    async def spawn(self) -> Link:
        """A replica that nobody has met yet."""
        return Link(await asyncio.to_thread(self.launcher.spawn, self.spec))

    async def guest(self) -> Link:
        """A fresh replica that gets no streams but those that are sent to it by name."""
        link = await self.spawn()
        await link.meet(self.token, timeout=5.0)
        link.state = "guest"
        self.links.append(link)
        self._task(self._listen(link))
        return link

    async def _listen(self, link: Link) -> None:
        assert link.channel
        with suppress(ConnectionBroken):
            while True:
                link.hear(await link.channel.receive(), self._news)
        self.lose(link, "cut")

    async def dismiss(self, link: Link) -> None:
        """A guest goes."""
        self.links.remove(link)
        if link.channel:
            link.channel.close()
        await asyncio.to_thread(link.handle.kill)

    def replace(self, link: Link) -> None:
        """One that cannot be trusted goes, and another comes."""
        link.state = "draining"
        self._task(self.drain(link))
        self._heal()

    async def _life(self) -> None:
        """One replica, from its start to its end."""
        try:
            link = await self.spawn()
        except AssayError as error:
            log.error("%s", error)
            self._failure = error
            self._starting -= 1
            self._changed.set()
            await asyncio.sleep(min(SPAWN_S, 1.0 + 2 * self.tally.lost))
            if self._served:
                self._heal()
            return
        self._starting -= 1
        self.links.append(link)
        try:
            await self._attend(link)
        finally:
            draining, link.state = link.state == "draining", "gone"
            self.links.remove(link)
            self._changed.set()
            await asyncio.to_thread(link.handle.kill)
            if not draining and not self._stop:
                self._heal()

    async def _attend(self, link: Link) -> None:
        """Talk to it for as long as it can be talked to."""
        since = time.monotonic()
        while link.state != "draining" and time.monotonic() - since < AGAIN_S:
            if not await asyncio.to_thread(link.handle.alive):
                return
            try:
                channel = await link.meet(self.token, timeout=1.0)
            except ConnectionBroken as error:
                log.info("%s", error)
                await asyncio.sleep(0.2)
                continue
            link.state, link.idle_since = "up", time.monotonic()
            if link.cut_off:
                for stream in self._homeless + [s for other in self.links for s in other.streams.values()]:
                    stream.blamed = [other for other in stream.blamed if other is not link]
            self._settle()
            if link.state == "up":
                self._relieve(link)
            try:
                while True:
                    link.hear(await channel.receive(), self._news)
            except ConnectionBroken as error:
                self.lose(link, str(error))
            since = time.monotonic()

    def lose(self, link: Link, why: str) -> None:
        """It cannot be relied upon: what it had goes elsewhere."""
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
        """Nothing new goes there; what it has may end, and after a while moves."""
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

    async def _watch(self) -> None:
        """Who is silent, who stands still, who is out of time, and how many there should be."""
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
                    self.lose(link, f"silent for {silence:.2f} s")
                elif silence > AGAIN_S or link.still * TICK_S > STUCK_S:  # where nobody else is, it may take its time
                    why = f"silent for {silence:.0f} s" if silence > AGAIN_S else f"no step for {STUCK_S:g} s"
                    self.lose(link, why)
                    with suppress(OSError):
                        await asyncio.to_thread(link.handle.kill)
                elif now - word > WORD_S:
                    link.channel.send({"op": "beat"})
            word = now if now - word > WORD_S else word
            if self._homeless and self.up:  # somebody was tried there, and is cleared
                self._settle()
            for stream in [s for s in self._homeless if now > s.job.deadline]:
                message = f"no replica could take the request in time ({stream.generated} tokens generated)"
                self._end(stream, Update(finish="error", error=DeadlinePassed(message)))
            if now - scale > 0.25:
                scale = now
                self._scale(now)

    def _scale(self, now: float) -> None:
        """One more when streams wait everywhere, one less when nobody would miss it."""
        up, bounds = self.up, self.bounds
        for link in up:
            if link.streams:
                link.idle_since = now
        wanted = sum(link.state in ("starting", "up", "lost") for link in self.links) + self._starting
        waits = min((link.beat.get("queued_s", 0.0) for link in up), default=0.0)
        if (waits > bounds.up_s or (self._homeless and up)) and wanted < bounds.most and not self._starting:
            log.info("streams wait %.1f s, %d find no replica: another one", waits, len(self._homeless))
            self.grow()
        idle = [link for link in up if now - link.idle_since > bounds.down_s]
        if idle and len(up) > bounds.least:
            log.info("%s is not needed", idle[-1].name)
            self._task(self.drain(idle[-1]))


def cheapest(links: list[Link], names: list[str], n_tokens: int) -> Link:
    """Where the first token comes soonest; of equals, where least is kept."""
    return min(links, key=lambda link: (cost(link.known, names, n_tokens, link.decoding), len(link.streams)))
