"""Asking a server about texts, and reading its answers as evidence.

`Interviewer` finds out which routes the server has and what they show: log-probabilities of the prompt, of generated
tokens (and of how many), tokens or text alone. Then `text` and `chat` give a `ServedText` each. It also notes what no
model can explain: a greedy token that is not the largest of the server's own log-probabilities, tokens of another
vocabulary, and prompts that the server counts otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.text import ChatTemplate, encode_chat
from assay.verify.endpoint.client import Client, ScoredToken, ServerReply
from assay.verify.endpoint.dialects import COMPLETIONS, DIALECTS, FILTERS_STAY, NO_FILTER
from assay.verify.endpoint.draw_settings import DrawnToken
from assay.verify.endpoint.served_text import Place, ServedText, Spelling, spelled
from assay.verify.endpoint.wire import Unanswered

TOPS = (20, 5, 0)  # log-probabilities to ask for: as many as a server gives
Message = dict[str, str]


@dataclass
class Reading:
    """The evidence that the server shows, and odd things in its answers."""

    dialect: str = ""
    completions: bool = False
    chat: bool = False
    top: int = 0  # log-probabilities for each generated token
    echo: bool = False  # the prompt is scored, too
    echo_shift: int = 0  # rows by which the server's echo is displaced
    spelled: bool = False  # the last answer showed its text alone, without the ids of its tokens
    digits: int | None = None  # of printed log-probabilities; None: as many as a float has
    chosen: list[DrawnToken] = field(default_factory=list)  # at temperature 0
    tokens: int = 0  # generated tokens
    readable: int = 0  # of these, tokens whose text can be compared with the claimed vocabulary
    foreign: int = 0  # of these, tokens whose text is not that of their id, or that the vocabulary lacks
    counts: list[tuple[int, int]] = field(default_factory=list)  # prompt tokens: as expected, as the server counts
    chat_counts: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def mode(self) -> str:
        if self.echo:
            return "log-probabilities of prompts and of generated tokens"
        if self.top:
            return f"log-probabilities of the {self.top} best generated tokens"
        return f"{'text' if self.spelled else 'tokens'} alone, at temperature 0"

    @property
    def rounding(self) -> float:
        """Nats that printed log-probabilities are off by."""
        return 0.0 if self.digits is None else 0.3 * 10.0**-self.digits


class Interviewer:
    """Asks through `client`; the answers are read with the claimed model's tokenizer and chat template."""

    def __init__(self, client: Client, template: ChatTemplate | None) -> None:
        self.client, self.template = client, template
        self.tokenizer = client.tokenizer
        self.reading = Reading()
        self.unfiltered = True  # the server takes settings that switch off filters of its own
        self._seen: list[float] = []
        self._more: dict[str, Any] = {}  # asked for in every request: token ids, where the server shows no more

    # --- what the server can do

    def begin(self, text: str, n: int) -> ServedText:
        """The first request: which route, and how many log-probabilities. Raises if no route answers."""
        reasons = []
        for dialect in DIALECTS:
            self.client.use(dialect)
            self.reading.completions = dialect.stands_for == COMPLETIONS
            for top in TOPS:
                try:
                    reply, ids = self._ask(text, n, top)
                except AssayError as error:
                    reasons.append(str(error))
                    if _no_connection(error):
                        raise
                    if _no_route(error) or (self.template is None and not self.reading.completions):
                        break
                    continue
                self.reading.dialect, self.reading.chat = dialect.name, not self.reading.completions
                self.reading.top = top if any(len(s.scores) > 1 for s in reply.steps) else 0
                self._more = {} if any(s.scores for s in reply.steps) else {"return_token_ids": True}
                return self._read(ids, reply, text, chat=self.reading.chat)
        raise AssayError(self._unread(reasons))

    def _unread(self, reasons: Sequence[str]) -> str:
        """Why no route could be read: the first reason that is more than a missing route."""
        told = [reason for reason in reasons if not _no_route(AssayError(reason)) or "model" in reason]
        routes = ", ".join(dialect.path for dialect in DIALECTS)
        return (
            told[0] if told else f"{self.client.url}: has none of the routes {routes}; is this the address of an API?"
        )

    def try_echo(self, text: str) -> ServedText | None:
        """The prompt, scored by the server; None if it cannot."""
        if not self.reading.completions or not self.reading.top:
            return None
        try:
            reply = self.client.complete(text, n=1, echo=True, top=self.reading.top)
        except AssayError:
            return None
        if reply.n_prompt < 2:
            return None
        ids = self.tokenizer.encode(text)
        given = [s.id for s in reply.steps[: reply.n_prompt]]
        first = next((k for k in (0, 1) if given == list(ids[k:])), None)
        if first is None:
            return None
        self.reading.echo = True
        steps = enumerate(reply.steps[: reply.n_prompt], first)
        places = tuple(Place(i, dict(s.scores), None) for i, s in steps if i > 1 and len(s.scores) > 1)
        return ServedText(tuple(ids), len(ids), places, label=text) if places else None

    def echoed_ids(self, text: str) -> list[int] | None:
        """The ids that the server shows for a text, if it echoes prompts."""
        try:
            reply = self.client.complete(text, n=1, echo=True, top=self.reading.top or 1)
        except AssayError:
            return None
        given = [s.id for s in reply.steps[: reply.n_prompt]]
        return [i for i in given if i is not None] if len(given) > 1 and None not in given else None

    # --- evidence

    def text(self, text: str, n: int) -> ServedText:
        """A text and `n` greedy tokens after it; where only chat is served, a message and its answer."""
        reply, ids = self._ask(text, n, self.reading.top)
        return self._read(ids, reply, text, chat=not self.reading.completions)

    def drawn(self, text: str, n: int, seed: int) -> ServedText:
        """A text and `n` tokens after it, drawn at temperature 1 with a seed; no scores are asked for."""
        ask = partial(self.client.complete, text, n=n, top=0, temperature=1.0, top_p=1.0, seed=seed)
        try:
            reply = self._reply_to(partial(ask, **(NO_FILTER if self.unfiltered else {})))
        except Unanswered:
            raise
        except AssayError:
            if not self.unfiltered:
                raise
            self.unfiltered = False
            reply = self._reply_to(ask)
            self.reading.notes.append(FILTERS_STAY)
        return self._read(list(self.tokenizer.encode(text)), reply, text, chat=False)

    def chat(self, messages: Sequence[Message], n: int) -> ServedText:
        """A conversation and `n` greedy tokens of its answer."""
        reply, ids = self._ask_chat(messages, n, self.reading.top)
        return self._read(ids, reply, messages[-1]["content"], chat=True)

    def left_by(self, text: str) -> list[tuple[int, ...]]:
        """Ask for one token after a text. The ids that a cache may hold then: the text's, without and with that token,
        which may be one of several with the same text."""
        reply, ids = self._ask(text, 1, self.reading.top)
        last = reply.steps[-1:]
        tokens = [s.id for s in last if s.id is not None] or self.client.spellings.get(
            last[0].text if last else reply.text, ()
        )
        return [tuple(ids), *((*ids, token) for token in tokens)]

    def _ask(self, text: str, n: int, top: int) -> tuple[ServerReply, list[int]]:
        """The answer to a text, and the prompt's ids as the claimed file makes them."""
        if not self.reading.completions:
            return self._ask_chat([{"role": "user", "content": text}], n, top)
        reply = self._reply_to(partial(self.client.complete, text, n=n, top=top))
        ids = list(self.tokenizer.encode(text))
        if reply.prompt_tokens is not None:
            self.reading.counts.append((len(ids), reply.prompt_tokens))
        return reply, ids

    def _ask_chat(self, messages: Sequence[Message], n: int, top: int) -> tuple[ServerReply, list[int]]:
        if self.template is None:
            self.client.chat(messages, n=1, top=0)  # the error of a missing route, where there is no chat either
            raise AssayError(f"{self.client.url}: only chat is served, and the claimed file has no chat template")
        reply = self._reply_to(partial(self.client.chat, messages, n=n, top=top))
        ids = list(encode_chat(self.tokenizer, self.template, messages))
        if reply.prompt_tokens is not None:
            self.reading.chat_counts.append((len(ids), reply.prompt_tokens))
        return reply, ids

    def _reply_to(self, request: Callable[..., ServerReply]) -> ServerReply:
        """The answer, with token ids where the server can show them, as vLLM does; others may refuse the question."""
        try:
            return request(**self._more)
        except AssayError:
            if not self._more:
                raise
            self._more = {}
            return request()

    def _read(self, ids: list[int], reply: ServerReply, label: str, *, chat: bool) -> ServedText:
        n_prompt, places = len(ids), list[Place]()
        steps = reply.steps[reply.n_prompt :]
        bare = not any(step.scores for step in steps)
        if not steps or (bare and _tokens_are_missing(reply, len(steps))):
            return self._read_spelled(ids, reply, label, chat)
        self.reading.spelled = False
        for step in steps:
            self._notice(step)
        if _tokens_are_missing(reply, len(steps)):
            return ServedText(tuple(ids), n_prompt, (), chat, label)
        for step in steps:
            places.append(Place(len(ids), dict(step.scores), step.id))
            if step.id is None:
                break
            if len(step.scores) > 1:
                self.reading.chosen.append(DrawnToken(step.id, dict(step.scores), tuple(ids), len(step.scores)))
            ids.append(step.id)
            if step.id in self.tokenizer.eog:
                break
        return ServedText(tuple(ids), n_prompt, tuple(places), chat, label)

    def _read_spelled(self, ids: list[int], reply: ServerReply, label: str, chat: bool) -> ServedText:
        """An answer of which only the text is known. Its ids are the tokenizer's; `spelled_text` tries others."""
        self.reading.spelled = True
        said = reply.text.split("\ufffd", 1)[0]
        whole = [] if chat else list(self.tokenizer.encode(label + said))
        fits = whole[: len(ids)] == ids
        told = whole[len(ids) :] if fits else self.tokenizer.encode(said, add_special=False, parse_special=False)
        self.reading.tokens += reply.completion_tokens or len(told)
        if not told:
            return ServedText(tuple(ids), len(ids), (), chat, label)
        return spelled((*ids, *told), len(ids), chat, label, Spelling(said))

    def _notice(self, step: ScoredToken) -> None:
        seen = self.reading
        seen.tokens += 1
        said = step.text
        if step.id is None:  # its text belongs to several tokens, or to none
            if said and "\ufffd" not in said:
                seen.readable += 1
                seen.foreign += said not in self.client.spellings
            return
        own = self.tokenizer.piece(step.id).decode("utf-8", "replace")
        if said.strip() and own.strip() and "\ufffd" not in own + said:
            seen.readable += 1
            seen.foreign += own.strip() != said.strip()
        self._seen += step.scores.values()
        if len(step.scores) > 1:
            seen.digits = _digits(self._seen)


