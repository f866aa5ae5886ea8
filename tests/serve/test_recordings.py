"""What Continue and Open WebUI send, request for request, and what they read of the answers.

The requests follow their public sources: Continue's providers for OpenAI, llama.cpp and Ollama; Open WebUI's routers
for OpenAI and Ollama. They are data (`tests/data/recordings`): headers such as `Bearer undefined` and fields that mean
nothing here belong to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import Server

FOLDER = Path(__file__).parents[1] / "data" / "recordings"
RECORDED = [
    pytest.param(entry, id=f"{path.stem}: {entry['what']}")
    for path in sorted(FOLDER.glob("*.json"))
    for entry in json.loads(path.read_text())
]
TYPES = {"json": "application/json", "events": "text/event-stream", "lines": "application/x-ndjson"}


def objects(reply: httpx.Response, kind: str, *, end: bool) -> list[Any]:
    """The JSON objects of an answer, read as these clients read them."""
    if kind == "json":
        return [reply.json()]
    if kind == "lines":
        return [json.loads(line) for line in reply.text.split("\n") if line.strip()]
    data = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    assert (data[-1] == "[DONE]") == end
    return [json.loads(text) for text in data if text != "[DONE]"]


def held(found: Any, way: list[str | int]) -> bool:
    for step in way:
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            return False
    return found is not None


@pytest.mark.parametrize("entry", RECORDED)
def test_a_recorded_request_is_answered(server: Server, entry: dict[str, Any]) -> None:
    method, path = entry["request"]
    body = json.dumps(entry["body"]).encode() if "body" in entry else None
    headers = {"Content-Type": "application/json", **entry.get("headers", {})}
    reply = httpx.request(method, server.url + path, headers=headers, content=body, timeout=120)
    assert reply.status_code == 200, reply.text
    kind = entry["answer"]
    assert reply.headers["content-type"].startswith(TYPES[kind])
    found = objects(reply, kind, end=entry.get("end", True))
    assert not any("error" in one for one in found)
    assert any(held(one, entry["holds"]) for one in found)
    if kind == "events" and entry["body"].get("stream_options"):
        assert found[-1]["choices"] == [] and found[-1]["usage"]["completion_tokens"] > 0
    if kind == "lines":
        assert [one["done"] for one in found] == [False] * (len(found) - 1) + [True]
