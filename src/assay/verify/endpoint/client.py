"""Talking to an OpenAI-compatible server: log-probabilities of a prompt and of what follows it, whatever their form."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.errors import AssayError
from assay.text import Tokenizer

TIMEOUT = 300.0
MAX_REPLY = 64 << 20


@dataclass(frozen=True)
class Step:
    """One token of a reply: its id where it can be told, and the log-probabilities given for its place."""

    id: int | None
    text: str
    scores: Mapping[int, float]  # token id -> log-probability, the token's own among them


@dataclass(frozen=True)
class Reply:
    """What came back: the tokens in order, how many of them are the prompt's, and why the server stopped."""

    steps: tuple[Step, ...]
    n_prompt: int  # tokens of the prompt among `steps`: 0 where the prompt was not echoed
    text: str
    finish: str
    prompt_tokens: int | None  # as the server counts them


class Client:
    """Asks the endpoint at `url` (with or without the final /v1) about the model that `tokenizer` belongs to."""

    def __init__(self, url: str, tokenizer: Tokenizer, *, key: str = "", model: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise AssayError(f"--endpoint {url}: not an address (expected http://host:port)")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.tokenizer, self.key, self.model = tokenizer, key, model

    @cached_property
    def known(self) -> Mapping[str, int]:
        """Tokens that are told by their text alone, as in replies without ids: those of which only one has it."""
        found: dict[str, int] = {}
        twice: set[str] = set()
        for token in range(self.tokenizer.n_vocab):
            text = self.tokenizer.piece(token).decode("utf-8", "replace")
            if text in found:
                twice.add(text)
            found[text] = token
        return {text: token for text, token in found.items() if text not in twice and "\ufffd" not in text}

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps({**({"model": self.model} if self.model else {}), **body}).encode()
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                found = json.loads(answer.read(MAX_REPLY))
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode("utf-8", "replace")
            raise AssayError(f"{self.url}{path}: answered {error.code} ({' '.join(said.split()):.200})") from None
        except (urllib.error.URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise AssayError(f"{self.url}{path}: no usable answer ({reason}); is the server running?") from None
        if not isinstance(found, dict) or not isinstance(found.get("choices"), list) or not found["choices"]:
            raise AssayError(f"{self.url}{path}: the answer holds no choices (found {found!s:.100})")
        return found

    def complete(self, prompt: str, *, n: int, echo: bool = False, top: int = 5, **more: Any) -> Reply:
        """`/v1/completions`, greedy unless `more` says otherwise."""
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": top, **more}
        found = self._post("/v1/completions", {**body, "echo": True} if echo else body)
        return _reply(self.known, found, n if echo else None)

    def chat(self, messages: Sequence[Mapping[str, str]], *, n: int, top: int = 5) -> Reply:
        """`/v1/chat/completions`, greedy."""
        body = {"messages": list(messages), "max_tokens": n, "temperature": 0, "logprobs": True, "top_logprobs": top}
        return _reply(self.known, self._post("/v1/chat/completions", body), None)


def _reply(known: Mapping[str, int], found: dict[str, Any], generated: int | None) -> Reply:
    choice = found["choices"][0]
    steps = tuple(_steps(known, choice.get("logprobs")))
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    usage = found.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    n_prompt = 0
    if generated is not None:
        made = usage.get("completion_tokens", generated) if isinstance(usage, dict) else generated
        n_prompt = max(0, len(steps) - int(made))
    return Reply(steps, n_prompt, str(text or ""), str(choice.get("finish_reason") or ""), counted)


def _steps(known: Mapping[str, int], logprobs: Any) -> list[Step]:
    """Both forms: parallel lists, or a list of objects under `content`."""
    if not isinstance(logprobs, dict):
        return []
    if isinstance(logprobs.get("content"), list):
        return [_from_object(known, item) for item in logprobs["content"] if isinstance(item, dict)]
    texts = logprobs.get("tokens") or []
    ids = logprobs.get("ids") or [None] * len(texts)
    own = logprobs.get("token_logprobs") or [None] * len(texts)
    tops = logprobs.get("top_logprobs") or [None] * len(texts)
    found = []
    for text, token, value, top in zip(texts, ids, own, tops, strict=False):
        token = token if isinstance(token, int) else known.get(str(text))
        scores = {}
        for other, score in (top or {}).items():
            if (i := known.get(other)) is not None and isinstance(score, int | float):
                scores[i] = float(score)
        if token is not None and isinstance(value, int | float):
            scores[token] = float(value)
        found.append(Step(token, str(text), scores))
    return found


def _from_object(known: Mapping[str, int], item: dict[str, Any]) -> Step:
    def token_of(thing: dict[str, Any]) -> int | None:
        return thing["id"] if isinstance(thing.get("id"), int) else known.get(str(thing.get("token")))

    scores = {}
    for thing in (item, *(t for t in item.get("top_logprobs") or () if isinstance(t, dict))):
        token, value = token_of(thing), thing.get("logprob")
        if token is not None and isinstance(value, int | float):
            scores[token] = float(value)
    return Step(token_of(item), str(item.get("token")), scores)
