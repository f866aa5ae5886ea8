"""Handlers as ASGI applications: read and validate the body, call the handler, write JSON or an event stream.

    handler(call, body) -> HttpReply

`endpoint` makes an ASGI application from a handler. It watches the connection while the handler runs. When the client
disconnects, the handler is cancelled, and its `finally` blocks free its resources.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.serve.api_errors import ApiError, as_api_error
from assay.serve.http.body import Intake, Parts, media_type, read, validated
from assay.serve.http.unknown_fields import naming
from assay.serve.http.upload import UPLOAD, discard, new_folder, receive_upload
from assay.serve.limits import ServerLimits
from assay.system.fair_queue import CLIENT

State = TypeVar("State")
PIECE = 64 << 10  # bytes per write
ROWS, SCALARS = 64, 2048  # objects or arrays, and other values, that one C call encodes


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
    """The encoding of an event stream: its media type, one event, its end marker, and what keeps a connection alive."""

    type: str
    event: Callable[[Any], bytes]
    end: bytes = b""
    ping: bytes = b": ping\n\n"  # a comment, which readers of event streams skip; empty if the format has none


# The formats of OpenAI's completions, OpenAI's responses, Anthropic's messages, llama-server and Ollama.
def _data_event(event: Any) -> bytes:
    return b"data: " + dumps(event) + b"\n\n"


def _named_event(event: Any) -> bytes:
    return b"event: " + str(event.get("type", "error")).encode() + b"\n" + _data_event(event)


def _progress_event(event: Any) -> bytes:
    """Bytes are the result; anything else says what it is."""
    if isinstance(event, bytes):
        return b"event: result\n" + _data_event(event)
    name = event.get("event", "error")
    return f"event: {name}\n".encode() + _data_event({key: value for key, value in event.items() if key != "event"})


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_quote = json.encoder.encode_basestring


def dumps(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _encode(value).encode()


DATA = StreamFormat("text/event-stream; charset=utf-8", _data_event, b"data: [DONE]\n\n")
NAMED = StreamFormat(DATA.type, _named_event)
MESSAGES = replace(NAMED, ping=_named_event({"type": "ping"}))
BARE = StreamFormat(DATA.type, DATA.event)
PROGRESS = StreamFormat(DATA.type, _progress_event)
LINES = StreamFormat("application/x-ndjson", lambda event: dumps(event) + b"\n", ping=b"")


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
    query: Mapping[str, str] = field(default_factory=dict)  # parameters after the ?, the last of each name
    pause: Pause = field(default_factory=Pause)
    upload: Path | None = None  # the uploaded file, in a folder that is removed after the reply


@dataclass(frozen=True)
class Pieces:
    """A response whose bytes come in pieces, such as a large file. An error in the midst drops the connection."""

    pieces: AsyncIterator[bytes]
    length: int
    type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Request = tuple[BaseModel, tuple[str, ...]]  # the validated body, and the names of its unknown fields
Handler = Callable[[HttpCall[Any], Any], Awaitable[HttpReply | Events | Pieces]]


def json_pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value in short pieces. Bytes in it are already encoded JSON.

    One C call encodes one piece, and other threads run between two of them. Items of a list that is longer than ROWS
    must be small.
    """
    if isinstance(value, dict) and value:
        mark = b"{"
        for key, item in value.items():
            yield mark + _quote(key).encode() + b":"
            yield from json_pieces(item)
            mark = b","
        yield b"}"
    elif isinstance(value, list) and value:
        yield from _list_pieces(value)
    else:
        yield dumps(value)


def _list_pieces(items: list[Any]) -> Iterator[bytes]:
    mark = b"["
    if isinstance(items[0], dict | list) and len(items) <= ROWS:
        for item in items:
            yield mark
            yield from json_pieces(item)
            mark = b","
    elif isinstance(items[0], bytes):
        yield b"[" + b",".join(items)
    else:
        step = ROWS if isinstance(items[0], dict | list) else SCALARS
        for start in range(0, len(items), step):
            yield mark + dumps(items[start : start + step])[1:-1]
            mark = b","
    yield b"]"


