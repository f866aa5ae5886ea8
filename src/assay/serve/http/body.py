"""Request bodies: read within limits, counted before they are parsed as strict JSON, validated by a pydantic schema.

Limits hold in this order: bytes, then nodes (`json_counts.py`), then the schema's own, whose lists stop at their first
wrong item. Large bodies are parsed by Python code instead of one C call. It is slower, but other threads run meanwhile:
a C call holds the interpreter's lock to its end.
"""

from __future__ import annotations

import asyncio
import json
import json.decoder
import json.scanner
import math
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive

from assay.serve.api_errors import ApiError
from assay.serve.http.json_counts import JsonCounts
from assay.serve.http.unknown_fields import unknown_fields
from assay.serve.limits import ServerLimits

SMALL = 64 << 10  # bytes; a smaller body is always received, whatever the others hold
QUICK = 4 << 10  # nodes and items that are parsed and validated in about a millisecond
COUNTED = 32 << 10  # bytes counted at a time
DIGITS = 100  # of a whole number
JSON = "application/json"
_BUILDING = threading.Lock()


@dataclass
class Intake:
    """Bytes of the bodies of all requests in progress."""

    held: int = 0

    def release(self, n: int) -> None:
        self.held -= n


@dataclass
class Body:
    """The bytes of one body, and the counts of its nodes."""

    content: bytes
    counts: JsonCounts

    @property
    def quick(self) -> bool:
        """Whether it is parsed and validated so fast that the event loop can do it."""
        return len(self.content) <= SMALL and self.counts.nodes + self.counts.items <= QUICK


def media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").split(";")[0].strip().lower()


async def read(headers: Mapping[str, str], receive: Receive, limits: ServerLimits, intake: Intake) -> Body:
    """The body of a request. `intake` counts its bytes until the caller subtracts them."""
    kind = media_type(headers)
    # A web page can make a browser send these two types without a preflight, but then the browser sends its origin.
    foreign = "origin" in headers or "sec-fetch-site" in headers
    if kind != JSON and (foreign or kind not in ("", "application/x-www-form-urlencoded")):
        raise ApiError("unsupported_media_type", f"the body must be {JSON} (found {kind or 'none'!r:.60})")
    arriving = _Arriving(limits, intake)
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in Parts(receive):
                arriving.add(part)
                # Read and discard some more: a client that is cut off while sending never reads the response.
                if arriving.found > 8 * limits.body:
                    break
        return arriving.end()
    except TimeoutError:
        arriving.drop()
        raise ApiError("request_timeout", f"the body did not arrive within {limits.body_s:g} s") from None
    except BaseException:
        arriving.drop()
        raise


class Parts:
    """The parts of a body as they arrive."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The parts that were not read yet."""
        while self._more:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                self._more = False
                raise ApiError("request_timeout", "the connection was closed before the end of the body")
            self._more = message.get("more_body", False)
            yield message.get("body", b"")


class _Arriving:
    """A body that arrives part by part. After the first limit that it breaks, the rest is discarded."""

    def __init__(self, limits: ServerLimits, intake: Intake) -> None:
        self._limits, self._intake = limits, intake
        self._content, self._counts, self._counted = bytearray(), JsonCounts(), 0
        self._fault: ApiError | None = None
        self.found = 0

    def add(self, part: bytes) -> None:
        self.found += len(part)
        if self._fault is None:
            self._fault = self._without_room(len(part))
        if self._fault is None:
            self._content += part
            self._intake.held += len(part)
            while self._fault is None and len(self._content) - self._counted >= COUNTED:
                self._count()
        if self._fault is not None:
            self.drop()

    def _without_room(self, n: int) -> ApiError | None:
        """The error if n more bytes are too many for this body or for all bodies together."""
        limits, held = self._limits, self._intake.held
        if self.found > limits.body:
            return ApiError("body_too_large", "the body is too large")
        if self.found > SMALL and held + n > limits.bodies:
            message = f"the bodies of other requests take {held >> 20} MiB (at most {limits.bodies >> 20})"
            return ApiError("overloaded", message, headers={"Retry-After": "5"})
        return None

    def _count(self) -> None:
        part = bytes(self._content[self._counted : self._counted + COUNTED])
        self._counted += len(part)
        self._counts.feed(part)
        self._fault = over(self._counts, self._limits)

    def end(self) -> Body:
        """The whole body, or its first error."""
        if self._fault is None:
            self._count()
        if self._fault is None:
            return Body(bytes(self._content), self._counts)
        if self._fault.code == "body_too_large":
            self._fault.message += f" (at least {self.found} bytes, at most {self._limits.body})"
        raise self._fault

    def drop(self) -> None:
        """Free the bytes."""
        self._intake.held -= len(self._content)
        self._content.clear()


