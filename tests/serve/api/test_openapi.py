"""The served OpenAPI document against the server: schemathesis sends what fits it and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from assay.serve.api.routes import ROUTES
from assay.serve.api_errors import KINDS
from tests.later import import_later
from tests.serve.conftest import Server, start_server
from tests.tiny import make

schemathesis = import_later("schemathesis")
jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="schemathesis is not installed")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A context of 64 positions: whatever is asked for, an answer is short."""
    path = make(tmp_path_factory.mktemp("openapi") / "small.gguf")
    server = start_server([("small", path)], options={"ctx_size": 64}, limits={"request_s": 20.0})
    yield server
    assert server.end() == 0


# A request that fits may still name a model that is not there, or a token outside the vocabulary.
POSITIVE = [(f"{route.method} {route.path}", "positive") for route in ROUTES]
NEGATIVE = [(f"{route.method} {route.path}", "negative") for route in ROUTES if route.request]


@pytest.fixture(scope="module")
def document(small: Server) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{small.url}/openapi.json").json()
    return found


@pytest.fixture(scope="module")
def operations(small: Server) -> Any:
    """What schemathesis makes of the document, by path and method; reading it costs more than a test's requests."""
    return schemathesis.openapi.from_url(f"{small.url}/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), [*POSITIVE, *NEGATIVE])
def test_the_server_keeps_to_its_document(document: dict[str, Any], operations: Any, name: str, mode: str) -> None:
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    method, path = name.split()
    operation = operations[path][method]
    fits = _fits(document, path)
    # What was meant to be wrong may be right as JSON: it is judged by the bytes that were sent.
    excluded = [positive_data_acceptance, negative_data_rejection]

    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    def check(case: Any) -> None:
        reply = case.call_and_validate(excluded_checks=excluded, timeout=60)
        if method == "POST" and reply.status_code < 300:
            assert fits(json.loads(reply.request.body))

    check()


def _fits(document: dict[str, Any], path: str) -> Callable[[Any], bool]:
    """Does a body keep to what the document says of this path?"""
    body = document["paths"][path].get("post", {}).get("requestBody")
    schema = body["content"]["application/json"]["schema"] if body else {}
    rules = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
    return lambda value: bool(rules.is_valid(value))


def test_the_document(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert "security" not in document
    refs = {ref for ref in _refs(document) if ref.startswith("#/components/schemas/")}
    assert {ref.rsplit("/", 1)[1] for ref in refs} == set(document["components"]["schemas"])
    statuses = {int(s) for path in document["paths"].values() for op in path.values() for s in op["responses"]}
    assert statuses - {200} <= {kind.status for kind in KINDS.values()}


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from _refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from _refs(item)
