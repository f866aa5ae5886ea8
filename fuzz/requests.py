"""Requests that strangers send: each kind makes a path and a body. The stall test sends all of them.

The bodies of `readers.REQUESTS` come with mutations; the others are the largest of their kind, honest or not.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

from fuzz import mutate
from fuzz.readers import REQUESTS

Made = tuple[str, bytes]
ROUTES = {
    "ChatRequest": "/v1/chat/completions", "CompletionRequest": "/v1/completions", "EmbeddingRequest": "/v1/embeddings",
    "TokenizeRequest": "/tokenize", "DetokenizeRequest": "/detokenize", "TraceRequest": "/v1/trace",
}  # fmt: skip
SAY = [{"role": "user", "content": "a"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def _json(path: str, **body: Any) -> Made:
    return path, json.dumps(body).encode()


def _chat(**body: Any) -> Made:
    return _json(CHAT, **{"messages": SAY, "max_tokens": 4} | body)


def _text(**body: Any) -> Made:
    return _json(TEXT, **{"prompt": "a", "max_tokens": 4} | body)


def _schema(schema: Any) -> Made:
    return _chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})


def _tool(i: int, n: int) -> dict[str, Any]:
    fields = {f"p{j}": {"type": "string"} for j in range(n)}
    return {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": fields}}}


def _mutated(rng: random.Random) -> Made:
    name, body = rng.choice(REQUESTS)
    raw = json.dumps(mutate.value(rng, body)).encode()
    return ROUTES[name], mutate.data(rng, raw) if rng.random() < 0.3 else raw


def _called(arguments: str, n: int = 1) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "assistant", "content": None, "tool_calls": [call] * n}, *SAY]


def _list(rng: random.Random, items: bytes) -> Made:
    """A list where a route takes texts or ids."""
    fields = {TEXT: "prompt", "/completion": "prompt", "/v1/embeddings": "input", "/api/embed": "input",
              "/detokenize": "tokens"}  # fmt: skip
    path, name = rng.choice(list(fields.items()))
    return path, b'{"model": "soak", "%s": [%s]}' % (name.encode(), items)


# Routes that take a body, each of which gets every kind of `_everywhere`.
EVERYWHERE = (
    *ROUTES.values(), "/v1/responses", "/apply-template", "/completion", "/infill", "/api/chat", "/api/generate",
    "/api/embed", "/api/show", "/v1/diagnose", "/v1/messages", "/v1/messages/count_tokens", "/v1/rerank", "/v2/rerank",
    "/embedding", "/lora-adapters", "/slots/{slot}", "/api/embeddings", "/api/pull", "/api/create", "/api/copy",
    "/api/delete", "/models/load", "/models/unload", "/v1/responses/input_tokens", "/v1/fim/completions",
)  # fmt: skip


def _everywhere(make: Callable[[str], Made]) -> Callable[[random.Random], Made]:
    """The same on one of all routes that take a body."""
    return lambda rng: make(rng.choice(EVERYWHERE))


# What is sent, by name. Sizes are those that the limits just allow or just refuse.
KINDS: dict[str, Callable[[random.Random], Made]] = {
    "mutated requests": _mutated,
    "490,000 texts": lambda rng: _list(rng, b'"a",' * 490_000 + b'"a"'),
    "60,000 texts": lambda rng: _list(rng, b'"a",' * 60_000 + b'"a"'),
    "300,000 numbers": lambda rng: _json(
        rng.choice((TEXT, "/v1/embeddings")), prompt=[1] * 300_000, input=[1] * 300_000
    ),
    "300,000 fractions": lambda rng: _text(prompt=[1.5] * 300_000),
    "260,000 ids to read": lambda rng: _json("/detokenize", tokens=[300 + i % 15 for i in range(260_000)]),
    "hidden arrays": lambda rng: (TEXT, b'{"x": "\\\\", "prompt": [' + b"[]," * 600_000 + b"[]]}"),
    "60,000 arrays": lambda rng: (TEXT, b'{"prompt": [' + b"[]," * 60_000 + b"[]]}"),
    "deep arrays": _everywhere(lambda path: (path, b"[" * 2_000_000)),
    "deep objects": _everywhere(lambda path: (path, b'{"a":' * 400_000)),
    "30,000 keys": _everywhere(lambda path: _json(path, **{f"k{i}": 1 for i in range(30_000)})),
    "long numbers": _everywhere(
        lambda path: (path, b'{"n": [' + b"9" * 4000 + b"," + b"0." + b"1" * 1_900_000 + b"]}")
    ),
    "many long numbers": lambda rng: (TEXT, b'{"prompt": [' + b",".join([b"9" * 4000] * 480) + b"]}"),
    "escapes": _everywhere(lambda path: (path, b'{"content": "' + b"\\u00e9" * 340_000 + b'"}')),
    "lone surrogates": _everywhere(
        lambda path: (path, b'{"content": ["' + b'\\ud83d\\ude00","' * 30_000 + b'\\ud800"]}')
    ),
    "quotes and brackets": lambda rng: _json("/tokenize", content='\\"[{' * 60_000),
    "not UTF-8": _everywhere(lambda path: (path, b'{"content": "' + b"\xff" * 2_000_000 + b'"}')),
    "long texts": lambda rng: _json("/tokenize", content=rng.choice(("z", "</s>", "<s>a", " hello", "é")) * 60_000),
    "pieces": lambda rng: _json("/tokenize", content="z" * 8_000, with_pieces=True),
    "a long prompt": lambda rng: _text(prompt="hello world " * 20_000),
    "a prompt that fills the context": lambda rng: _text(prompt=[300 + i % 15 for i in range(8000)], max_tokens=8),
    "scores of prompts": lambda rng: _text(
        prompt=[300 + i % 15 for i in range(7000)], max_tokens=0, echo=True, logprobs=20
    ),
    "n and logprobs": lambda rng: _text(n=16, logprobs=20, max_tokens=200, ignore_eos=True),
    "n and logprobs of a chat": lambda rng: _chat(
        n=16, logprobs=True, top_logprobs=20, max_tokens=200, ignore_eos=True
    ),
    "64 prompts": lambda rng: _text(prompt=["hello world"] * 64, max_tokens=64, ignore_eos=True),
    "100,000 stops": lambda rng: _text(stop=["a"] * 60_000),
    "16 long stops": lambda rng: _text(stop=["ab" * 128] * 16, max_tokens=200, ignore_eos=True),
    "30,000 biases": lambda rng: _text(logit_bias={str(i): 1 for i in range(30_000)}),
    "1,000 biases": lambda rng: _text(logit_bias={str(i % 300): 1 for i in range(1000)}, n=16, max_tokens=50),
    "samplers that look back": lambda rng: _text(
        prompt=[300 + i % 15 for i in range(7900)],
        n=16,
        max_tokens=20,
        ignore_eos=True,
        dry_multiplier=1.0,
        dry_allowed_length=0,
        dry_penalty_last_n=-1,
        repeat_penalty=1.1,
        repeat_last_n=-1,
        top_k=0,
        typical=0.5,
    ),
    "60,000 messages": lambda rng: _chat(messages=SAY * 15_000),
    "1,000 messages": lambda rng: _chat(messages=SAY * 1000),
    "1,024 long messages": lambda rng: _chat(messages=[{"role": "user", "content": "hello world " * 150}] * 1024),
    "messages of many parts": lambda rng: _chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 12}] * 1000
    ),
    "10,000 tools": lambda rng: _chat(tools=[_tool(i, 0) for i in range(10_000)]),
    "64 large tools": lambda rng: _chat(tools=[_tool(i, 100) for i in range(64)]),
    "a required call of 64 tools": lambda rng: _chat(tools=[_tool(i, 10) for i in range(64)], tool_choice="required"),
    "arguments of a million arrays": lambda rng: _chat(messages=_called("[" + "[]," * 600_000 + "[]]")),
    "64 calls": lambda rng: _chat(messages=_called('{"a": [' + "1," * 3000 + "1]}", 64)),
    "variables of the template": lambda rng: _chat(chat_template_kwargs={f"k{i}": ["x"] * 50 for i in range(1000)}),
    "a slow schema": lambda rng: _schema({"type": "integer", "multipleOf": 99_000_000 + rng.randrange(999_999)}),
    "a large schema": lambda rng: _schema({"enum": [f"word {i} {rng.random()}" for i in range(1500)]}),
    "a deep schema": lambda rng: _schema(json.loads('{"items":' * 60 + "{}" + "}" * 60)),
    "items for /v1/responses": lambda rng: _json(
        "/v1/responses",
        input=[{"role": "user", "content": "a" * 100}] * 1000,
        tools=[{"type": "function", "name": f"f{i}"} for i in range(64)],
        max_output_tokens=4,
    ),
    "a conversation of blocks": lambda rng: _json(
        rng.choice(("/v1/messages", "/v1/messages/count_tokens")),
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 12}] * 500,
        tools=[{"name": f"f{i}", "input_schema": {"type": "object"}} for i in range(64)],
        max_tokens=4,
    ),
    "documents to rank": lambda rng: _json("/v1/rerank", query="hello", documents=["hello world " * 40] * 64),
    "250 long documents to rank": lambda rng: _json(
        "/v1/rerank", query="hello", documents=["hello world " * 600] * 250
    ),
    "documents without end": lambda rng: _json("/v1/rerank", query="a" * 60_000, documents=["a"] * 60_000),
    "an Ollama conversation": lambda rng: _json(
        "/api/chat", model="soak", messages=SAY * 1000, options={"num_predict": 4}
    ),
    "an Ollama prompt": lambda rng: _json(
        "/api/generate", model="soak", prompt="a b " * 1500, options={"num_predict": 4}
    ),
    "60 long embeddings": lambda rng: _json("/v1/embeddings", input=[[300 + i % 15] * 4000 for i in range(60)]),
    "64 short embeddings": lambda rng: _json(
        rng.choice(("/v1/embeddings", "/api/embed")), model="soak", input=["hello"] * 64
    ),
    "a lens": lambda rng: _json("/v1/trace", tokens=[300 + i % 15 for i in range(100)], lens=True, top=10),
    "a whole trace": lambda rng: _json("/v1/trace", tokens=[300 + i % 15 for i in range(100)], nodes=["*"], first=64),
    "a rendered template": lambda rng: _json(
        "/apply-template", messages=[{"role": "user", "content": "a b " * 10}] * 150
    ),
    "a log to diagnose": lambda rng: _json("/v1/diagnose", text="l_out-0: rms=nan\n" * 2000, prompt="a\0b"),
    "a file to diagnose": lambda rng: _json(
        "/v1/diagnose", data=base64.b64encode(rng.randbytes(1_000_000)).decode(), name="a.npz"
    ),
    "the document": lambda rng: ("/openapi.json", b""),
    "the metrics": lambda rng: ("/metrics", b""),
    "the models": lambda rng: (rng.choice(("/api/tags", "/v1/models", "/props", "/slots", "/v1/status")), b""),
}