def _tokens_are_missing(reply: ServerReply, shown: int) -> bool:
    """Did the server make tokens that it does not show? Some leave out the parts of a character, or special tokens.

    The token that ends an answer is counted by some servers and shown by none.
    """
    if reply.completion_tokens is None:
        said = "".join(step.text for step in reply.steps[reply.n_prompt :])
        return bool(said) and "\ufffd" in said + reply.text
    return shown not in (reply.completion_tokens, reply.completion_tokens - (reply.finish == "stop"))


def _digits(values: Sequence[float]) -> int | None:
    """Decimal digits of printed numbers, up to 3; None where they have more."""
    x = np.asarray(values[:200], float)
    return next((d for d in range(4) if np.allclose(x * 10**d, np.round(x * 10**d), atol=1e-6)), None)


def _no_route(error: AssayError) -> bool:
    """Does the server lack the route? Then other numbers of log-probabilities need not be tried."""
    return any(f"answered {code} " in str(error) for code in (404, 405, 501))


def _no_connection(error: AssayError) -> bool:
    text = str(error)
    return "no usable answer" in text or "no whole answer" in text


def as_dict(reading: Reading) -> dict[str, Any]:
    """The reading for a report."""
    return {
        "mode": reading.mode,
        "dialect": reading.dialect,
        "completions": reading.completions,
        "chat": reading.chat,
        "top_logprobs": reading.top,
        "echo": reading.echo,
        "digits": reading.digits,
        "generated_tokens": reading.tokens,
        "notes": list(reading.notes),
    }