def json_template(make: Callable[[str], Any]) -> Callable[[str], bytes]:
    """The JSON of a value as a function of one string in it. The text around the string is encoded only once."""
    mark = "the string of \x1f a template"  # occurs in no other string
    before, after = dumps(make(mark)).split(dumps(mark))
    return lambda text: before + _quote(text).encode() + after


def json_reply(value: Any) -> HttpReply:
    return HttpReply(dumps(value.model_dump(exclude_none=False) if isinstance(value, BaseModel) else value))


def large_reply(value: Any) -> HttpReply:
    """As `json_reply`, for a value that may be large: slower, and to be called off the event loop."""
    return HttpReply(b"".join(json_pieces(value)))


def error_dialect(scope: Scope) -> str:
    """In whose form a client expects errors. Anthropic's client shows by a header what it is, on any route."""
    if scope["path"].startswith("/api/"):
        return "ollama"
    named = any(name == b"anthropic-version" for name, _ in scope["headers"])
    return "anthropic" if named or scope["path"].startswith("/v1/messages") else "openai"


def error_reply(error: ApiError, dialect: str) -> HttpReply:
    return HttpReply(dumps(error_body(error, dialect)), status=error.status, headers=error.headers)


def error_body(error: ApiError, dialect: str) -> dict[str, Any]:
    if dialect == "ollama":
        return {"error": error.message}
    return error.anthropic_body() if dialect == "anthropic" else error.body()


@dataclass(frozen=True)
class ExchangeContext:
    """State, limits and threads that all routes of a server use. The threads do work that would hold up the loop."""

    state: Any
    limits: ServerLimits
    run: Callable[[str, Callable[[], Any]], Awaitable[Any]]  # (kind of work, work)
    uploads: AbstractAsyncContextManager[None]  # a place for one upload
    intake: Intake = field(default_factory=Intake)
    prepare: Callable[[Any, Mapping[str, str]], Awaitable[None]] | None = None  # before a handler: body, path values


