"""The router's end of one replica: its connection, its last heartbeat, and the streams that it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.cluster import jobs
from assay.cluster.affinity import ReplicaLoad
from assay.cluster.fingerprint import short
from assay.cluster.frame_schema import checked, common_version
from assay.cluster.frames import Array, Channel, ConnectionBroken, Frame, MalformedFrame, connect
from assay.cluster.launchers import Handle
from assay.runtime.sequence import Job, Progress, Sink

RECEIVED = "replica to router"
TICK_S = 0.05
SILENT = 8  # ticks without a frame. Counted in ticks of the router's own loop: a busy router does not blame replicas
QUIET = 4  # ticks after which a heartbeat is late
STATE_COUNTS = ("state_slots", "state_running", "state_snapshots", "state_bytes")  # of models that keep states
PICTURES = 3  # the first version of the frames that has pictures
WORD_S = 1.0  # seconds between two heartbeats of the router


class RoutedStream(Progress):
    """A sequence that a replica computes, and its placement."""

    def __init__(self, job: Job, sink: Sink) -> None:
        super().__init__(job, sink)
        self.link: Link | None = None
        self.number = 0  # its id on its replica
        self.fingerprint: dict[str, Any] | None = None  # of the replicas that may continue it
        self.pinned = False  # to one replica: it is not moved on failover
        self.blamed: list[Link] = []  # replicas lost while they computed it, since its last token
        self.moved_at = 0  # tokens at the last move
        self.moves = 0
        self.names: list[str] = []  # page names of the ids it was sent with
        self.owed = 0  # tokens that its replica had to compute when it was sent
        self.began = False  # whether a token came since it was sent
        self.unplaced = 0.0  # the time since which no replica can take it
        self.unplaced_s = 0.0  # seconds without a replica, since its last token
        self.late = False  # whether the replica's heartbeat was already late when the stream was sent


ApplyUpdate = Callable[[RoutedStream, Mapping[str, Any], dict[str, list[Array]]], None]


@dataclass(eq=False)
class Link:
    """One replica, as the router sees it."""

    handle: Handle
    n_vocab: int = 0  # of the model; 0 if it is not known here
    state: str = "starting"  # starting | up | lost | draining | guest | gone
    hello: dict[str, Any] = field(default_factory=dict)
    beat: dict[str, Any] = field(default_factory=dict)
    known: ReplicaLoad = field(default_factory=ReplicaLoad)
    streams: dict[int, RoutedStream] = field(default_factory=dict)
    decoding: int = 0  # streams with a token from this replica
    channel: Channel | None = None
    silent: int = 0  # ticks without a frame
    still: int = 0  # ticks without an engine step although sequences run
    idle_since: float = 0.0
    lost: int = 0  # how often it was lost
    version: int = 1  # of the frames, as agreed with the replica
    cut_off: bool = False  # it was silent, but its event loop never stalled: the network was cut
    trial: RoutedStream | None = None  # a suspected stream, alone here until its next token: no other stream is placed
    suspect: str = ""  # the finding of an audit
    malformed: bool = False  # it sent a frame that no replica should send

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def fingerprint(self) -> dict[str, Any]:
        return dict(self.hello.get("fingerprint", {}))

    def like(self, other: Link) -> bool:
        """Whether it is another replica that can continue the same streams."""
        return self is not other and self.fingerprint == other.fingerprint

    def takes(self, job: Job) -> bool:
        """Whether its version of the frames has everything that the job has."""
        return self.version >= PICTURES or not job.images

    async def handshake(self, token: str, timeout: float) -> Channel:
        """Connect, read the replica's hello, and agree on a version of the frames."""
        channel = await connect(self.handle.host, self.handle.port, token, timeout=timeout)
        try:
            async with asyncio.timeout(timeout):
                hello = checked(await channel.receive(), RECEIVED, only="hello")
            self.version = common_version(hello.head, self.name)
        except TimeoutError:
            channel.close()
            raise ConnectionBroken(f"{self.name}: no hello within {timeout:g} s") from None
        except ConnectionBroken:
            channel.close()
            raise
        channel.send({"op": "version", "version": self.version})
        self.cut_off = self.silent > SILENT and hello.head["stood_s"] < SILENT * TICK_S / 2
        self.hello, self.channel, self.silent, self.still = hello.head, channel, 0, 0
        self.known.reset(hello.head["held"])
        return channel

    def send(self, stream: RoutedStream, number: int, names: list[str]) -> None:
        """Have the replica compute the rest of a stream."""
        assert self.channel
        answered = tuple(stream.ids[stream.n_prompt :])
        scored = None if stream.prompt_choices else stream.job.prompt_logprobs  # they are computed once
        job = replace(stream.job, answered=answered, prompt_logprobs=scored)
        head, arrays = jobs.from_job(job, stream.seed)
        stream.link, stream.number, stream.began, stream.late = self, number, False, self.quiet
        stream.names, stream.owed = names, self.known.send(names, len(stream.ids))
        self.streams[number] = stream
        self.channel.send({"op": "submit", "id": number, "job": head}, arrays)

    def leave(self, stream: RoutedStream) -> None:
        """Take a stream off this replica: it has finished, was cancelled, or moves."""
        if self.streams.pop(stream.number, None) is stream:
            self.began(stream)
            self.decoding -= 1
        stream.link = None

    def began(self, stream: RoutedStream) -> None:
        """The prompt of a stream has been computed."""
        if not stream.began:
            stream.began = True
            self.decoding += 1
            self.known.began(stream.names, stream.owed)
        if self.trial is stream:
            self.trial = None

    @property
    def quiet(self) -> bool:
        """The heartbeat is late. The replica may be lost, so streams are placed elsewhere if they can be."""
        return self.silent > QUIET

    def may_blame(self, stream: RoutedStream) -> bool:
        """Whether a stream may have caused the loss of this replica.

        A stream that was still queued at the last heartbeat did not, nor did one that was sent after the silence began.
        """
        return stream.number not in self.beat.get("queue", ()) and not (stream.late and self.silent > SILENT)

    def cancel(self, numbers: list[int]) -> None:
        if self.channel and numbers:
            self.channel.send({"op": "cancel", "ids": numbers})

    def handle_frame(self, message: Frame, news: ApplyUpdate) -> None:
        """Handle a frame of the replica. Any frame proves that it is alive.

        Raises ConnectionBroken if the frame is malformed or contradicts earlier ones.
        """
        checked(message, RECEIVED, never="hello")
        self.silent = 0
        if message.op == "beat":
            if message.head["steps"] != self.beat.get("steps") or not message.head["running"]:
                self.still = 0
            self.known.changed(message.head["held"])
            self.beat = message.head
            return
        for update in message.head["updates"]:
            stream = self.streams.get(update["id"])
            if stream is not None:  # else it has moved or ended, and the frame is late
                self._check_order(stream, update)
                news(stream, update, _nodes(update, message.arrays))

    def _check_order(self, stream: RoutedStream, update: Mapping[str, Any]) -> None:
        """Refuse a token that is not the next one of its answer, or that the model does not have."""
        if "choice" not in update:
            return
        if self.version >= 2 and update.get("at") != stream.generated:
            raise MalformedFrame(
                f"frame news: not the next token of an answer (found {update.get('at')}, expected {stream.generated})"
            )
        token, _, top = update["choice"]
        if self.n_vocab and max([token, *(row[0] for row in top)]) >= self.n_vocab:
            raise MalformedFrame(f"frame news: token {token} is not in the vocabulary of {self.n_vocab} tokens")

    def row(self) -> dict[str, Any]:
        """The state of the replica as a row of a table."""
        found: dict[str, Any] = {"replica": self.name, "node": self.handle.node, "state": self.state}
        if self.hello:
            found |= {"engine": self.hello["engine"], "isa": self.hello["isa"], "pages": self.hello["pages"]}
            found |= {"fingerprint": short(self.fingerprint)}
        found |= {key: self.beat.get(key, 0) for key in ("running", "waiting", "pages_available", "tokens")}
        found |= {key: self.beat[key] for key in STATE_COUNTS if key in self.beat}
        return found | {"streams": len(self.streams), "lost": self.lost, "suspect": self.suspect}


def _nodes(update: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, list[Array]]:
    """The nodes that a finished job has kept, a list of chunks under each name."""
    found: dict[str, list[Array]] = {}
    if "finish" in update:
        for key, value in arrays.items():
            number, _, name = key.split("/", 2)
            if int(number) == update["id"]:
                found.setdefault(name, []).append(value)
    return found
