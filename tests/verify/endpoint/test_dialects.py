"""The routes of other servers: the same request in other words, and the answer read back; junk is one error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from assay.errors import AssayError
from assay.gguf import open_file
from assay.text import ChatTemplate, Tokenizer
from assay.verify.endpoint.asking import Interviewer
from assay.verify.endpoint.client import Client
from assay.verify.endpoint.dialects import DIALECTS
from tests import tiny

TALK = [{"role": "user", "content": "abc"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(open_file(tiny.make(tmp_path_factory.mktemp("dialects") / "a.gguf")))


def scored(text: str, name: str = "token") -> list[dict[str, Any]]:
    return [{"id": 5, name: text, "logprob": -0.5}, {"id": 6, name: "?", "logprob": -1.5}]


ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "choices": [{"text": "a", "logprobs": {"content": [scored("a")[0] | {"top_logprobs": scored("a")}]}}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 1},
    },
    "/generate": {
        "generated_text": "a",
        "details": {
            "finish_reason": "length", "generated_tokens": 1, "tokens": scored("a", "text")[:1],
            "top_tokens": [scored("a", "text")],
        },
    },
    "/v1/responses": {
        "status": "incomplete", "usage": {"input_tokens": 4, "output_tokens": 1},
        "output": [
            {"type": "reasoning"},
            {"type": "message", "content": [
                {"type": "output_text", "text": "a", "logprobs": [scored("a")[0] | {"top_logprobs": scored("a")}]},
            ]},
        ],
    },
    "/v1/messages": {
        "content": [{"type": "text", "text": "a"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 4, "output_tokens": 2},
    },
}  # fmt: skip
ANSWERS["/v1/chat/completions"] = {
    "choices": [{"message": {"content": "a"}, "logprobs": ANSWERS["/v1/completions"]["choices"][0]["logprobs"]}],
    "usage": {"prompt_tokens": 4, "completion_tokens": 1},
}


class Only:
    """A server with one route."""

    def __init__(self, path: str) -> None:
        self.path, self.bodies = path, list[Mapping[str, Any]]()

    def __call__(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if path != self.path:
            raise AssayError(f"x{path}: answered 404 (not found)")
        self.bodies.append(body)
        return ANSWERS[path]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_a_server_with_one_route_is_read(tokenizer: Tokenizer, dialect: Any) -> None:
    template = ChatTemplate.named("chatml", tokenizer)
    server = Only(dialect.path)
    interviewer = Interviewer(Client("x", tokenizer, ask=server), template)
    served = interviewer.begin("abc", 12)
    reading = interviewer.reading
    assert reading.dialect == dialect.name and reading.chat == (dialect.stands_for == "/v1/chat/completions")
    assert bool(reading.top) == (dialect.name != "messages") == ("text alone" not in reading.mode)
    assert len(served.places) == 1 and len(server.bodies) == 1, "the routes that it lacks are asked for once each"
    if reading.top:
        assert dict(served.places[0].scores) == {5: -0.5, 6: -1.5}


def test_requests_in_other_words(tokenizer: Tokenizer) -> None:
    asked = {d.name: Only(d.path) for d in DIALECTS}
    for dialect in DIALECTS:
        client = Client("x", tokenizer, ask=asked[dialect.name], model="m")
        client.use(dialect)
        if dialect.stands_for == "/v1/completions":
            client.complete("abc", n=3, top=5)
            client.complete("abc", n=3, top=5, temperature=1.0, top_p=1.0, top_k=0, seed=9)
        else:
            client.chat(TALK, n=3, top=5)
    greedy, drawn = (body["parameters"] for body in asked["generate"].bodies)
    assert greedy == {"max_new_tokens": 3, "details": True, "top_n_tokens": 5}
    assert drawn == greedy | {"do_sample": True, "temperature": 1.0, "seed": 9}, "filters that do nothing are left out"
    assert asked["responses"].bodies[0] == {
        "input": TALK, "max_output_tokens": 16, "store": False, "top_logprobs": 5, "model": "m", "temperature": 0,
        "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    assert asked["messages"].bodies[0] == {"messages": TALK, "max_tokens": 3, "model": "m", "temperature": 0}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_junk_is_one_error_or_nothing_said(tokenizer: Tokenizer, dialect: Any) -> None:
    right = ANSWERS[dialect.path]
    empty = Client("x", tokenizer, ask=lambda path, body: {})
    empty.use(dialect)
    with pytest.raises(AssayError, match="no choices"):
        empty.complete("a", n=1) if dialect.stands_for == "/v1/completions" else empty.chat(TALK, n=1)
    for key in right:
        for value in (None, 5, "x", [], [None], [[1]], {}, {"tokens": 5, "top_tokens": [5]}, [{"content": 5}]):
            client = Client("x", tokenizer, ask=lambda path, body, bad={**right, key: value}: bad)  # type: ignore[misc]
            client.use(dialect)
            try:
                said = client.complete("a", n=1) if dialect.stands_for == "/v1/completions" else client.chat(TALK, n=1)
                assert isinstance(said.text, str)
            except AssayError as error:
                assert "\n" not in str(error)


def test_the_key_goes_into_the_header_of_the_dialect() -> None:
    by_name = {d.name: d for d in DIALECTS}
    assert by_name["messages"].headers("k") == {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    assert by_name["responses"].headers("k") == {"Authorization": "Bearer k"} and by_name["generate"].headers("") == {}
