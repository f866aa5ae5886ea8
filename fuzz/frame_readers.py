"""Fuzzed frames of a cluster: what a replica, a router, a stage or its head may receive from a peer with the token.

A frame is read, checked against the table, and applied to a router that has streams. Any exception but ConnectionBroken
is a finding.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, cast

import numpy as np

from assay.cluster import jobs
from assay.cluster.fleet import Fleet
from assay.cluster.frame_schema import FRAMES, checked
from assay.cluster.frames import ConnectionBroken, Frame, pack, unpack
from assay.cluster.replica_link import Link, RoutedStream
from assay.runtime.params import SamplerParams
from assay.runtime.sequence import Job
from fuzz import mutate

_JOB, _ARRAYS = jobs.from_job(
    Job((1, 5, 6), SamplerParams(temp=0.5, dry_breakers={3: ((1, 2),)}, logit_bias=((5, 1.0),)), 9, ("a",), 2), 7
)
_UPDATE = {"id": 1, "text": "a", "choice": [5, -0.5, [[5, -0.5], [6, -1.5]]], "at": 0}
_EXAMPLES: dict[str, tuple[dict[str, Any], ...]] = {
    "replica to router": (
        {"op": "beat", "running": 1, "waiting": 0, "queued_s": 0.5, "pages_available": 9, "held": {"a": True},
         "queue": [2], "steps": 1, "tokens": 1},
        {"op": "news", "updates": [_UPDATE, _UPDATE | {"id": 2, "finish": "eos"}]},
        {"op": "news", "updates": [_UPDATE | {"cached": 2, "queued_s": 0.1, "took_s": 0.2, "prompt": [[5, -1.0, []]]}]},
        {"op": "news", "updates": [{"id": 3, "text": "", "finish": "error", "error": ["engine", "it broke"]}]},
        {"op": "news", "updates": [{"id": 4, "text": "", "finish": "length", "pooled": 3}]},
        {"op": "hello", "fingerprint": {"a": 1}, "engine": "cpu", "isa": "x", "pages": 9, "held": ["a"], "stood_s": 0.0,
         "speaks": [1, 2]},
    ),
    "router to replica": (
        {"op": "submit", "id": 1, "job": _JOB}, {"op": "cancel", "ids": [1, 2]}, {"op": "version", "version": 2},
    ),
    "head to stage": (
        {"op": "wire", "epoch": 1, "next": ["localhost", 80], "needed": ["l_out-0"]},
        {"op": "work", "epoch": 1, "id": 2, "chunks": [{"start": 0, "outputs": "last", "moved": False}], "keep": []},
        {"op": "copy", "epoch": 1, "source": 1, "to": 2},
    ),
    "stage to head": (
        {"op": "failed", "epoch": 1, "error": "x", "id": 2}, {"op": "done", "epoch": 1, "id": 2},
        {"op": "hello", "arithmetic": {}, "memory": {}, "dtype": "float32", "isa": "x"},
    ),
}  # fmt: skip


class _Silent:
    """The end of a channel that nobody reads."""

    def send(self, *_: Any) -> None: ...

    def close(self) -> None: ...


class _Nobody:
    """A replica's handle, for a router that starts none."""

    name, node, host, port = "fuzzed", "here", "127.0.0.1", 0

    def alive(self) -> bool:
        return True

    def kill(self) -> None: ...


def make_frame(rng: random.Random) -> tuple[str, bytes]:
    """The way that a frame goes, and its bytes: values changed, or bytes of the whole."""
    way = rng.choice(list(_EXAMPLES))
    head = mutate.value(rng, rng.choice(_EXAMPLES[way]), rng.choice((0.05, 0.15, 0.4)))
    if not isinstance(head, dict) or rng.random() < 0.05:
        text = json.dumps(head).encode()
        return way, len(text).to_bytes(4, "little") + text
    names = ["ids", "answered"] if way == "router to replica" else ["4/0/" + jobs.POOLED, "4/0/x", "0/rows/a", "9/z"]
    arrays = {
        rng.choice((*names, rng.choice(mutate.WORDS))): np.zeros(
            rng.choice(((3,), (0,), (2, 2), ())), rng.choice((np.int32, np.float32, np.float64))
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    }
    try:
        raw = pack(head, arrays)
    except (ValueError, TypeError, ConnectionBroken):
        raw = pack({}, arrays)
    return way, mutate.data(rng, raw) if rng.random() < 0.3 else raw


def read_frame(item: tuple[str, bytes]) -> None:
    """Read, check and apply one frame."""
    way, raw = item
    frame = checked(unpack(raw), way)
    if way == "replica to router":
        _apply(frame)
    elif way == "router to replica" and frame.op == "submit":
        jobs.to_job(frame.head["job"], dict(_ARRAYS) | frame.arrays, cast(Any, None))
    assert way in FRAMES


def _apply(frame: Frame) -> None:
    """Give a frame to a router with four streams; the last one embeds a text."""
    fleet = _fleet()
    link = Link(cast(Any, _Nobody()), 512)
    link.channel, link.version = cast(Any, _Silent()), 2
    for number in range(1, 5):
        keep = ("x",) if number == 4 else ()
        stream = RoutedStream(Job((1, 5, 6), max_tokens=9, keep=keep, pooling="mean" if keep else None), lambda _: None)
        stream.link, stream.number = link, number
        link.streams[number] = stream
    link.handle_frame(frame, fleet._apply_update)
    json.dumps(link.row())


def _fleet() -> Fleet:
    global _made
    if _made is None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        _made = Fleet(cast(Any, None), {"running": 4}, token="x")
    _made._unplaced.clear()
    return _made


_made: Fleet | None = None