def endpoint(
    service: ExchangeContext, handler: Handler, model: type[BaseModel] | None, *, uploads: bool = False
) -> ASGIApp:
    """The ASGI application of one route. With `uploads`, its body may be an upload (`upload.py`)."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        owner, dialect = ((scope["client"] or ("",))[0], uuid.uuid4().hex), error_dialect(scope)
        CLIENT.set(owner[0])
        async with AsyncExitStack() as stack:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"))) if scope["query_string"] else {}
            call = HttpCall(service.state, headers, stack, owner, scope.get("path_params", {}), query)
            try:
                body: BaseModel | None = None
                unknown: tuple[str, ...] = ()
                if uploads and model is not None and media_type(headers) == UPLOAD:
                    (body, unknown), call = await _uploaded(service, call, receive, model)
                elif model is not None:
                    body, unknown = await _request(service, call, receive, model)
                send = naming(send, unknown)
                if service.prepare:
                    await service.prepare(body, call.path)
            except ApiError as error:
                # Do not wait for the rest of the body.
                await write(error_reply(error, dialect), send, close=error.status in (408, 413))
                return
            await _watched(call, handler, body, receive, send, dialect, service.limits.ping_s)

    return app


async def _request(service: ExchangeContext, call: HttpCall[Any], receive: Receive, model: type[BaseModel]) -> Request:
    """The validated body. Its bytes count as held until the request ends."""
    body = await read(call.headers, receive, service.limits, service.intake)
    call.stack.callback(service.intake.release, len(body.content))
    if body.quick:
        return validated(body, model)
    found: Request = await service.run("parse", lambda: validated(body, model))
    return found


async def _uploaded(
    service: ExchangeContext, call: HttpCall[Any], receive: Receive, model: type[BaseModel]
) -> tuple[Request, HttpCall[Any]]:
    """The validated first line of an upload, and the call with the file. The file is removed after the reply."""
    parts = Parts(receive)
    try:
        await call.stack.enter_async_context(service.uploads)
        folder = Path(call.stack.enter_context(new_folder()))
        line, path = await receive_upload(parts, service.limits, folder, service.run)
    except ApiError:
        await discard(parts, service.limits)
        raise
    request: Request = await service.run("parse", lambda: validated(line, model))
    return request, replace(call, upload=path)


async def _watched(
    call: HttpCall[Any], handler: Handler, body: Any, receive: Receive, send: Send, dialect: str, ping_s: float
) -> None:
    """Answer, and stop when the client disconnects."""
    work = asyncio.create_task(_answer(call, handler, body, send, dialect, ping_s))
    watch = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        if not work.done():
            work.cancel()
    with suppress(asyncio.CancelledError):
        await work


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(call: HttpCall[Any], handler: Handler, body: Any, send: Send, dialect: str, ping_s: float) -> None:
    async with call.stack:
        try:
            reply = await handler(call, body)
        except Exception as error:
            reply = error_reply(as_api_error(error), dialect)
        if isinstance(reply, Events):
            await _stream(reply, send, dialect, call.pause, ping_s)
        elif isinstance(reply, Pieces):
            await _begin(reply, reply.length, send)
            async for piece in reply.pieces:
                await _send_body(piece, send)
            await send({"type": "http.response.body", "body": b""})
        else:
            await write(reply, send)


async def write(reply: HttpReply, send: Send, *, close: bool = False) -> None:
    await _begin(reply, len(reply.body), send, close=close)
    await _send_body(reply.body, send)
    await send({"type": "http.response.body", "body": b""})


async def _begin(reply: HttpReply | Pieces, length: int, send: Send, *, close: bool = False) -> None:
    headers = [(b"content-type", reply.type.encode()), (b"content-length", str(length).encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})


async def _send_body(data: bytes, send: Send) -> None:
    """Write in parts: each waits until the client has read the previous one, or the connection is dropped."""
    for start in range(0, len(data), PIECE):
        await send({"type": "http.response.body", "body": data[start : start + PIECE], "more_body": True})


async def _stream(reply: Events, send: Send, dialect: str, pause: Pause, ping_s: float) -> None:
    """Send an event stream.

    The status is sent with the first event, so an earlier error is still a regular response. Events that are available
    together are sent in one write. After `ping_s` without a write a ping is sent, because proxies and clients drop
    a connection that is silent for long. The connection drops a client that does not read.
    """
    started, form, held, loop = False, reply.form, bytearray(), asyncio.get_running_loop()
    written, turn = loop.time(), asyncio.Lock()

    async def put(data: bytes, more: bool = True) -> None:
        nonlocal started, written
        async with turn:
            if not started:
                started = True
                headers = [(b"content-type", form.type.encode()), (b"cache-control", b"no-store")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": data, "more_body": more})
            written = loop.time()

    async def ping() -> None:
        while True:
            await asyncio.sleep(written + ping_s - loop.time())
            if loop.time() >= written + ping_s:
                await put(form.ping)

    async def flush() -> None:
        if held:
            data = bytes(held)
            held.clear()
            await put(data)

    async def stop_pinging() -> None:
        async with turn:  # not in the middle of a write
            if pinging:
                pinging.cancel()

    pause.flush = flush
    pinging = asyncio.create_task(ping()) if form.ping else None
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
        await stop_pinging()
        await put(bytes(held) + form.end, more=False)
    except Exception as error:
        await stop_pinging()
        fault = as_api_error(error)
        if not started and not held:
            await write(error_reply(fault, dialect), send)
        else:
            await put(bytes(held) + form.event(error_body(fault, dialect)) + form.end, more=False)
    finally:
        if pinging:
            pinging.cancel()
