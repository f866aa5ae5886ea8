"""Requests in, replies out: bodies read within limits and checked, JSON and event streams written.

    handler(call, body) -> HttpReply

`endpoint` makes an ASGI application of a handler. It watches the connection while the handler works: when the
client goes away the handler is cancelled, and its `finally` blocks free what it held.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.serve.api_errors import ApiError, as_api_error
from assay.serve.http.body import parse, read
from assay.serve.limits import ServerLimits

State = TypeVar("State")
PIECE = 64 << 10  # bytes written at once


@dataclass(frozen=True)
class HttpReply:
    """Bytes with a type."""

    body: bytes
    type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Event = dict[str, Any] | bytes  # bytes are JSON already


@dataclass(frozen=True)
class StreamFormat:
    """How a stream is written: its type, one event of it, and what stands at the end."""

    type: str
    event: Callable[[Any], bytes]
    end: bytes = b""


# As OpenAI's completions, its responses, llama-server and Ollama write them.
def _data_event(event: Any) -> bytes:
    return b"data: " + dumps(event) + b"\n\n"


def _named_event(event: Any) -> bytes:
    return b"event: " + str(event.get("type", "error")).encode() + b"\n" + _data_event(event)


DATA = StreamFormat("text/event-stream; charset=utf-8", _data_event, b"data: [DONE]\n\n")
NAMED = StreamFormat(DATA.type, _named_event)
BARE = StreamFormat(DATA.type, DATA.event)
LINES = StreamFormat("application/x-ndjson", lambda event: dumps(event) + b"\n")


@dataclass(frozen=True)
class Events:
    """A stream of events. An error on the way is an event of its own.

    With a name, every event has an id (`NAME-1`, `NAME-2`, …), and the first `seen` of them are left out: whoever asked
    has them from before.
    """

    events: AsyncIterator[Event]
    form: StreamFormat = DATA
    name: str = ""
    seen: int = 0


class Pause:
    """Who makes a stream's events awaits this before it waits for more of them: what is written until then goes out
    at once."""

    def __init__(self) -> None:
        self.flush: Callable[[], Awaitable[None]] | None = None

    async def __call__(self) -> None:
        if self.flush:
            await self.flush()


@dataclass(frozen=True)
class HttpCall(Generic[State]):
    """One request: what the handlers share, its headers, and a stack that is unwound when the reply has been sent."""

    state: State
    headers: Mapping[str, str]
    stack: AsyncExitStack
    owner: tuple[str, str] = ("", "")  # the client's address, and a name of the request
    path: Mapping[str, str] = field(default_factory=dict)  # what stands in the place of a route's {names}
    pause: Pause = field(default_factory=Pause)


Handler = Callable[[HttpCall[Any], Any], Awaitable[HttpReply | Events]]


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring


def dumps(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _encode(value).encode()


def mold(make: Callable[[str], Any]) -> Callable[[str], bytes]:
    """The JSON of a value as a function of one string in it: what stands around the string is encoded once."""
    mark = "the string of \x1f a mold"  # in no name
    before, after = dumps(make(mark)).split(dumps(mark))
    return lambda text: before + _quote(text).encode() + after


def json_reply(value: Any) -> HttpReply:
    return HttpReply(dumps(value.model_dump(exclude_none=False) if isinstance(value, BaseModel) else value))


def error_reply(error: ApiError, path: str) -> HttpReply:
    """An error as the clients of a route read it."""
    return HttpReply(dumps(error_body(error, path)), status=error.status, headers=error.headers)


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    return {"error": error.message} if path.startswith("/api/") else error.body()


def endpoint(state: Any, limits: ServerLimits, handler: Handler, model: type[BaseModel] | None) -> ASGIApp:
    """The ASGI application of one route; `state` is what its handler gets to see of the server."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = None if model is None else parse(await read(headers, receive, limits), model, limits)
        except ApiError as error:
            # The rest of the body is not waited for.
            await write(error_reply(error, scope["path"]), send, close=error.status in (408, 413))
            return
        owner = (scope["client"] or ("",))[0], uuid.uuid4().hex
        call = HttpCall(state, headers, AsyncExitStack(), owner, scope.get("path_params", {}))
        work = asyncio.create_task(_answer(call, handler, body, send, scope["path"]))
        watch = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            if not work.done():
                work.cancel()
        with suppress(asyncio.CancelledError):
            await work

    return app


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(call: HttpCall[Any], handler: Handler, body: Any, send: Send, path: str) -> None:
    async with call.stack:
        try:
            reply = await handler(call, body)
        except Exception as error:
            reply = error_reply(as_api_error(error), path)
        if isinstance(reply, Events):
            await _stream(reply, send, path, call.pause)
        else:
            await write(reply, send)


async def write(reply: HttpReply, send: Send, *, close: bool = False) -> None:
    headers = [(b"content-type", reply.type.encode()), (b"content-length", str(len(reply.body)).encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    # Piece by piece: each waits until the reader has taken the one before, or the connection is given up.
    for start in range(0, len(reply.body), PIECE):
        await send({"type": "http.response.body", "body": reply.body[start : start + PIECE], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _stream(reply: Events, send: Send, path: str, pause: Pause) -> None:
    """The status is sent with the first event, so an error before it is still a proper response. Events that are there
    together are one write. A reader who takes nothing is the connection's business, which gives him up."""
    started, form, held = False, reply.form, bytearray()

    async def put(data: bytes, more: bool = True) -> None:
        nonlocal started
        if not started:
            headers = [(b"content-type", form.type.encode()), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            started = True
        await send({"type": "http.response.body", "body": data, "more_body": more})

    async def flush() -> None:
        if held:
            data = bytes(held)
            held.clear()
            await put(data)

    pause.flush = flush
    try:
        number = 0
        async for event in reply.events:
            number += 1
            if number > reply.seen:
                if reply.name:
                    held += f"id: {reply.name}-{number}\n".encode()
                held += form.event(event)
            if len(held) >= PIECE:
                await flush()
        await put(bytes(held) + form.end, more=False)
    except Exception as error:
        fault = as_api_error(error)
        if not started and not held:
            await write(error_reply(fault, path), send)
        else:
            await put(bytes(held) + form.event(error_body(fault, path)) + form.end, more=False)
