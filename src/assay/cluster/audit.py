"""Audit: recompute a share of the finished answers on another replica, and compare them bit for bit.

Replicas with equal fingerprints compute equal bits, so one difference means a broken machine: its memory, its driver
or its build. A third replica decides which one is broken: a running replica, or a new one. The graph nodes show where:
first the outputs of the layers, then every node of the first layer that differs. The replica that disagrees with the
two others is reported and drained, so that a broken machine stops answering clients.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assay.cluster.fleet import Fleet
from assay.cluster.frames import Array
from assay.cluster.replica_link import Link, RoutedStream
from assay.errors import AssayError
from assay.graph.names import split
from assay.runtime.image_places import Images
from assay.runtime.sequence import Job, Update
from assay.runtime.sequence_errors import EngineFailed

log = logging.getLogger("assay.cluster")
AT_ONCE = 4  # audits at once; further answers are not audited, because clients have priority


@dataclass(frozen=True)
class ReplicaFinding:
    """A difference. `replica` is the one that disagrees with two others, or both names if there was no third."""

    replica: str
    node: str  # the machine, not a node of the graph
    position: int  # index in the answer of the first token that differs
    first: str  # the first graph node that differs there
    detail: str

    def __str__(self) -> str:
        return (
            f"audit: {self.replica} on {self.node} differs at token {self.position} of an answer, "
            f"first in {self.first} ({self.detail}); check that machine's memory, driver and build"
        )


class Auditor:
    """Audits finished answers of a fleet. `names` are the nodes of the graph, in order."""

    def __init__(self, fleet: Fleet, share: float, names: Sequence[str]) -> None:
        self._fleet, self._share, self._names = fleet, share, list(names)
        self._tasks: set[asyncio.Task[None]] = set()
        self.done = 0
        self.found: list[ReplicaFinding] = []
        fleet.finished = self.finished

    def finished(self, stream: RoutedStream, link: Link) -> None:
        """Decide at random whether to audit a finished answer. The draw does not touch the answer's own seed."""
        whole = not stream.moves and not stream.job.keep and stream.job.prompt_logprobs is None
        if whole and stream.generated and len(self._tasks) < AT_ONCE and random.random() < self._share:
            task = asyncio.ensure_future(self._audit(stream, link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def wait_until_idle(self) -> None:
        """Wait until no audit is running."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _audit(self, stream: RoutedStream, link: Link) -> None:
        others = [o for o in self._fleet.up if o is not link and o.fingerprint == stream.fingerprint]
        if not others:
            return
        other = min(others, key=lambda o: len(o.streams))
        try:
            position = await self._compare(stream, link, other)
        except (AssayError, asyncio.CancelledError) as error:
            log.info("an audit ended early: %s", error)
            return
        self.done += 1
        if position is not None:
            await self._report(stream, link, other, position)

    async def _compare(self, stream: RoutedStream, link: Link, other: Link) -> int | None:
        """The first token at which the other replica differs from the client's answer, or None.

        Sampled tokens hide small differences, so the final norm is compared as well, computed on both replicas.
        """
        again = await self._run(other, replace(stream.job, params=replace(stream.job.params, seed=stream.seed)))
        n = stream.n_prompt
        for i, (a, b) in enumerate(zip(stream.ids[n:], again.ids[n:], strict=False)):
            if a != b:
                return i
        if len(stream.ids) != len(again.ids):
            return min(len(stream.ids), len(again.ids)) - n
        images = stream.job.images
        last = next((name for name in ("result_norm", "result_output") if name in self._names), self._names[-1])
        mine, theirs = await asyncio.gather(*(self._nodes(o, stream.ids[:-1], [last], images) for o in (link, other)))
        rows = _differs(mine[last], theirs[last])
        return None if rows is None else max(rows - n + 1, 0)

    async def _report(self, stream: RoutedStream, link: Link, other: Link, position: int) -> None:
        ids = stream.ids[: stream.n_prompt + position]
        fresh: Link | None = None
        try:
            third = next(
                (o for o in self._fleet.up if o not in (link, other) and o.fingerprint == stream.fingerprint), None
            )
            if third is None:
                third = fresh = await self._fleet.guest()
            first, detail, alone = await self._search(ids, stream.job.images, (link, other, third))
        except (AssayError, OSError) as error:
            first, detail, alone = "?", f"not found: {error}", None
        finally:
            if fresh:
                await self._fleet.dismiss(fresh)
        named = alone.name if alone else f"{link.name} or {other.name}"
        machine = alone.handle.node if alone else f"{link.handle.node} or {other.handle.node}"
        finding = ReplicaFinding(named, machine, position, first, detail)
        self.found.append(finding)
        log.error("%s", finding)
        if alone and alone.state == "up":
            alone.suspect = str(finding)
            self._fleet.replace(alone)

    async def _search(
        self, ids: Sequence[int], images: Images, links: tuple[Link, Link, Link]
    ) -> tuple[str, str, Link | None]:
        """The first node on which two replicas differ, by how much, and the one that the third disagrees with."""
        a, b, _ = links
        layers = [name for name in self._names if split(name)[0] == "l_out"]
        outputs = await asyncio.gather(*(self._nodes(o, ids, layers, images) for o in (a, b)))
        wrong = next((n for n in layers if _differs(outputs[0][n], outputs[1][n]) is not None), None)
        layer = split(wrong)[1] if wrong else None
        if layer is None:  # after the last layer
            names = [name for name in self._names if split(name)[1] is None]
        else:
            names = [name for name in self._names if split(name)[1] == layer]
            if layer == split(layers[0])[1]:
                names = [n for n in self._names[: self._names.index(names[-1]) + 1] if split(n)[1] in (None, layer)]
        values = await asyncio.gather(*(self._nodes(o, ids, names, images) for o in links))
        for name in names:
            x, y, z = (found.get(name) for found in values)
            if x is None or y is None or z is None or _differs(x, y) is None:
                continue
            gap = float(np.max(np.abs(x.astype(np.float64) - y.astype(np.float64))))
            alone = b if _differs(x, z) is None else a if _differs(y, z) is None else None
            return name, f"by up to {gap:.3g}", alone
        return "no node when recomputed", "the difference did not occur again", None

    async def _nodes(self, link: Link, ids: Sequence[int], names: Sequence[str], images: Images) -> dict[str, Array]:
        """Nodes of a prompt, recomputed."""
        done = await self._run(link, Job(tuple(ids), keep=tuple(names), images=images))
        return {name: np.concatenate(parts, axis=0) for name, parts in done.nodes.items() if _by_token(parts, ids)}

    async def _run(self, link: Link, job: Job) -> RoutedStream:
        """Run a job on one replica, without failover."""
        over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def sink(update: Update) -> None:
            if update.finish and not over.done():
                over.set_result(update)

        stream = self._fleet.only(job, sink, link)
        update = await over
        if update.error or update.finish == "cancelled":
            raise EngineFailed(str(update.error or "cancelled"))
        return stream


def _by_token(parts: Sequence[Array], ids: Sequence[int]) -> bool:
    """Whether a node has one row for each token. Attention scores have not: their rows grow with the keys."""
    return len({part.shape[1:] for part in parts}) == 1 and sum(len(part) for part in parts) == len(ids)


def _differs(a: Array, b: Array) -> int | None:
    """The first row that is not bit-identical, or None."""
    if a.shape != b.shape:
        return 0
    x, y = (np.ascontiguousarray(v).reshape(len(v), -1).view(np.uint8) for v in (a, b))
    rows = np.flatnonzero((x != y).any(axis=1))
    return int(rows[0]) if len(rows) else None
