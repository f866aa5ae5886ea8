"""Request bodies: read within limits, parsed as strict JSON, validated by a pydantic schema."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from typing import NoReturn

from pydantic import BaseModel, ValidationError
from starlette.types import Message, Receive

from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits

_STRING = re.compile(rb'"(?:[^"\\\\]|\\\\.)*+"', re.DOTALL)


async def read(headers: Mapping[str, str], receive: Receive, limits: ServerLimits) -> bytes:
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    # A web page can make a browser send these two types without a preflight, but then the browser sends its origin.
    foreign = "origin" in headers or "sec-fetch-site" in headers
    if kind != "application/json" and (foreign or kind not in ("", "application/x-www-form-urlencoded")):
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
                # Read and discard some more: a client that is cut off while sending never reads the response.
                if found > 8 * limits.body or not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ApiError("request_timeout", f"the body did not arrive within {limits.body_s:g} s") from None
    if found > limits.body:
        raise ApiError("body_too_large", f"the body is too large (at least {found} bytes, at most {limits.body})")
    return bytes(body)


def parse(body: bytes, model: type[BaseModel], limits: ServerLimits) -> BaseModel:
    """The validated request. An error names the field."""
    if body.count(b"[") + body.count(b"{") > limits.nodes:
        bare = _STRING.sub(b"", body)
        if (found := bare.count(b"[") + bare.count(b"{")) > limits.nodes:
            raise ApiError("invalid_json", f"the body has {found} arrays and objects (at most {limits.nodes})")
    try:
        value = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in body or b"\\uD" in body:  # a lone surrogate cannot be encoded in the response
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
    """The most helpful of the validation errors. Its path leaves out union branches, which clients do not know."""
    # Prefer the union branch whose type tag matched, then the one whose error is deepest.
    first = min(error.errors(include_url=False), key=lambda item: (item["type"].endswith("_type"), -len(item["loc"])))
    branches = ("str", "list", "int", "float", "bool", "dict")
    path = [str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    param = ".".join(part for part in path if part not in branches) or None
    message = " ".join(f"{param or 'body'}: {first['msg'][:1].lower()}{first['msg'][1:]}".split())
    return ApiError("invalid_value", message[:500], param)
