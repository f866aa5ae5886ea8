"""Servers that are busy, break off, stream or have moved: the client asks again, and says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.text import ChatTemplate, Tokenizer
from assay.verify.endpoint.asking import Interviewer
from assay.verify.endpoint.client import Client, ServerReply
from assay.verify.endpoint.event_streams import joined
from assay.verify.endpoint.wire import address, route_at
from tests import tiny
from tests.verify.endpoint.http_server import Reply, http_server, said
from tests.verify.endpoint.test_dialects import ANSWERS, TALK

WHOLE = ANSWERS["/v1/completions"]
SOON = {"Retry-After": "0.1"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(open_file(tiny.make(tmp_path_factory.mktemp("wire") / "a.gguf")))


TROUBLE = {
    "closed": Reply(0),
    "bad gateway": Reply(502, b"<html>", SOON),
    "failed": Reply(500, b"{}", SOON),
    "busy": Reply(429, b"{}", SOON),
    "cut off": Reply(200, json.dumps(WHOLE).encode()[:50]),
    "half a stream": Reply(200, b'data: {"choices": [{"text": "a"}]}\n\ndata: {"cho'),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_a_server_that_has_answered_is_asked_again(tokenizer: Tokenizer, case: str) -> None:
    replies = [said(WHOLE), TROUBLE[case], said(WHOLE)]
    with http_server(lambda *_: replies.pop(0)) as url:
        client = Client(url, tokenizer)
        first, second = (client.complete("abc", n=1) for _ in range(2))
    assert first == second and not replies and client.requests == 2 and not client.unanswered


@pytest.mark.parametrize("case", [name for name in TROUBLE if name != "busy"])
def test_a_server_that_never_answered_is_not(tokenizer: Tokenizer, case: str) -> None:
    replies = [TROUBLE[case], said(WHOLE)]
    with http_server(lambda *_: replies.pop(0)) as url, pytest.raises(AssayError):
        Client(url, tokenizer).complete("abc", n=1)
    assert len(replies) == 1


def test_no_answer_is_counted(tokenizer: Tokenizer) -> None:
    """An error of the server is an answer; a proxy without a server behind it has none."""
    replies = [said(WHOLE), *[Reply(502, b"", SOON)] * 4, *[Reply(500, b"", SOON)] * 4]
    with http_server(lambda *_: replies.pop(0)) as url:
        client = Client(url, tokenizer)
        client.complete("abc", n=1)
        for expected in (1, 1):
            with pytest.raises(AssayError, match="answered 50"):
                client.complete("abc", n=1)
            assert client.unanswered == expected
    assert not replies


def test_redirects_do_not_carry_the_key(tokenizer: Tokenizer) -> None:
    seen = list[Mapping[str, str]]()

    def other(_path: str, _body: Any, headers: Mapping[str, str]) -> Reply:
        seen.append(headers)
        return said(WHOLE)

    with http_server(other) as elsewhere:
        moved = Reply(307, b"", {"Location": f"{elsewhere}/v1/completions"})
        with (
            http_server(lambda *_: moved) as url,
            pytest.raises(AssayError, match=f"answered 307.*moved to {re.escape(elsewhere)}"),
        ):
            Client(url, tokenizer, key="secret").complete("abc", n=1)
    assert not seen


def events(answer: Mapping[str, Any], *, chat: bool) -> bytes:
    """An answer as a stream: a piece for each token, then the reason of the end, then the count."""
    choice = answer["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    piece = {"delta": {"content": text}} if chat else {"text": text}
    made: list[Any] = [
        {"choices": [piece | {"logprobs": choice["logprobs"]}]},
        {"choices": [({"delta": {}} if chat else {"text": ""}) | {"finish_reason": "length"}]},
        {"choices": [], "usage": answer["usage"]},
    ]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in made) + b"data: [DONE]\n\n"


def _asked(client: Client, chat: bool) -> ServerReply:
    return client.chat(TALK, n=1) if chat else client.complete("abc", n=1)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("options", [True, False])
def test_a_server_that_only_streams(tokenizer: Tokenizer, chat: bool, options: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"

    def answer(path: str, body: dict[str, Any], _headers: Any) -> Reply:
        if not body.get("stream"):
            return Reply(400, b'{"error": "only streams are served: set stream"}')
        if "stream_options" in body and not options:
            return Reply(422, b'{"detail": "stream_options: unknown field"}')
        return Reply(200, events(ANSWERS[path], chat=chat))

    with http_server(answer) as url:
        client = Client(url, tokenizer)
        streamed = [_asked(client, chat) for _ in range(2)]
    with http_server(lambda *_: said(ANSWERS[path])) as url:
        plain = _asked(Client(url, tokenizer), chat)
    for reply in streamed:
        assert (reply.steps, reply.text, reply.prompt_tokens) == (plain.steps, plain.text, plain.prompt_tokens)
        assert reply.finish == "length" and reply.steps


def test_streams_of_other_routes() -> None:
    whole = ANSWERS["/v1/responses"]
    line = b"event: x\ndata: %s\n\n"
    made = [{"type": "response.created", "response": {}}, {"type": "response.completed", "response": whole}]
    assert joined(b"".join(line % json.dumps(e).encode() for e in made)) == whole
    message: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 4}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    ]
    raw = [line % json.dumps(e).encode() for e in message]
    assert joined(b"".join(raw)) == ANSWERS["/v1/messages"]
    assert joined(b"".join(raw[:2])) is None


JUNK = (
    b"data: 1\n\n",
    b"data: {}\n\n",
    b"data:\n\n",
    b'data: {"choices": 3}\n\n',
    b'data: {"delta": 1, "message": 2}\n\n',
)


@pytest.mark.parametrize("raw", JUNK)
def test_junk_is_no_answer(tokenizer: Tokenizer, raw: bytes) -> None:
    with http_server(lambda *_: Reply(200, raw)) as url, pytest.raises(AssayError, match="stream ended"):
        Client(url, tokenizer).complete("abc", n=1)


ADDRESSES = {
    "http://host:1": "http://host:1/v1/completions",
    "http://host:1/": "http://host:1/v1/completions",
    "http://host:1/v1/": "http://host:1/v1/completions",
    "http://host:1/v1/chat/completions": "http://host:1/v1/completions",
    "https://host/api/v1": "https://host/api/v1/completions",
    "https://host/api/paas/v4": "https://host/api/paas/v4/completions",
    "https://host/v1beta/openai/": "https://host/v1beta/openai/completions",
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_addresses(url: str) -> None:
    assert route_at(address(url), "/v1/completions") == ADDRESSES[url]


@pytest.mark.parametrize(("url", "words"), [("host:80", "write http://host:80"), ("ftp://host", "not an address")])
def test_no_address(url: str, words: str) -> None:
    with pytest.raises(AssayError, match=words):
        address(url)


REFUSALS = {
    "no key": (Reply(401, b"who are you?"), "ASSAY_API_KEY"),
    "no model": (Reply(400, b"model: field required"), "--api-model"),
    "unknown model": (Reply(404, b"the model `` does not exist"), "--api-model"),
    "no route": (Reply(404, b"no such page"), "none of the routes"),
    "a page": (Reply(200, b"<html>welcome"), "address of an API"),
}


@pytest.mark.parametrize("named", ["chatml", ""])
@pytest.mark.parametrize("case", REFUSALS)
def test_an_endpoint_that_cannot_be_read_is_told_why(tokenizer: Tokenizer, case: str, named: str) -> None:
    """The same where the claimed file has no chat template."""
    reply, words = REFUSALS[case]
    template = ChatTemplate.named(named, tokenizer) if named else None
    with http_server(lambda *_: reply) as url, pytest.raises(AssayError, match=re.escape(words)):
        Interviewer(Client(url, tokenizer), template).begin("abc", 4)


def test_chat_alone_cannot_be_read_without_a_template(tokenizer: Tokenizer) -> None:
    chat = "/v1/chat/completions"
    with (
        http_server(lambda path, *_: said(ANSWERS[chat]) if path == chat else Reply(404, b"")) as url,
        pytest.raises(AssayError, match="only chat is served"),
    ):
        Interviewer(Client(url, tokenizer), None).begin("abc", 4)
