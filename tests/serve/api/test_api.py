"""The API as clients use it: the `openai` package unchanged, and plain HTTP for what it has no words for."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from assay.gguf import open_file
from assay.runtime.opening import OpenOptions
from assay.serve import app
from assay.serve.api import schemas
from assay.serve.api.server_state import State
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.models import ModelPool, open_models
from assay.text import Tokenizer
from tests.later import import_later
from tests.serve.conftest import Server, Start

openai = import_later("openai")

ASK = [{"role": "user", "content": "hello the world"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a town",
            "parameters": {
                "type": "object",
                "properties": {"town": {"enum": ["oslo", "rome"]}},
                "required": ["town"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture
def client(server: Server) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def http(server: Server) -> Any:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


# --- the openai client


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens <= 12
    again = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, temperature=0)
    assert again.choices[0].message.content == choice.message.content


def test_streaming_gives_the_same_text_and_usage(client: Any) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert not chunks[-1].choices
    assert all(c.usage is None for c in chunks[:-1])
    without = list(client.chat.completions.create(**options, stream=True))
    assert all(c.usage is None for c in without)


def test_json_schema(client: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=200, temperature=1, seed=4,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content)
    assert set(found) == {"name", "age"}
    assert found["name"] in ("ann", "bob")
    assert 0 <= found["age"] <= 99


def test_json_object(client: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=400, temperature=0.5, seed=1,
        response_format={"type": "json_object"}, logit_bias={"293": -100},
    )  # fmt: skip
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:  # a model of random weights may fill its context with one string
        assert answer.choices[0].message.content.startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools(client: Any, choice: Any) -> None:
    options: dict[str, Any] = {
        "model": "tiny", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "max_tokens": 100, "temperature": 0,
    }  # fmt: skip
    answer = client.chat.completions.create(**options)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    call = message.tool_calls[0]
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["town"] in ("oslo", "rome")
    chunks = list(client.chat.completions.create(**options, stream=True))
    deltas = [d for c in chunks if c.choices for d in c.choices[0].delta.tool_calls or ()]
    assert [(d.index, d.function.name) for d in deltas] == [(0, "weather")] + [(0, None)] * (len(deltas) - 1)
    assert len(deltas) > 2 and "".join(d.function.arguments for d in deltas) == call.function.arguments
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ""
    # The call and its result go back to the model.
    turn = [*ASK, message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert client.chat.completions.create(model="tiny", messages=turn, tools=TOOLS, max_tokens=4).choices


def test_embeddings(client: Any, server: Server) -> None:
    texts = ["hello world", "the world", "hello world"]
    answer = client.embeddings.create(model="tiny", input=texts)  # base64 on the wire
    vectors = np.array([item.embedding for item in answer.data])
    assert vectors.shape == (3, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[2])
    plain = client.embeddings.create(model="tiny", input=texts[0], encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, vectors[0], rtol=1e-6)
    ids = httpx.post(f"{server.url}/tokenize", json={"content": texts[0], "add_special": True}).json()["tokens"]
    np.testing.assert_array_equal(client.embeddings.create(model="tiny", input=ids).data[0].embedding, vectors[0])


def test_models_and_typed_errors(client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello " * 600}])
    assert long.value.code == "context_length_exceeded"
    assert "512" in str(long.value)
    assert "shorten" in str(long.value)


def test_n_and_seed(client: Any) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": ASK, "max_tokens": 12, "temperature": 1.5, "seed": 5}
    first = client.chat.completions.create(**options, n=3)
    again = client.chat.completions.create(**options, n=3)
    texts = [c.message.content for c in first.choices]
    assert texts == [c.message.content for c in again.choices]
    assert [c.index for c in first.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    # Each of the n is the one that its seed gives by itself.
    second = client.chat.completions.create(**options | {"seed": 6})
    assert second.choices[0].message.content == texts[1]


def test_logprobs(client: Any) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    content = answer.choices[0].logprobs.content
    assert len(content) == 6
    for item in content:
        assert item.top_logprobs[0].logprob == item.logprob  # greedy takes the best
        assert [t.logprob for t in item.top_logprobs] == sorted((t.logprob for t in item.top_logprobs), reverse=True)
        assert bytes(item.bytes).decode("utf-8", "replace") == item.token


# --- plain HTTP


def test_echo_with_logprobs_scores_the_prompt(http: httpx.Client, tiny: Path) -> None:
    """Teacher forcing: what the API says of a prompt's tokens is the model's log-probability of them."""
    from assay import engines
    from assay.engines.contract import Chunk
    from assay.models import load

    ids = [1, 260, 265, 270, 288]
    body = {"prompt": ids, "echo": True, "logprobs": 2, "max_tokens": 0}
    found = http.post("/v1/completions", json=body).json()
    schemas.CompletionResponse.model_validate(found)
    logprobs = found["choices"][0]["logprobs"]
    engine = engines.create(engines.default_name(), load(open_file(tiny)), n_pages=2)
    logits = engine.forward([Chunk(np.array(ids, np.int32), 0, np.array([0], np.int32), "all")])[0].logits
    logits = logits.astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert logprobs["token_logprobs"][0] is None
    np.testing.assert_allclose(
        logprobs["token_logprobs"][1:], [expected[i, t] for i, t in enumerate(ids[1:])], rtol=1e-6
    )
    assert logprobs["ids"] == ids
    assert found["usage"]["completion_tokens"] == 0
    text = found["choices"][0]["text"]
    assert [text[o : o + len(t)] for o, t in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)] == logprobs[
        "tokens"
    ]


def test_completion_forms_agree(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": "hello", "add_special": True}).json()["tokens"]
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    texts = []
    for prompt in ("hello", ["hello"], ids, [ids], ["hello", "hello"]):
        answer = http.post("/v1/completions", json=body | {"prompt": prompt}).json()
        schemas.CompletionResponse.model_validate(answer)
        texts += [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 6
    assert len(set(texts)) == 1


def test_a_completion_stream_adds_up(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 9, "temperature": 0, "ignore_eos": True, "echo": True, "logprobs": 1}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]
    events = stream(http, "/v1/completions", body | {"stream": True})
    parts = [event["choices"][0] for event in events]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for key in ("tokens", "token_logprobs", "text_offset", "ids", "top_logprobs"):
        assert [x for part in parts for x in part["logprobs"][key]] == whole["logprobs"][key]
    assert parts[-1]["finish_reason"] == "length"


def stream(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_header_names_the_fields_that_were_ignored(http: httpx.Client, stream: bool) -> None:
    body = {"prompt": "hello", "max_tokens": 1, "stream": stream}
    assert "x-assay-ignored" not in http.post("/v1/completions", json=body).headers
    reply = http.post("/v1/completions", json=body | {"temprature": 0, "store": True})
    assert (reply.status_code, reply.headers["x-assay-ignored"]) == (200, "temprature, store")
    body = {"model": "tiny", "prompt": "hello", "stream": stream, "options": {"num_predict": 1, "num_gpus": 1}}
    assert http.post("/api/generate", json=body).headers["x-assay-ignored"] == "options.num_gpus"


def test_stop_strings(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = text[8:11]
    cut = http.post("/v1/completions", json=body | {"stop": ["never", stop]}).json()["choices"][0]
    assert cut == cut | {"text": text[: text.index(stop)], "finish_reason": "stop"}


def test_bias_and_penalties_change_the_choice(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 0}

    def ids(**extra: Any) -> list[int]:
        found: list[int] = http.post("/v1/completions", json=body | extra).json()["choices"][0]["logprobs"]["ids"]
        return found

    plain = ids()
    assert plain[0] not in ids(logit_bias={str(plain[0]): -100})
    assert ids(logit_bias={"270": 100}) == [270] * 8
    both = {"logit_bias": {"270": 100, "271": 100}, "max_tokens": 40}
    assert set(ids(**both, frequency_penalty=2)) == {270, 271}
    assert len(set(ids(repeat_penalty=50))) == 8


@pytest.mark.parametrize(
    ("grammar", "allowed"),
    [('root ::= "yes" | "no"', {"yes", "no"}), ('start: "a" B\nB: /[bc]/', {"ab", "ac"})],
    ids=["gbnf", "lark"],
)
def test_grammars(http: httpx.Client, grammar: str, allowed: set[str]) -> None:
    body = {"messages": ASK, "grammar": grammar, "temperature": 1, "max_tokens": 20}
    for seed in range(4):
        answer = http.post("/v1/chat/completions", json=body | {"seed": seed}).json()
        assert answer["choices"][0]["message"]["content"] in allowed
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_tokens_and_templates(http: httpx.Client, tiny: Path) -> None:
    tokenizer = Tokenizer.from_gguf(open_file(tiny))
    found = http.post("/tokenize", json={"content": "hello é", "with_pieces": True}).json()
    schemas.TokenizeResponse.model_validate(found)
    assert found["tokens"] == tokenizer.encode("hello é", add_special=False)
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json()["content"] == " hello é"
    shown = http.post("/apply-template", json={"messages": ASK}).json()
    assert shown["prompt"] == "<|turn|>user\nhello the world<|end|>\n<|turn|>assistant\n"
    used = http.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 1}).json()["usage"]
    assert used["prompt_tokens"] == len(shown["tokens"])
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "the world"}]}]
    assert http.post("/apply-template", json={"messages": parts}).json() == shown


def test_trace_and_lens(http: httpx.Client) -> None:
    found = http.post("/v1/trace", json={"tokens": [1, 260, 270], "nodes": ["l_out-*", "kq-0"]}).json()
    schemas.TraceResponse.model_validate(found)
    assert [n["name"] for n in found["nodes"]] == ["kq-0", "l_out-0", "l_out-1"]
    assert found["nodes"][1]["shape"] == [3, 64]
    lens = http.post("/v1/trace", json={"tokens": [1, 260, 270], "lens": True, "top": 2}).json()["lens"]
    assert lens["layers"] == ["l_out-0", "l_out-1"]
    assert len(lens["grid"]) == 2
    assert all(len(row) == 3 and len(cell) == 2 for row in lens["grid"] for cell in row)
    # The last layer's guess is the model's own.
    body = {"prompt": [1, 260, 270], "max_tokens": 1, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    own = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert lens["grid"][-1][-1][0]["id"] == own["ids"][0]
    assert math.isclose(lens["grid"][-1][-1][0]["p"], math.exp(own["token_logprobs"][0]), rel_tol=1e-3)


def test_health_ready_and_metrics(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").status_code == 200
    http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3})
    lines = http.get("/metrics").text.splitlines()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
    assert all(math.isfinite(value) for value in values.values())
    assert values['assay_generated_tokens_total{model="tiny"}'] >= 3
    assert values['assay_pages{model="tiny"}'] > 0


def test_not_ready_until_loaded(tiny: Path) -> None:
    limits, registry = ServerLimits(), CollectorRegistry()
    metrics = Metrics(registry)
    models = ModelPool(open_models([("tiny", tiny)], OpenOptions(), limits), limits, metrics, 1 << 30)

    async def codes() -> list[tuple[str, int]]:
        found = []
        transport = httpx.ASGITransport(app.create(State(models, limits, registry, metrics, None, True)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for path in ("/health", "/ready"):
                found.append((path, (await http.get(path)).status_code))
            async with models.use(models.default):
                found.append(("loaded", (await http.get("/ready")).status_code))
        await models.close()
        return found

    assert asyncio.run(codes()) == [("/health", 200), ("/ready", 503), ("loaded", 200)]


def test_a_prefix_is_reported_as_cached(http: httpx.Client) -> None:
    ids = [1, *([261, 266, 271] * 33)]
    first, second = (
        http.post("/v1/completions", json={"prompt": ids, "max_tokens": 1}).json()["usage"] for _ in range(2)
    )
    assert first["prompt_tokens_details"]["cached_tokens"] <= 1  # what every prompt begins with
    assert second["prompt_tokens_details"]["cached_tokens"] == 96


def test_responses_fit_their_schemas(http: httpx.Client) -> None:
    body = {"messages": ASK, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    schemas.ChatResponse.model_validate(http.post("/v1/chat/completions", json=body).json())
    schemas.ModelList.model_validate(http.get("/v1/models").json())
    embedding = http.post("/v1/embeddings", json={"input": "hello", "encoding_format": "base64"}).json()
    schemas.EmbeddingResponse.model_validate(embedding)
    assert len(base64.b64decode(embedding["data"][0]["embedding"])) == 4 * 64


def test_a_conversation_needs_a_template(start: Start, tmp_path: Path) -> None:
    from tests.tiny import make

    server = start([("bare", make(tmp_path / "bare.gguf", template=None))])
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"model": "bare", "messages": ASK})
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]