def over(counts: JsonCounts, limits: ServerLimits) -> ApiError | None:
    """The error if a body has too many nodes."""
    if counts.depth > limits.depth:
        return ApiError("invalid_json", f"the body is nested too deeply (found {counts.depth}, at most {limits.depth})")
    if counts.nodes > limits.nodes:
        message = f"the body has {counts.nodes} or more arrays, objects, keys and texts (at most {limits.nodes})"
        return ApiError("invalid_json", message)
    if counts.items > limits.items:
        return ApiError("invalid_json", f"the body has {counts.items} or more items (at most {limits.items})")
    return None


def parse(content: bytes, model: type[BaseModel], limits: ServerLimits) -> BaseModel:
    """The validated request. An error names the field."""
    counts = JsonCounts()
    counts.feed(content)
    if fault := over(counts, limits):
        raise fault
    return validated(Body(content, counts), model)[0]


def validated(body: Body, model: type[BaseModel]) -> tuple[BaseModel, tuple[str, ...]]:
    """The request of a body whose counts are within the limits, and its unknown fields. An error names the field."""
    value = parsed(body)
    if not model.__pydantic_complete__:
        with _BUILDING:  # two threads may have its first requests, and old releases of pydantic build without a lock
            model.model_rebuild()
    try:
        return model.model_validate(value), unknown_fields(value, model)
    except ValidationError as error:
        raise invalid(error) from None


def parsed(body: Body) -> Any:
    """The value of a body."""
    try:
        # Only UTF-8: another encoding would have other counts. A byte order mark is left out.
        text = body.content.decode("utf-8-sig")
        value = (_QUICK if body.quick else _PATIENT).decode(text)
        if "\\ud" in text or "\\uD" in text:
            _check_texts(value)
    except RecursionError:
        raise ApiError("invalid_json", "the body is nested too deeply") from None
    except UnicodeError as error:
        raise ApiError("invalid_json", f"the body is not UTF-8 ({error})"[:300]) from None
    except ValueError as error:
        raise ApiError("invalid_json", f"the body is not JSON ({error})"[:300]) from None
    return value


def _check_texts(value: Any) -> None:
    """Refuse a lone surrogate, which cannot be encoded in the response."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            item.encode()
        elif isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _whole(text: str) -> int:
    if len(text) > DIGITS:  # Python needs time that grows with the square of the digits
        raise ValueError(f"a whole number has {len(text)} digits (at most {DIGITS})")
    return int(text)


class _Patient(json.JSONDecoder):
    """A decoder whose loops are Python code, so that other threads run meanwhile. Its results are the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_NUMBERS: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _finite, "parse_int": _whole}
_QUICK, _PATIENT = json.JSONDecoder(**_NUMBERS), _Patient(**_NUMBERS)


def invalid(error: ValidationError) -> ApiError:
    """The most helpful of the validation errors. Its path leaves out union branches, which clients do not know."""
    # Leave out the union branches whose type tag did not match; prefer the error that is deepest.
    found = error.errors(include_url=False, include_context=False, include_input=False)
    others = {item["loc"][:-1] for item in found if item["type"] == "literal_error" and item["loc"][-1] == "type"}
    kept = [item for item in found if not any(item["loc"][: len(one)] == one for one in others)]
    if any(len(item["loc"]) > len(one) for item in kept for one in others):  # one branch of the tagged ones matched
        found = kept
    first = min(found, key=lambda item: (item["type"].endswith("_type"), -len(item["loc"])))
    branches = ("str", "list", "int", "float", "bool", "dict")
    # A part that begins with a capital is the name of a schema.
    path = [str(p)[:100] for p in first["loc"] if isinstance(p, int) or (p.isidentifier() and not p[0].isupper())]
    param = ".".join(part for part in path if part not in branches) or None
    message = " ".join(f"{param or 'body'}: {first['msg'][:1].lower()}{first['msg'][1:]}".split())
    return ApiError("invalid_value", message[:500], param)
