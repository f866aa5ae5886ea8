"""A client of a server: log-probabilities of a prompt and of the tokens after it, in every known form.

It speaks OpenAI's completions and chat completions; `dialects` translates them for other servers. The server is not
trusted: the type, size and time of every part of an answer are checked.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from assay.errors import AssayError
from assay.system.terminal import printable
from assay.text import Tokenizer
from assay.verify.endpoint.dialects import CHAT, COMPLETIONS, DIALECTS, Dialect

REPLY_S = 120.0  # from the request to the last byte of its answer
SESSION_S = 1800.0  # all requests of a client together
MAX_REPLY = 8 << 20
RETRIES = 4  # of a request that the server is too busy for
MOST_WAIT_S = 30.0  # before it is asked again
MAX_STEPS = 512  # scored tokens of one answer: the probes are short
Ask = Callable[[str, Mapping[str, Any]], dict[str, Any]]  # path and body to the answer


class Busy(AssayError):
    """The server asks to wait: 429 or 503."""

    wait_s = 1.0


@dataclass(frozen=True)
class ScoredToken:
    """One token of a reply: its id where it is known, and the log-probabilities given for its place."""

    id: int | None
    text: str
    scores: Mapping[int, float]  # token id -> log-probability, the token's own among them


@dataclass(frozen=True)
class ServerReply:
    """A checked reply: the tokens in order, how many of them are the prompt's, and why the server stopped."""

    steps: tuple[ScoredToken, ...]
    n_prompt: int  # tokens of the prompt among `steps`: 0 where the prompt was not echoed
    text: str
    finish: str
    prompt_tokens: int | None  # as the server counts them
    completion_tokens: int | None = None  # as the server counts them


class Client:
    """Asks the endpoint at `url` (with or without the final /v1) about the model that `tokenizer` belongs to.

    With `ask`, an engine in this process answers in the server's place; `url` is then its name. A server that is busy
    (429 or 503) is asked again, at most `RETRIES` times. The key is sent to the server and never printed.
    """

    def __init__(
        self,
        url: str,
        tokenizer: Tokenizer,
        *,
        key: str = "",
        model: str = "",
        max_steps: int = MAX_STEPS,
        ask: Ask | None = None,
        pause_s: float = 0.0,
    ) -> None:
        if ask is None and not url.startswith(("http://", "https://")):
            raise AssayError(f"--endpoint {url}: not an address (expected http://host:port)")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.tokenizer, self.key, self.model, self.max_steps, self._ask = tokenizer, key, model, max_steps, ask
        self._until = time.monotonic() + SESSION_S
        self.pause_s = pause_s  # between two requests, for servers with a rate limit
        self.requests = 0
        self._last = 0.0
        self._routes = {d.stands_for: d for d in reversed(DIALECTS)}  # the first of each kind

    def use(self, dialect: Dialect) -> None:
        """Ask in this dialect from now on, where it stands in for one of OpenAI's routes."""
        self._routes[dialect.stands_for] = dialect

    @property
    def is_remote(self) -> bool:
        """Whether a server answers, which may take several requests at a time."""
        return self._ask is None

    @cached_property
    def spellings(self) -> Mapping[str, tuple[int, ...]]:
        """All token ids by their text."""
        found: dict[str, list[int]] = {}
        for token in range(self.tokenizer.n_vocab):
            found.setdefault(self.tokenizer.piece(token).decode("utf-8", "replace"), []).append(token)
        return {text: tuple(ids) for text, ids in found.items()}

    @cached_property
    def known(self) -> Mapping[str, int]:
        """Token ids by text, for replies without ids; texts that several tokens share are left out."""
        return {text: ids[0] for text, ids in self.spellings.items() if len(ids) == 1 and "\ufffd" not in text}

    def _post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.requests += 1
        dialect = self._routes[route]
        asked = dialect.request({**({"model": self.model} if self.model else {}), **body})
        if self._ask is not None:
            return self._checked(self.url, dialect.answer(self._ask(dialect.path, asked)))
        headers = {"Content-Type": "application/json", **dialect.headers(self.key)}
        where = f"{self.url}{dialect.path}"
        request = urllib.request.Request(where, json.dumps(asked).encode(), headers)
        for attempt in range(RETRIES + 1):
            self._wait(attempt)
            try:
                left = min(REPLY_S, self._until - time.monotonic())
                raw = within(left, where, partial(_fetch, where, request))
                return self._read(where, raw, dialect)
            except Busy as busy:
                if attempt == RETRIES or busy.wait_s > self._until - time.monotonic():
                    raise
                time.sleep(busy.wait_s)
        raise AssertionError("unreachable")

    def _wait(self, attempt: int) -> None:
        """Keep the pause between two requests."""
        rest = self._last + self.pause_s - time.monotonic()
        if self.pause_s and not attempt and rest > 0:
            time.sleep(rest)
        self._last = time.monotonic()

    def _read(self, where: str, raw: bytes, dialect: Dialect) -> dict[str, Any]:
        try:
            found = json.loads(raw)
            return self._checked(where, dialect.answer(found) if isinstance(found, dict) else found)
        except (ValueError, RecursionError) as error:
            raise AssayError(f"{where}: the answer is not JSON ({printable(str(error), 100)})") from None

    def _checked(self, where: str, found: Any) -> dict[str, Any]:
        """The answer, checked to be an object with a first choice."""
        if not isinstance(found, dict) or not isinstance(found.get("choices"), list) or not found["choices"]:
            raise AssayError(f"{where}: the answer holds no choices (found {printable(str(found), 100)})")
        if not isinstance(found["choices"][0], dict):
            raise AssayError(
                f"{where}: the first choice is no object (found {printable(str(found['choices'][0]), 100)})"
            )
        return found

    def complete(
        self, prompt: str | Sequence[int], *, n: int, echo: bool = False, top: int = 5, **more: Any
    ) -> ServerReply:
        """`/v1/completions`, greedy unless `more` says otherwise. A `top` of 0 asks for the text alone."""
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, **({"logprobs": top} if top else {}), **more}
        found = self._post(COMPLETIONS, {**body, "echo": True} if echo else body)
        return self._reply(found, n if echo else None)

    def chat(self, messages: Sequence[Mapping[str, str]], *, n: int, top: int = 5, **more: Any) -> ServerReply:
        """`/v1/chat/completions`, greedy unless `more` says otherwise. A `top` of 0 asks for the text alone."""
        body = {"messages": list(messages), "max_tokens": n, "temperature": 0, **more}
        if top:
            body |= {"logprobs": True, "top_logprobs": top}
        return self._reply(self._post(CHAT, body), None)

    def _reply(self, found: dict[str, Any], generated: int | None) -> ServerReply:
        choice = found["choices"][0]
        steps = tuple(self._steps(_mapping(choice.get("logprobs")))) or self._bare_ids(choice.get("token_ids"))
        if len(steps) > self.max_steps:
            raise AssayError(f"{self.url}: scores of {len(steps)} tokens (expected at most {self.max_steps})")
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        usage = _mapping(found.get("usage"))
        n_prompt = 0
        if generated is not None:
            made = _count(usage.get("completion_tokens"))
            n_prompt = max(0, len(steps) - (generated if made is None else made))
        finish = choice.get("finish_reason")
        counted = _count(usage.get("prompt_tokens"))
        generated_tokens = _count(usage.get("completion_tokens"))
        return ServerReply(steps, n_prompt, _text(text), _text(finish), counted, generated_tokens)

    def _steps(self, logprobs: Mapping[str, Any]) -> list[ScoredToken]:
        """Both forms: parallel lists, or a list of objects under `content`."""
        if isinstance(logprobs.get("content"), list):
            return [self._from_object(item) for item in logprobs["content"] if isinstance(item, dict)]
        texts = _sequence(logprobs.get("tokens"))
        columns = (_sequence(logprobs.get(key)) for key in ("ids", "token_logprobs", "top_logprobs"))
        ids, own, tops = (column or [None] * len(texts) for column in columns)
        found = []
        for text, number, value, top in zip(texts, ids, own, tops, strict=False):
            token = self._token(number, text)
            scores = {self.known[t]: _score(x) for t, x in _mapping(top).items() if t in self.known}
            if token is not None:
                scores[token] = _score(value)
            found.append(ScoredToken(token, _text(text), {i: x for i, x in scores.items() if x is not None}))
        return found

    def _bare_ids(self, ids: Any) -> tuple[ScoredToken, ...]:
        """Tokens without scores; none if one of the ids is no token's."""
        found = [self._token(number, None) for number in _sequence(ids)[: self.max_steps + 1]]
        return tuple(ScoredToken(i, "", {}) for i in found) if None not in found else ()

    def _from_object(self, item: dict[str, Any]) -> ScoredToken:
        scores = {}
        for thing in (item, *(t for t in _sequence(item.get("top_logprobs")) if isinstance(t, dict))):
            token, value = self._token(thing.get("id"), thing.get("token")), _score(thing.get("logprob"))
            if token is not None and value is not None:
                scores[token] = value
        return ScoredToken(self._token(item.get("id"), item.get("token")), _text(item.get("token")), scores)

    def _token(self, number: Any, text: Any) -> int | None:
        """The id of a token: the given number if it is a valid id, else the id of its text."""
        found = _count(number)
        if found is not None and found < self.tokenizer.n_vocab:
            return found
        return self.known.get(text) if isinstance(text, str) else None


