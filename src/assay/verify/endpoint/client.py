"""A client of a server: log-probabilities of a prompt and of the tokens after it, in every known form.

It speaks OpenAI's completions and chat completions; `dialects` translates them for other servers, and `wire` carries
them. The server is not trusted: the type of every part of an answer is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.system.terminal import printable
from assay.text import Tokenizer
from assay.verify.endpoint.dialects import CHAT, COMPLETIONS, DIALECTS, Dialect
from assay.verify.endpoint.kept_answers import KeptAnswers
from assay.verify.endpoint.wire import Refusal, Unanswered, Wire, address, route_at

FAILED = 500  # the code of a server that cannot answer this request, which is an answer of its own
MAX_STEPS = 512  # scored tokens of one answer: the probes are short
Ask = Callable[[str, Mapping[str, Any]], dict[str, Any]]  # path and body to the answer


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

    With `ask`, an engine in this process answers in the server's place; `url` is then its name. `reply_s` is the
    longest time for one answer, `pause_s` the time between two requests. `resume` is a file of answers: those that it
    has are not asked for again, and new ones are added. The key is sent to the server, and neither printed nor kept.
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
        reply_s: float | None = None,
        resume: Path | None = None,
    ) -> None:
        self.url = url if ask is not None else address(url)
        self.tokenizer, self.key, self.model, self.max_steps, self._ask = tokenizer, key, model, max_steps, ask
        self._wire = Wire(reply_s=reply_s, pause_s=pause_s)
        self.kept = None if resume is None else KeptAnswers(resume, self.url)
        self.requests = 0
        self.generated = 0  # tokens of all answers
        self.unanswered = 0  # requests that got no answer: it cannot be said what they would have shown
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
        where = self.url if self._ask is not None else route_at(self.url, dialect.path)
        found = self.kept.take(dialect.path, asked) if self.kept is not None else None
        if found is None:
            found = self._answer(where, dialect, asked)
        return self._checked(where, dialect.answer(found) if isinstance(found, dict) else found)

    def _answer(self, where: str, dialect: Dialect, asked: Mapping[str, Any]) -> Any:
        """The answer of the server or of the engine, in the words of the dialect."""
        if self._ask is not None:
            return self._ask(dialect.path, asked)
        try:
            found = self._wire.post(where, asked, {"Content-Type": "application/json", **dialect.headers(self.key)})
        except Refusal as error:
            hint = "; name the model with --api-model" if not self.model and "model" in str(error).lower() else ""
            if self.kept is not None:
                self.kept.keep_refusal(dialect.path, asked, f"{error}{hint}")
            raise AssayError(f"{error}{hint}") from None
        except Unanswered as error:
            self.unanswered += error.code != FAILED
            raise
        if self.kept is not None:
            self.kept.keep(dialect.path, asked, found)
        return found

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
        self.generated += len(steps) - n_prompt if generated_tokens is None else generated_tokens
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
