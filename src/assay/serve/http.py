"""Requests in, replies out: bodies read within limits and checked, JSON and event streams written.

    handler(call, body) -> Reply

`endpoint` makes an ASGI application of a handler. It watches the connection while the handler works: when the
client goes away the handler is cancelled, and its `finally` blocks free what it held.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.errors import AssayError
from assay.serve.errors import ApiError
from assay.serve.limits import Limits
from assay.serve.state import State

log = logging.getLogger("assay.serve")


@dataclass(frozen=True)
class Reply:
    """Bytes with a type."""

    body: bytes
    type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Events:
    """Server-sent events; the last one is `[DONE]`. An error on the way is an event of its own."""

    events: AsyncIterator[dict[str, Any]]


@dataclass(frozen=True)
class Call:
    """One request: the server's state, its body, and a stack that is unwound when the reply has been sent."""

    state: State
    headers: Mapping[str, str]
    stack: AsyncExitStack


Handler = Callable[[Call, Any], Awaitable[Reply | Events]]


def dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_reply(value: Any) -> Reply:
    return Reply(dumps(value.model_dump(exclude_none=False) if isinstance(value, BaseModel) else value))


def error_reply(error: ApiError) -> Reply:
    return Reply(dumps(error.body()), status=error.status, headers=error.headers)


def endpoint(state: State, handler: Handler, model: type[BaseModel] | None) -> ASGIApp:
    """The ASGI application of one route."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            body = None if model is None else parse(await _read(headers, receive, state.limits), model)
        except ApiError as error:
            # The rest of the body is not waited for.
            await write(error_reply(error), send, close=error.status in (408, 413))
            return
        work = asyncio.create_task(_answer(state, handler, headers, body, send))
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


async def _answer(state: State, handler: Handler, headers: dict[str, str], body: Any, send: Send) -> None:
    async with AsyncExitStack() as stack:
        try:
            reply = await handler(Call(state, headers, stack), body)
        except Exception as error:
            reply = error_reply(as_api_error(error))
        if isinstance(reply, Events):
            await _stream(reply, send, state.limits)
        else:
            await write(reply, send)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told. A fault of ours is logged, and says nothing of the inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AssayError):
        return ApiError("invalid_value", str(error))
    log.error("a request failed", exc_info=error)
    return ApiError("internal_error", "the server failed; its log says why")


async def write(reply: Reply, send: Send, *, close: bool = False) -> None:
    headers = [(b"content-type", reply.type.encode()), (b"content-length", str(len(reply.body)).encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def _stream(reply: Events, send: Send, limits: Limits) -> None:
    """The status is sent with the first event, so an error before it is still a proper response."""
    started = False

    async def put(data: bytes, more: bool = True) -> None:
        nonlocal started
        try:
            async with asyncio.timeout(limits.stall_s):
                if not started:
                    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    started = True
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise _Stalled from None

    try:
        async for event in reply.events:
            await put(b"data: " + dumps(event) + b"\n\n")
        await put(b"data: [DONE]\n\n", more=False)
    except _Stalled:
        log.info("a reader took nothing for %s s and was dropped", limits.stall_s)
    except Exception as error:
        fault = as_api_error(error)
        if not started:
            await write(error_reply(fault), send)
        else:
            with suppress(_Stalled):
                await put(b"data: " + dumps(fault.body()) + b"\n\ndata: [DONE]\n\n", more=False)


class _Stalled(Exception):
    """The client's side of the connection is full and stays so."""


# --- bodies


async def _read(headers: Mapping[str, str], receive: Receive, limits: Limits) -> bytes:
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError("unsupported_media_type", f"the body must be application/json (found {kind or 'none'!r:.60})")
    body = bytearray()
    found = 0
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError("request_timeout", "the connection was closed before the end of the body")
                part = message.get("body", b"")
                found += len(part)
                if found <= limits.body:
                    body += part
                # Somewhat more is taken and dropped: who is cut off while sending never sees the answer.
                if found > 8 * limits.body or not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ApiError("request_timeout", f"the body did not arrive within {limits.body_s:g} s") from None
    if found > limits.body:
        raise ApiError("body_too_large", f"the body is too large (at least {found} bytes, at most {limits.body} fit)")
    return bytes(body)


def parse(body: bytes, model: type[BaseModel]) -> BaseModel:
    """The request, or an error that names the field."""
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in body or b"\\uD" in body:  # half a surrogate pair cannot be sent back
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError("invalid_json", "the body is nested too deeply") from None
    except UnicodeError as error:
        raise ApiError("invalid_json", f"the body is not UTF-8 ({error})"[:300]) from None
    except ValueError as error:
        raise ApiError("invalid_json", f"the body is not JSON ({error})"[:300]) from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _invalid(error) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _invalid(error: ValidationError) -> ApiError:
    """The complaint that helps most, about the path a client would recognise: union branches are left out of it."""
    # Of a union's branches the one counts whose type was right, then the one that came furthest.
    first = min(error.errors(include_url=False), key=lambda item: (item["type"].endswith("_type"), -len(item["loc"])))
    branches = ("str", "list", "int", "float", "bool", "dict")
    path = [str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    param = ".".join(part for part in path if part not in branches) or None
    message = " ".join(f"{param or 'body'}: {first['msg'][:1].lower()}{first['msg'][1:]}".split())
    return ApiError("invalid_value", message[:500], param)
