"""A replica that computes nothing and says what a test has planted: `python -m tests.cluster.fake_replica`.

The first line on standard input is its token and the fields of its hello. It prints its port. The owner of each job
that it receives names a case of `CASES`: it answers with the frames of that case, and heartbeats go on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

from assay.cluster import frames
from assay.cluster.frames import Channel, ConnectionBroken, accept

BEAT: dict[str, Any] = {
    "op": "beat", "running": 1, "waiting": 0, "queued_s": 0.0, "pages_available": 9, "held": {}, "queue": [],
    "steps": 1, "step_tokens": 1, "tokens": 1, "preempted": 0, "engine_s": 0.0, "sampling_s": 0.0,
}  # fmt: skip
TOKEN = {"id": "ID", "text": "a", "choice": [5, -0.5, [[5, -0.5]]], "at": 0}
DEEP = "[" * 100_000 + "]" * 100_000


def _without(source: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in names}


def _news(*changes: Any) -> dict[str, Any]:
    """A frame with updates: each change is fields over those of a token, or an update of another shape."""
    return {"op": "news", "updates": [TOKEN | c if isinstance(c, dict) else c for c in changes]}


# name: the frames that are sent after a job has come. "ID" stands for the number of its stream.
CASES: dict[str, list[Any]] = {
    "the issue's own": [{"op": "beat"}],
    **{f"beat without {name}": [_without(BEAT, name)] for name in BEAT if name in {
        "running", "waiting", "queued_s", "pages_available", "held", "queue", "steps", "tokens"}},
    "beat with a text for a number": [BEAT | {"running": "1"}],
    "beat with nan": [BEAT | {"queued_s": float("nan")}],
    "beat with infinity": [BEAT | {"steps": float("inf")}],
    "beat with a negative number": [BEAT | {"waiting": -1}],
    "beat with true for a number": [BEAT | {"running": True}],
    "beat with a huge number": [BEAT | {"running": 10**30}],
    "beat with pages as a list": [BEAT | {"held": ["a"]}],
    "beat with numbers for pages": [BEAT | {"held": {"a": 1}}],
    "beat with texts in its queue": [BEAT | {"queue": ["1"]}],
    "no op": [{"running": 1}],
    "op is a number": [{"op": 7}],
    "op is null": [{"op": None}],
    "unknown op": [{"op": "gossip", "updates": []}],
    "hello again": ["HELLO"],
    "a frame of a router": [{"op": "submit", "id": 1, "job": {}}],
    "news without updates": [{"op": "news"}],
    "updates are an object": [{"op": "news", "updates": {"id": 1}}],
    "an update is a number": [_news(7)],
    "an update without id": [{"op": "news", "updates": [_without(TOKEN, "id")]}],
    "an update without text": [{"op": "news", "updates": [_without(TOKEN, "text")]}],
    "an update with a huge id": [_news({}, {"id": 10**30})],
    "an update with a text for an id": [_news({}, {"id": "1"})],
    "an update with a number for a text": [_news({"text": 5})],
    "half a surrogate pair": [_news({"text": "\ud800"})],
    "a choice of two": [_news({"choice": [5, -0.5]})],
    "a choice with nan": [_news({"choice": [5, float("nan"), []]})],
    "a choice with a text for a score": [_news({"choice": [5, "0", []]})],
    "a negative token": [_news({"choice": [-1, -0.5, []]})],
    "a token outside the vocabulary": [_news({"choice": [999_999, -0.5, []]})],
    "an alternative outside the vocabulary": [_news({"choice": [5, -0.5, [[10**9, -1.0]]]})],
    "alternatives of another shape": [_news({"choice": [5, -0.5, [5]]})],
    "a token without its place": [{"op": "news", "updates": [_without(TOKEN, "at")]}],
    "the same token twice": [_news({}), _news({})],
    "tokens in the wrong order": [_news({"at": 1}), _news({"at": 0})],
    "an unknown end": [_news({"finish": "boredom"})],
    "an end that is a number": [_news({"finish": 1})],
    "an error without a reason": [_news({"finish": "error"})],
    "a reason without an error": [_news({"error": ["engine", "x"]})],
    "a reason of another shape": [_news({"finish": "error", "error": "x"})],
    "cached without its time": [_news({"cached": 1})],
    "a negative time": [_news({"cached": 1, "queued_s": -1.0})],
    "prompt scores of another shape": [_news({"prompt": [1, 2]})],
    "an array without a stream": [("arrays", _news({}), {"x": 1})],
    "an array with a huge index": [("arrays", _news({}), {"9" * 5000 + "/0/x": 1})],
    "not json": [b"{"],
    "not an object": [b"[]"],
    "too deep": [DEEP.encode()],
    "a number of 5000 digits": [b'{"op":"beat","running":' + b"9" * 5000 + b"}"],
    "arrays that are not there": [b'{"op":"beat","arrays":[["a","float32",[9]]]}'],
    "no bytes": [b""],
    "too much json": [b'{"op":"beat","x":"' + b"a" * (1 << 24) + b'"}'],
}  # fmt: skip
# Frames that a healthy replica may send, too: a stream that has moved or ended, and fields of a newer version.
HARMLESS: dict[str, list[Any]] = {
    "a token of an unknown stream": [_news({"id": 4_000_000})],
    "a field of a newer version": [BEAT | {"mood": "fine"}],
    "the end of an unknown stream": [_news({"id": 4_000_001, "finish": "eos"})],
}


def _filled(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, number) for item in value]
    return number if value == "ID" else value


class FakeReplica:
    """Serves one connection after the other."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.hello = hello

    async def attend(self, channel: Channel) -> None:
        channel.send({"op": "hello", **self.hello})
        beats = asyncio.ensure_future(self._beats(channel))
        try:
            while True:
                message = await channel.receive()
                if message.op == "submit":
                    number, (_, case) = message.head["id"], message.head["job"]["owner"]
                    for frame in (CASES | HARMLESS)[case]:
                        self._say(channel, frame, number)
        finally:
            beats.cancel()

    async def _beats(self, channel: Channel) -> None:
        while True:
            channel.send(BEAT)
            await asyncio.sleep(0.05)

    def _say(self, channel: Channel, frame: Any, number: int) -> None:
        if isinstance(frame, tuple):
            _, head, arrays = frame
            channel.send(_filled(head, number), {name: np.zeros(n, np.float32) for name, n in arrays.items()})
        elif isinstance(frame, bytes):  # a body that `pack` would not write, with a valid MAC
            real, frames.pack = frames.pack, lambda *_: len(frame).to_bytes(4, "little") + frame
            channel.send({})
            frames.pack = real
        else:
            channel.send({"op": "hello", **self.hello} if frame == "HELLO" else _filled(frame, number))


async def main() -> None:
    given = json.loads(sys.stdin.readline())
    replica = FakeReplica(given["hello"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await replica.attend(await accept(reader, writer, given["token"]))
        except ConnectionBroken:
            return
        finally:
            writer.transport.abort()

    async def commands() -> None:
        """Another hello for the next connection."""
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            replica.hello = json.loads(line)
            print("ok", flush=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await commands()


if __name__ == "__main__":
    asyncio.run(main())
