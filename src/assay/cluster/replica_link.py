"""The router's end of one replica: its connection, what it said of itself, and the streams that it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.cluster import jobs
from assay.cluster.affinity import Known
from assay.cluster.fingerprint import short
from assay.cluster.frames import Array, Channel, ConnectionBroken, Frame, connect
from assay.cluster.launchers import Handle
from assay.runtime.sequence import Job, Progress, Sink

TICK_S = 0.05
SILENT = 8  # ticks of our own event loop without a word: a loop that was busy itself does not blame others
QUIET = 4  # ticks after which a beat is late
WORD_S = 1.0  # that a router leaves between two words of its own


class RoutedStream(Progress):
    """A sequence that is computed elsewhere, and where it is."""

    def __init__(self, job: Job, sink: Sink) -> None:
        super().__init__(job, sink)
        self.link: Link | None = None
        self.number = 0  # under which its replica knows it
        self.fingerprint: dict[str, Any] | None = None  # of those that may go on with it
        self.pinned = False  # to one replica: it does not move
        self.blamed: list[Link] = []  # those that were lost while they computed it, since its last token
        self.moved_at = 0  # tokens at the last move
        self.moves = 0
        self.names: list[str] = []  # of the pages of what it was sent with
        self.owed = 0
        self.began = False  # since it was sent
        self.homeless = 0.0  # since when no replica can take it
        self.homeless_s = 0.0  # in all, since its last token
        self.late = False  # it was sent when the replica was quiet already


ApplyUpdate = Callable[[RoutedStream, Mapping[str, Any], dict[str, list[Array]]], None]


@dataclass(eq=False)
class Link:
    """One replica."""

    handle: Handle
    state: str = "starting"  # starting | up | lost | draining | guest | gone
    hello: dict[str, Any] = field(default_factory=dict)
    beat: dict[str, Any] = field(default_factory=dict)
    known: Known = field(default_factory=Known)
    streams: dict[int, RoutedStream] = field(default_factory=dict)
    decoding: int = 0  # streams that have had a token there
    channel: Channel | None = None
    silent: int = 0  # ticks
    still: int = 0  # ticks without a step though there is work
    idle_since: float = 0.0
    lost: int = 0  # times
    cut_off: bool = False  # it was silent and is back, and by its own word it never stood still: the way was cut
    trial: RoutedStream | None = None  # a stream that is tried here: until its next token nobody else comes
    suspect: str = ""  # what an audit found

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def fingerprint(self) -> dict[str, Any]:
        return dict(self.hello.get("fingerprint", {}))

    def like(self, other: Link) -> bool:
        """Whether it is another one that goes on with the same streams."""
        return self is not other and self.fingerprint == other.fingerprint

    async def meet(self, token: str, timeout: float) -> Channel:
        """Connect, and hear who it is."""
        channel = await connect(self.handle.host, self.handle.port, token, timeout=timeout)
        try:
            async with asyncio.timeout(timeout):
                hello = await channel.receive()
        except TimeoutError:
            channel.close()
            raise ConnectionBroken(f"{self.name}: no hello within {timeout:g} s") from None
        self.cut_off = self.silent > SILENT and hello.head["stood_s"] < SILENT * TICK_S / 2
        self.hello, self.channel, self.silent, self.still = hello.head, channel, 0, 0
        self.known.reset(hello.head["held"])
        return channel

    def send(self, stream: RoutedStream, number: int, names: list[str]) -> None:
        """Have the replica compute what is left of a stream."""
        assert self.channel
        answered = tuple(stream.ids[stream.n_prompt :])
        scored = None if stream.prompt_choices else stream.job.prompt_logprobs  # once is enough
        job = replace(stream.job, answered=answered, prompt_logprobs=scored)
        head, arrays = jobs.from_job(job, stream.seed)
        stream.link, stream.number, stream.began, stream.late = self, number, False, self.quiet
        stream.names, stream.owed = names, self.known.send(names, len(stream.ids))
        self.streams[number] = stream
        self.channel.send({"op": "submit", "id": number, "job": head}, arrays)

    def leave(self, stream: RoutedStream) -> None:
        """It is finished, cancelled or moved."""
        if self.streams.pop(stream.number, None) is stream:
            self.began(stream)
            self.decoding -= 1
        stream.link = None

    def began(self, stream: RoutedStream) -> None:
        """Its prompt has been computed."""
        if not stream.began:
            stream.began = True
            self.decoding += 1
            self.known.began(stream.names, stream.owed)
        if self.trial is stream:
            self.trial = None

    @property
    def quiet(self) -> bool:
        """It should have said something: perhaps it is lost, and nobody is sent there who can go elsewhere."""
        return self.silent > QUIET

    def accuses(self, stream: RoutedStream) -> bool:
        """Whether a stream may be why it was lost: not one that waited when it last spoke, nor one that came when it
        was silent already."""
        return stream.number not in self.beat.get("queue", ()) and not (stream.late and self.silent > SILENT)

    def cancel(self, numbers: list[int]) -> None:
        if self.channel and numbers:
            self.channel.send({"op": "cancel", "ids": numbers})

    def hear(self, message: Frame, news: ApplyUpdate) -> None:
        """A frame came: the replica lives."""
        self.silent = 0
        if message.op == "beat":
            if message.head["steps"] != self.beat.get("steps") or not message.head["running"]:
                self.still = 0
            self.known.changed(message.head["held"])
            self.beat = message.head
            return
        for update in message.head.get("updates", ()):
            stream = self.streams.get(update["id"])
            if stream is not None:
                news(stream, update, _nodes(update, message.arrays))

    def row(self) -> dict[str, Any]:
        """How it is, for people."""
        found: dict[str, Any] = {"replica": self.name, "node": self.handle.node, "state": self.state}
        if self.hello:
            found |= {"engine": self.hello["engine"], "isa": self.hello["isa"], "pages": self.hello["pages"]}
            found |= {"fingerprint": short(self.fingerprint)}
        found |= {key: self.beat.get(key, 0) for key in ("running", "waiting", "pages_available", "tokens")}
        return found | {"streams": len(self.streams), "lost": self.lost, "suspect": self.suspect}


def _nodes(update: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, list[Array]]:
    """What a probe has kept, chunk by chunk."""
    found: dict[str, list[Array]] = {}
    if "finish" in update:
        for key, value in arrays.items():
            number, _, name = key.split("/", 2)
            if int(number) == update["id"]:
                found.setdefault(name, []).append(value)
    return found
