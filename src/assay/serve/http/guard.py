"""The guard in front of every route: API key, Host header, CORS, overload, security headers, counters."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
import uuid
from collections.abc import Callable, Collection, Mapping
from re import fullmatch

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.serve.api_errors import ApiError, as_api_error
from assay.serve.http.exchange import HttpReply, error_dialect, error_reply, write

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """ASGI middleware. It counts requests and responses, checks the key and the Host header, and adds security headers.

    It also turns Starlette's own errors into OpenAI's form.
    """

    def __init__(
        self,
        inner: ASGIApp,
        paths: Collection[str],
        count: Callable[[str, int], None],
        key: str | None,
        host: str | None,
        most: int,
        cors: Collection[str] = (),
    ) -> None:
        self._inner = inner
        self._paths = paths  # paths that are counted by name
        self._count = count
        self._key = key
        self._host = host  # the name that the server was started with; None: every Host header is accepted
        self._most = most
        self._cors = cors  # origins of web pages that may call; * allows all
        self._busy = 0  # running requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False
        name = _request_id(scope)

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                policy = [h for h in _HEADERS if not shared or h[0] != b"cross-origin-resource-policy"]
                message["headers"] = [*message["headers"], *policy, *shared, (b"x-request-id", name)]
                if error_dialect(scope) == "anthropic":
                    message["headers"].append((b"request-id", name))
                route = scope["path"] if scope["path"] in self._paths else "other"
                self._count(route, message["status"])
            await send(message)

        shared = self._shared(scope)
        self._busy += 1
        try:
            if scope["method"] == "OPTIONS" and self._cors:  # a CORS preflight, which carries no key
                await write(HttpReply(b"", "text/plain", 204), guarded)
                return
            self._check(scope)
            scope["app"] = self  # otherwise Starlette would answer unknown routes itself
            await self._inner(scope, receive, guarded)
        except Exception as error:
            if started:
                raise
            await write(error_reply(self._fault(error, scope), error_dialect(scope)), guarded)
        finally:
            self._busy -= 1

    def _shared(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The CORS headers for a page of an allowed origin; empty for others."""
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        if not origin or not ({"*", origin.decode("latin-1")} & set(self._cors)):
            return []
        asked = headers.get(b"access-control-request-headers", b"authorization, content-type")
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", asked[:1024]),
            (b"access-control-allow-private-network", b"true"),
            (b"access-control-max-age", b"600"),
            (b"cross-origin-resource-policy", b"cross-origin"),
            (b"vary", b"Origin"),
        ]

    def _check(self, scope: Scope) -> None:
        if scope["path"] in ("/health", "/v1/health"):
            return
        if self._busy > self._most:
            raise ApiError(
                "overloaded", f"{self._busy} requests at once (at most {self._most})", headers={"Retry-After": "5"}
            )
        headers = dict(scope["headers"])
        if self._host is not None and not _local(headers.get(b"host", b"").decode("latin-1"), self._host):
            raise ApiError("forbidden_host", "the Host header must name this machine; use --api-key to allow others")
        if self._key is not None and not _has_key(headers, self._key):
            raise ApiError(
                "invalid_api_key",
                "the key is missing or wrong; send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
                headers={"WWW-Authenticate": 'Basic realm="assay", charset="UTF-8"'},
            )

    def _fault(self, error: Exception, scope: Scope) -> ApiError:
        if not isinstance(error, HTTPException):
            return as_api_error(error)
        where = f"{scope['method']} {scope['path']!r:.100}"
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "")
            return ApiError("method_not_allowed", f"{where}: the route takes {allow}", headers={"Allow": allow})
        return ApiError("not_found", f"{where}: no such route")


def _request_id(scope: Scope) -> bytes:
    """The name of a request, which its response repeats: the client's own if it is plain, else a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    return given if fullmatch(rb"[\w.:-]{1,128}", given) else uuid.uuid4().hex.encode()


def _local(header: str, own: str) -> bool:
    """Whether a Host header names this machine: by localhost, by the name the server was started with, or by number.

    A browser sends the name of the page's own server, so a foreign page cannot send such a header.
    """
    name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
    name = name.strip("[]").lower().removesuffix(".")
    return name in ("", "localhost", own.lower().removesuffix(".")) or _is_number(name)


def _is_number(name: str) -> bool:
    """Whether a name is an IP address, also in the short spellings (127.1, 0x7f000001, 2130706433)."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not fullmatch(r"[0-9a-fx.]{1,40}", name):
            return False
        try:
            socket.inet_aton(name)
        except OSError:
            return False
    return True


def _has_key(headers: Mapping[bytes, bytes], key: str) -> bool:
    """Check the key: Bearer, X-Api-Key as Anthropic's clients send it, or Basic with the key as password, so that a
    browser can prompt for it.

    The comparison takes the same time for every wrong key of one length.
    """
    if b"x-api-key" in headers and hmac.compare_digest(headers[b"x-api-key"].strip(), key.encode()):
        return True
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    given = value.strip()
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            given = b""
    elif scheme.lower() != b"bearer":
        given = b""
    return hmac.compare_digest(given, key.encode())
