"""What a stream writes, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from assay.errors import AssayError
from assay.serve.http.exchange import Event, Events, HttpCall, _answer, dumps, json_pieces, json_template


def written(*rounds: list[Event | Exception]) -> list[bytes]:
    """The writes of a stream whose events come in rounds, with a wait behind each."""
    call: HttpCall[None] = HttpCall(None, {}, AsyncExitStack())
    bodies: list[bytes] = []

    async def events() -> AsyncIterator[Event]:
        for round_ in rounds:
            for event in round_:
                if isinstance(event, Exception):
                    raise event
                yield event
            await call.pause()
            await asyncio.sleep(0)

    async def handler(_: Any, __: Any) -> Events:
        return Events(events())

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])

    asyncio.run(_answer(call, handler, None, send, "/v1/completions", 15.0))
    return bodies


def test_events_that_are_there_together_are_one_write() -> None:
    assert written([{"a": 1}, b'{"a":2}'], [], [{"a": 3}]) == [
        b'data: {"a":1}\n\ndata: {"a":2}\n\n',
        b'data: {"a":3}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_an_error_comes_behind_the_events_before_it() -> None:
    first, second = written([{"a": 1}], [{"a": 2}, AssayError("no more")])
    assert first == b'data: {"a":1}\n\n'
    assert second.startswith(b'data: {"a":2}\n\ndata: {"error":') and second.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("text", ["", "plain", '"quoted" \\ back', "line\n\x00\x1f", "\u4e2d \U0001f600 \u2028"])
def test_a_mold_gives_the_json_of_the_whole(text: str) -> None:
    def make(text: str) -> dict[str, Any]:
        return {"id": "x", "choices": [{"text": text, "logprobs": None}], "n": 1}

    assert json_template(make)(text) == dumps(make(text))
    assert json.loads(json_template(make)(text)) == make(text)


@pytest.mark.parametrize(
    "value",
    [
        {}, [], {"a": []}, {"a": {}}, [[]], None, "é\n", {"a": {"b": [1.5, None, True, "x"]}}, list(range(5000)),
        [{"a": [i], "b": "x"} for i in range(200)], [[1, 2]] * 3, {"é": [["a"] * 3] * 65}, [[{"p": 0.5}] * 3] * 70,
    ],
)  # fmt: skip
def test_pieces_are_the_json_of_the_whole(value: Any) -> None:
    assert b"".join(json_pieces(value)) == dumps(value)


def test_pieces_are_short() -> None:
    rows = [{"embedding": [0.123456789] * 4096} for _ in range(20)]
    assert max(map(len, json_pieces({"data": rows}))) < 100_000


def test_bytes_in_a_value_are_json_already() -> None:
    assert json.loads(b"".join(json_pieces({"a": [b'{"x":1}', b"2"], "b": b"[]"}))) == {"a": [{"x": 1}, 2], "b": []}
