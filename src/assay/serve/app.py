"""The ASGI application: the routes and the web page, behind the guard."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.serve.api.browser_site import first_page, site_file
from assay.serve.api.routes import ALIASES, ROUTES
from assay.serve.api.server_state import HttpCall, State
from assay.serve.http.exchange import ExchangeContext, Handler, HttpReply, dumps, endpoint
from assay.serve.http.guard import Guard

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def create(state: State) -> ASGIApp:
    """The application of a server with this state."""
    state.openapi = cache(partial(_document, with_key=state.key is not None))
    service = ExchangeContext(state, state.limits, state.threads.run, state.uploads, prepare=state.models.prepare)

    def route(path: str, method: str, handler: Handler, body: Any = None, *, uploads: bool = False) -> Route:
        return Route(path, _Endpoint(endpoint(service, handler, body, uploads=uploads)), methods=[method])

    def count(path: str, status: int) -> None:
        state.metrics.http.labels(path, str(status)).inc()

    further = [replace(r, path=alias) for alias, path in ALIASES.items() for r in ROUTES if r.path == path]
    rows = [*ROUTES, *further]
    routes = [route(r.path, r.method, r.handler, r.request, uploads=r.uploads) for r in rows]
    routes += [route(path, "GET", _constant(reply)) for path, reply in _page().items()]
    if state.plans is not None:
        routes += [route(path, "GET", first_page) for path in ("/browser", "/browser/")]
        routes += [route(f"/browser/{{model:path}}/{file}", "GET", site_file) for file in ("", "{file}")]
    inner = Router(routes, redirect_slashes=False)
    paths = {r.path for r in rows}
    host = None if state.any_host else state.host
    return Guard(inner, paths, count, state.key, host, state.limits.connections, state.cors)


def _document(*, with_key: bool) -> bytes:
    from assay.serve.api import openapi  # it imports the generator of schemas, which most servers never need

    return dumps(openapi.document(ROUTES, with_key=with_key))


class _Endpoint:
    """Wraps an ASGI function in an object, because Starlette takes a bare function for a request handler."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _page() -> dict[str, HttpReply]:
    """The files of the web page by route. They are read once; a request never names a file."""
    folder = Path(__file__).with_name("page")
    found = {}
    for path in sorted(folder.glob("*")):
        if path.suffix in _TYPES:
            route = "/" if path.name == "index.html" else f"/page/{path.name}"
            found[route] = HttpReply(path.read_bytes(), _TYPES[path.suffix], headers={"Cache-Control": "no-cache"})
    return found


def _constant(reply: HttpReply) -> Handler:
    async def page(call: HttpCall, _: Any) -> HttpReply:
        return reply

    return page
