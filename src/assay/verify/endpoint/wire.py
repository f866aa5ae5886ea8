"""Requests over HTTP to a server that is not trusted: its address, deadlines, retries and streams.

An answer has a deadline as a whole, and so have all answers of a client together. Only waiting for the server counts,
not what the caller computes in between. A server that is busy is asked again. So is one whose connection broke or that
failed, if it has answered at this address before. Redirects are not followed: they would send the key to another host.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from assay.errors import AssayError
from assay.system.stages import note
from assay.system.terminal import printable
from assay.verify.endpoint.dialects import DIALECTS
from assay.verify.endpoint.event_streams import is_stream, joined

REPLY_S = 120.0  # from the request to the last byte of its answer
SESSION_S = 1800.0  # all answers of a client together
SESSION_REPLIES = 15  # as many of the slowest answers, where a caller waits longer for one
MAX_REPLY = 8 << 20
RETRIES, BROKEN_RETRIES = 4, 3  # of a request that the server is too busy for; that broke
MOST_WAIT_S = 30.0  # before it is asked again
VERSIONED = re.compile(r"/v[0-9]+[a-z]*(/openai)?$")
BUSY = (429, 503, 529)
BROKEN = (500, 502, 504)
RUNNING, API = "; is the server running?", "; is this the address of an API?"
KEY_HINT = "; the key is read from ASSAY_API_KEY or OPENAI_API_KEY"
HINTS = {401: KEY_HINT, 403: KEY_HINT}  # by the code of a refusal
# Forms of a request, for servers that only stream; the first that is not refused is kept.
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
)


class Refusal(AssayError):
    """The server answered with an error."""

    code = 0


class Unanswered(AssayError):
    """No answer came in time, or none that is whole."""

    code = 0  # of HTTP, where there is one


class Passing(Unanswered):
    """An error that may not come again: the server is busy or failed, or the connection broke."""

    busy = False
    wait_s: float | None = None  # as the server asks


def address(url: str) -> str:
    """The address of a server without the route: users paste that of a route, or of the API with its /v1."""
    if not url:
        raise AssayError("the address of the server is empty; write http://host:port")
    if "://" not in url:
        raise AssayError(f"{url}: no scheme; write http://{url} or https://{url}")
    if not url.startswith(("http://", "https://")):
        raise AssayError(f"{url}: not an address (expected http://host:port or https://host)")
    found = url.rstrip("/")
    for route in (*(dialect.path for dialect in DIALECTS), "/v1"):
        found = found.removesuffix(route)
    return found


def route_at(base: str, path: str) -> str:
    """The address of a route. An API of another version has it in its own address: https://host/api/v4."""
    return base + (path.removeprefix("/v1") if VERSIONED.search(base) else path)


class Wire:
    """Posts JSON and reads JSON. `reply_s` is the longest time for one answer, `pause_s` the time between requests."""

    def __init__(self, *, reply_s: float | None = None, pause_s: float = 0.0) -> None:
        self.reply_s = REPLY_S if reply_s is None else reply_s
        self.session_s = SESSION_S if reply_s is None else max(SESSION_S, SESSION_REPLIES * reply_s)
        self.pause_s = pause_s
        self._left = self.session_s
        self._last = 0.0
        self._form = 0
        self._answered: set[str] = set()

    def post(self, where: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """The answer to a request, in one of `FORMS`."""
        first = self._form
        while True:
            try:
                return self._retried(where, {**body, **FORMS[self._form]}, headers)
            except Refusal as error:
                if error.code not in (400, 422) or "stream" not in str(error):
                    raise
                if self._form + 1 == len(FORMS):
                    self._form = first
                    raise
                self._form += 1

    def _retried(self, where: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        request = urllib.request.Request(where, json.dumps(body).encode(), dict(headers))
        rest = self._last + self.pause_s - time.monotonic()
        if self.pause_s and rest > 0:
            time.sleep(rest)
        for attempt in range(RETRIES + 1):
            self._last = time.monotonic()
            try:
                found = self._once(where, request)
                self._answered.add(where)
                return found
            except Passing as error:
                wait = 2.0**attempt if error.wait_s is None else error.wait_s
                again = attempt < (RETRIES if error.busy else BROKEN_RETRIES)
                if not again or wait > self._left or not (error.busy or where in self._answered):
                    raise
                note(f"{str(error).removesuffix(RUNNING).removesuffix(API)}; asking again in {wait:.0f} s")
                self._left -= wait
                time.sleep(wait)
        raise AssertionError("unreachable")

    def _once(self, where: str, request: urllib.request.Request) -> Any:
        late = f"{where}: no whole answer in time ({self.reply_s:g} s an answer, {self.session_s:g} s in all)"
        started = time.monotonic()
        try:
            raw = within(min(self.reply_s, self._left), late, partial(_fetch, where, request, self.reply_s))
        finally:
            self._left -= time.monotonic() - started
        return parsed(where, raw)


def within(seconds: float, late: str, work: Callable[[], bytes]) -> bytes:
    """The result of `work`, or the error `late` if it takes longer than `seconds`."""
    done: list[bytes | BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if not done:
        raise Unanswered(late)
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


def parsed(where: str, raw: bytes) -> Any:
    """The JSON of an answer; of a stream, all its events in one answer. A cut answer is worth a retry."""
    if is_stream(raw):
        found = joined(raw)
        if found is None:
            raise Passing(f"{where}: the stream ended before its end")
        return found
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        said = printable(raw[:40].decode("utf-8", "replace"), 60)
        raise Passing(
            f"{where}: the answer is not JSON ({printable(str(error), 100)}; it begins {said!r}){API}"
        ) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _fetch(where: str, request: urllib.request.Request, seconds: float) -> bytes:
    try:
        with _OPENER.open(request, timeout=seconds) as answer:
            raw: bytes = answer.read(MAX_REPLY + 1)
    except urllib.error.HTTPError as error:
        raise _refused(where, error) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = printable(str(getattr(error, "reason", error)) or type(error).__name__, 200)
        raise Passing(f"{where}: no usable answer ({reason}){RUNNING}") from None
    if len(raw) > MAX_REPLY:
        raise AssayError(f"{where}: the answer is longer than {MAX_REPLY >> 20} MiB")
    return raw


def _refused(where: str, error: urllib.error.HTTPError) -> AssayError:
    """The error of an HTTP code."""
    words = f"{where}: answered {error.code} ({printable(_error_text(error), 200)})"
    if error.code in (*BUSY, *BROKEN):
        passing = Passing(words)
        passing.code, passing.busy = error.code, error.code in BUSY
        passing.wait_s = _seconds(error.headers.get("Retry-After"))
        return passing
    moved = error.headers.get("Location") if 300 <= error.code < 400 else None
    refusal = Refusal(words + (f"; it moved to {printable(moved, 200)}" if moved else HINTS.get(error.code, "")))
    refusal.code = error.code
    return refusal


def _seconds(header: str | None) -> float | None:
    """The seconds of a Retry-After header, within limits; None where it says nothing usable."""
    try:
        found = float(header or "")
    except ValueError:
        return None
    return min(max(found, 0.1), MOST_WAIT_S) if found == found else None


def _error_text(error: urllib.error.HTTPError) -> str:
    try:
        return " ".join(error.read(2000).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException, ValueError):
        return "no message"