# -- a stranger's JSON: what is not of the kind that was asked for counts as not said ----------------------------


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _score(value: Any) -> float | None:
    """A log-probability; None for NaN, infinities and numbers above 0 by more than rounding."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and -1e30 < value < 1
    return float(value) if good else None


# -- the wire ----------------------------------------------------------------------------------------------------


def within(seconds: float, where: str, work: Callable[[], bytes]) -> bytes:
    """The result of `work`, or an error if it takes longer than `seconds`."""
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
        raise AssayError(f"{where}: no whole answer in time ({REPLY_S:g} s an answer, {SESSION_S:g} s in all)")
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


def _fetch(where: str, request: urllib.request.Request) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=REPLY_S) as answer:
            raw: bytes = answer.read(MAX_REPLY + 1)
    except urllib.error.HTTPError as error:
        text = f"{where}: answered {error.code} ({printable(_error_text(error), 200)})"
        if error.code not in (429, 503):
            raise AssayError(text) from None
        busy = Busy(text)
        busy.wait_s = _seconds(error.headers.get("Retry-After"))
        raise busy from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = printable(str(getattr(error, "reason", error)) or type(error).__name__, 200)
        raise AssayError(f"{where}: no usable answer ({reason}); is the server running?") from None
    if len(raw) > MAX_REPLY:
        raise AssayError(f"{where}: the answer is longer than {MAX_REPLY >> 20} MiB")
    return raw


def _seconds(header: str | None) -> float:
    """The seconds of a Retry-After header, within limits; 1 where it says nothing usable."""
    try:
        found = float(header or 1.0)
    except ValueError:
        return 1.0
    return min(max(found, 0.1), MOST_WAIT_S) if found == found else 1.0


def _error_text(error: urllib.error.HTTPError) -> str:
    try:
        return " ".join(error.read(2000).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException, ValueError):
        return "no message"
