"""What Continue and Open WebUI send, request for request, and what they read of the answers.

`tests/data/recordings` has what each sent to a server, recorded by `bench/record.py` while a program of `bench/clients`
used it. A text of over 60 characters is replaced by its number and length, `«7 1200»`, which stand for words here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import tiny
from tests.serve.conftest import TOOL_TEMPLATE, Server, start_server

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
TYPES = {"json": "application/json", "events": "text/event-stream", "lines": "application/x-ndjson"}
WORDS = " hello the world in a"
CONTEXT = 32768  # Open WebUI offers 20,000 characters of tools, and this vocabulary has a token for each
# What the clients read of each answer, by path without /v1 and by kind: these are in one of its objects.
READ: dict[str, dict[str, tuple[str, ...]]] = {
    "/models": {"json": ("data.0.id",)},
    "/chat/completions": {
        "json": ("choices.0.message.role", "choices.0.finish_reason", "usage.completion_tokens"),
        "events": ("choices.0.delta.role", "choices.0.finish_reason"),
    },
    "/completions": {"json": ("choices.0.text",), "events": ("choices.0.text",)},
    "/fim/completions": {"events": ("choices.0.delta.content", "choices.0.finish_reason", "usage.total_tokens")},
    "/embeddings": {"json": ("data.0.embedding", "data.0.index", "usage.prompt_tokens")},
    "/messages/count_tokens": {"json": ("input_tokens",)},
    "/models/load": {"json": ("success",)},
    "/responses": {"json": ("output.0.content.0.text", "status", "usage.output_tokens")},
    "/rerank": {"json": ("results.0.relevance_score", "results.0.index")},
    "/messages": {
        "json": ("content.0.text", "stop_reason", "usage.output_tokens"),
        "events": ("message.usage.input_tokens", "content_block.type", "delta.stop_reason", "usage.output_tokens"),
    },
    "/completion": {"events": ("content", "tokens_evaluated", "timings.predicted_n")},
    "/api/show": {"json": ("template", "parameters", "details.family", "capabilities.0", "model_info")},
    "/api/tags": {"json": ("models.0.name", "models.0.model", "models.0.digest", "models.0.details.family")},
    "/api/ps": {"json": ("models.0.model", "models.0.expires_at", "models.0.size_vram")},
    "/api/version": {"json": ("version",)},
    "/api/chat": dict.fromkeys(("json", "lines"), ("message.role", "message.content", "done_reason", "eval_count")),
    "/api/generate": dict.fromkeys(("json", "lines"), ("response", "done_reason")),
    "/api/embed": {"json": ("embeddings.0.0", "prompt_eval_count")},
    "/api/embeddings": {"json": ("embedding.0",)},
}


LIMITS = {
    "/chat/completions": "max_tokens", "/completions": "max_tokens", "/fim/completions": "max_tokens",
    "/messages": "max_tokens", "/responses": "max_output_tokens", "/completion": "n_predict",
    "/api/chat": "num_predict", "/api/generate": "num_predict",
}  # fmt: skip
SHORT = 12
CALLED = ("choices.0.delta.tool_calls.0.function.name", "content_block.input")  # where a call begins


def recorded() -> Iterator[Any]:
    for path in sorted(FOLDER.glob("*.json")):
        made = json.loads(path.read_text())
        tools = json.loads(with_words(json.dumps(made["tools"], ensure_ascii=False), longest=40))
        for number, entry in enumerate(json.loads(with_words(json.dumps(made["requests"], ensure_ascii=False)))):
            body = entry.get("body", {})
            if "tools" in body:
                body["tools"] = tools[body["tools"]]
            if (field := LIMITS.get(plain_path(entry))) and "tool_choice" not in body:  # no other answer need be long
                within = body.setdefault("options", {}) if field == "num_predict" else body
                within[field] = min(within.get(field, SHORT), SHORT)
            yield pytest.param(entry, id=f"{path.stem} {number}: {entry['what']}")


def with_words(text: str, longest: int = 1 << 30) -> str:
    def words(found: re.Match[str]) -> str:
        length = min(int(found[1]), longest)
        return (WORDS * (length // len(WORDS) + 1))[:length]

    return re.sub("«[0-9]+ ([0-9]+)»", words, text)


def plain_path(entry: dict[str, Any]) -> str:
    """The path without its version and its query."""
    return re.sub(r"^/v[12](?=/)|\?.*", "", entry["request"][1])


def model(path: Path) -> Path:
    """The model that the requests were recorded with: its vocabulary has tokens for filling in, `yes` and `no`."""
    marks = {"fim_pre": 261, "fim_suf": 262, "fim_mid": 263}
    keys = tiny.ranking() | {f"tokenizer.ggml.{name}_token_id": token for name, token in marks.items()}
    return tiny.make(path, n_ctx=CONTEXT, template=TOOL_TEMPLATE, metadata=keys)


@pytest.fixture(scope="module")
def recorded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = start_server(
        [("tiny", model(tmp_path_factory.mktemp("recordings") / "tiny.gguf"))], options={"ctx_size": CONTEXT}
    )
    yield found
    assert found.end() == 0


def objects(reply: httpx.Response, kind: str, path: str) -> list[Any]:
    """The JSON objects of an answer, read as these clients read them."""
    if kind == "json":
        return [reply.json()]
    if kind == "lines":
        found = [json.loads(line) for line in reply.text.split("\n") if line.strip()]
        assert [one["done"] for one in found] == [False] * (len(found) - 1) + [True]
        return found
    data = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    if path not in ("/messages", "/completion"):
        assert data.pop() == "[DONE]"
    return [json.loads(text) for text in data]


def held(found: Any, way: str) -> bool:
    for step in way.split("."):
        try:
            found = found[int(step) if step.isdigit() else step]
        except (KeyError, IndexError, TypeError):
            return False
    return found is not None


def check_events(path: str, found: list[Any], body: dict[str, Any]) -> None:
    """The order of a stream, which its readers rely on."""
    if path == "/messages":
        assert (found[0]["type"], found[-1]["type"]) == ("message_start", "message_stop")
    elif path == "/completion":
        assert [one["stop"] for one in found] == [False] * (len(found) - 1) + [True]
    else:
        if (body.get("stream_options") or {}).get("include_usage"):
            last = found.pop()
            assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
        ends = [one["choices"][0]["finish_reason"] for one in found]
        assert ends[-1] and not any(ends[:-1])
        if path == "/fim/completions":  # Continue shows whatever a chunk has there
            assert all(isinstance(one["choices"][0]["delta"]["content"], str) for one in found)


@pytest.mark.parametrize("entry", [*recorded()])
def test_a_recorded_request_is_answered(recorded_server: Server, entry: dict[str, Any]) -> None:
    method, target = entry["request"]
    body = json.dumps(entry["body"]).encode() if "body" in entry else None
    headers = {"Content-Type": "application/json", **entry["headers"]}
    reply = httpx.request(method, recorded_server.url + target, headers=headers, content=body, timeout=120)
    kind = entry["answer"]
    assert reply.status_code == entry["status"], reply.text
    assert reply.headers["content-type"].startswith(TYPES[kind])
    path = plain_path(entry)
    if entry["status"] >= 400:
        error = reply.json()["error"]
        assert error if path.startswith("/api/") else error["message"]
        return
    found = objects(reply, kind, path)
    assert not any(one.get("error") for one in found)
    assert [way for way in READ[path][kind] if not any(held(one, way) for one in found)] == []
    if "tool_choice" in entry.get("body", {}):
        assert any(held(one, way) for one in found for way in CALLED)
    if kind == "events":
        check_events(path, found, entry["body"])


if __name__ == "__main__":
    print(model(Path(sys.argv[1])))
