"""Handlers as ASGI applications: read and validate the body, call the handler, write JSON or an event stream.

    handler(call, body) -> HttpReply

`endpoint` makes an ASGI application from a handler. It watches the connection while the handler runs. When the client
disconnects, the handler is cancelled, and its `finally` blocks free its resources.
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
PIECE = 64 << 10  # bytes per write


@dataclass(frozen=True)
class HttpReply:
    """A response: its bytes, type, status and headers."""

    body: bytes
    type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Event = dict[str, Any] | bytes  # bytes are already encoded JSON


@dataclass(frozen=True)
class StreamFormat:
    """The encoding of an event stream: its media type, one event, and its end marker."""

    type: str
    event: Callable[[Any], bytes]
    end: bytes = b""


# The formats of OpenAI's completions, OpenAI's responses, llama-server and Ollama.
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
    """A stream of events. An error after the first event is sent as an event.

    With a name, every event has an id (`NAME-1`, `NAME-2`, …). The first `seen` events are skipped, because a client
    that resumes a stream already has them.
    """

    events: AsyncIterator[Event]
    form: StreamFormat = DATA
    name: str = ""
    seen: int = 0


class Pause:
    """Awaited by the producer of a stream before it waits for more events: flushes the events written so far."""

    def __init__(self) -> None:
        self.flush: Callable[[], Awaitable[None]] | None = None

    async def __call__(self) -> None:
        if self.flush:
            await self.flush()


@dataclass(frozen=True)
class HttpCall(Generic[State]):
    """One request: the server's state, its headers, and an exit stack that is unwound after the reply is sent."""

    state: State
    headers: Mapping[str, str]
    stack: AsyncExitStack
    owner: tuple[str, str] = ("", "")  # the client's address and the request's id, for fair scheduling
    path: Mapping[str, str] = field(default_factory=dict)  # values of the {names} in the route
    pause: Pause = field(default_factory=Pause)


Handler = Callable[[HttpCall[Any], Any], Awaitable[HttpReply | Events]]


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring


def dumps(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _encode(value).encode()


def json_template(make: Callable[[str], Any]) -> Callable[[str], bytes]:
    """The JSON of a value as a function of one string in it. The text around the string is encoded only once."""
    mark = "the string of \x1f a template"  # occurs in no other string
    before, after = dumps(make(mark)).split(dumps(mark))
    return lambda text: before + _quote(text).encode() + after


def json_reply(value: Any) -> HttpReply:
    return HttpReply(dumps(value.model_dump(exclude_none=False) if isinstance(value, BaseModel) else value))


def error_reply(error: ApiError, path: str) -> HttpReply:
    """An error in the form that the clients of a route expect."""
    return HttpReply(dumps(error_body(error, path)), status=error.status, headers=error.headers)


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    return {"error": error.message} if path.startswith("/api/") else error.body()


def endpoint(state: Any, limits: ServerLimits, handler: Handler, model: type[BaseModel] | None) -> ASGIApp:
    """The ASGI application of one route. `state` is passed to its handler."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = None if model is None else parse(await read(headers, receive, limits), model, limits)
        except ApiError as error:
            # Do not wait for the rest of the body.
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
    # Write in parts: each waits until the client has read the previous one, or the connection is dropped.
    for start in range(0, len(reply.body), PIECE):
        await send({"type": "http.response.body", "body": reply.body[start : start + PIECE], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _stream(reply: Events, send: Send, path: str, pause: Pause) -> None:
    """Send an event stream.

    The status is sent with the first event, so an earlier error is still a regular response. Events that are available
    together are sent in one write. The connection drops a client that does not read.
    """
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
