"""The ASGI application: the routes, the page, and the guard before both.

The guard counts responses, checks the key and the Host header, and puts the security headers on everything.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.serve import openapi
from assay.serve.errors import ApiError
from assay.serve.http import Call, Reply, as_api_error, endpoint, error_reply, write
from assay.serve.routes import ROUTES
from assay.serve.state import State

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
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def create(state: State) -> ASGIApp:
    """The application of a server with this state."""
    state.openapi = openapi.document(ROUTES, with_key=state.key is not None)
    routes = [Route(r.path, _Endpoint(endpoint(state, r.handler, r.request)), methods=[r.method]) for r in ROUTES]
    for path, reply in _page().items():
        routes.append(Route(path, _Endpoint(endpoint(state, _constant(reply), None)), methods=["GET"]))
    return _Guard(state, Router(routes, redirect_slashes=False))


class _Endpoint:
    """Keeps Starlette from taking an ASGI function for a request handler."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _page() -> dict[str, Reply]:
    """The files of the page by route, read once: no request names a file."""
    folder = Path(__file__).with_name("page")
    found = {}
    for path in sorted(folder.glob("*")):
        if path.suffix in _TYPES:
            route = "/" if path.name == "index.html" else f"/page/{path.name}"
            found[route] = Reply(path.read_bytes(), _TYPES[path.suffix], headers={"Cache-Control": "no-cache"})
    return found


def _constant(reply: Reply) -> Any:
    async def page(call: Call, _: Any) -> Reply:
        return reply

    return page


class _Guard:
    """Before everything. Errors that Starlette finds get OpenAI's shape here."""

    def __init__(self, state: State, inner: ASGIApp) -> None:
        self._state = state
        self._inner = inner
        self._known = {route.path for route in ROUTES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *_HEADERS]
                route = scope["path"] if scope["path"] in self._known else "other"
                self._state.metrics.http.labels(route, str(message["status"])).inc()
            await send(message)

        try:
            self._check(scope)
            scope["app"] = self  # or Starlette would answer what it does not know by itself
            await self._inner(scope, receive, guarded)
        except Exception as error:
            if started:
                raise
            await write(error_reply(self._fault(error, scope)), guarded)

    def _check(self, scope: Scope) -> None:
        if scope["path"] == "/health":
            return
        headers = dict(scope["headers"])
        if not self._state.any_host and not _local(headers.get(b"host", b"").decode("latin-1")):
            raise ApiError("forbidden_host", "the Host header must name this machine; use --api-key to allow others")
        if self._state.key is not None and not _has_key(headers.get(b"authorization", b""), self._state.key):
            raise ApiError(
                "invalid_api_key",
                "the key is missing or wrong; send it as `Authorization: Bearer KEY`",
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


def _local(host: str) -> bool:
    """Whether a Host header can only mean this machine: a web page elsewhere cannot make a browser send one."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if name in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _has_key(header: bytes, key: str) -> bool:
    """Bearer, or Basic with the key as the password so that a browser can ask for it. Takes the same time for every
    wrong key of a length."""
    scheme, _, value = header.partition(b" ")
    given = value.strip()
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            given = b""
    elif scheme.lower() != b"bearer":
        given = b""
    return hmac.compare_digest(given, key.encode())
