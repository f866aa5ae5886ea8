"""The OpenAPI 3.1 document, generated from the route table and the pydantic schemas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from assay.serve.api.routes import RouteSpec
from assay.serve.api.schemas import ErrorResponse, PlainError, TypedError
from assay.serve.api_errors import KINDS
from assay.serve.http.upload import UPLOAD
from assay.version import __version__

_REF = "#/components/schemas/{model}"
_ALWAYS = ("invalid_api_key", "forbidden_host", "internal_error")
_WITH_BODY = ("invalid_value", "model_not_found", "request_timeout", "body_too_large", "unsupported_media_type",
              "rate_limit_exceeded", "overloaded")  # fmt: skip
_LOADING = ("rate_limit_exceeded", "model_not_loaded", "deadline_exceeded")


def document(routes: Sequence[RouteSpec], *, with_key: bool) -> dict[str, Any]:
    """The document at `/openapi.json`."""
    requests = {route.request for route in routes if route.request}
    responses = {route.response for route in routes if route.response} | {ErrorResponse, PlainError, TypedError}
    inputs = sorted(((model, "validation") for model in requests), key=lambda pair: pair[0].__name__)
    outputs = sorted(((model, "serialization") for model in responses), key=lambda pair: pair[0].__name__)
    where, definitions = models_json_schema([*inputs, *outputs], ref_template=_REF)  # type: ignore[list-item]
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, where)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "assay", "version": __version__, "summary": "Runs GGUF models behind OpenAI's API."},
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }
    if with_key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


def _operation(route: RouteSpec, where: Any) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "responses": {"200": {"description": "done", "content": _content(route, where)}} | _errors(route, where),
    }
    if route.request:
        schema = where[(route.request, "validation")]
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if route.uploads:
            content[UPLOAD] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": content}
    if names := re.findall(r"{(\w+)}", route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if route.path == "/health":
        operation["security"] = []
    return operation


def _content(route: RouteSpec, where: Any) -> dict[str, Any]:
    if route.path == "/metrics":
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = where[(route.response, "serialization")] if route.response else {"type": "object"}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if route.streams:
        content[route.streams] = {}  # OpenAPI has no schema for an event stream
    return content


def _errors(route: RouteSpec, where: Any) -> dict[str, Any]:
    """Every error status of a route, with its codes."""
    codes = [*_ALWAYS, *(_WITH_BODY if route.request else ()), *(_LOADING if route.loads else ())]
    if route.path == "/v1/diagnose":
        codes.append("deadline_exceeded")
    if "{" in route.path:
        codes.append("model_not_found")
    if route.path == "/ready":
        codes.append("model_not_loaded")
    shapes = {"/api/": PlainError, "/v1/messages": TypedError}
    shape = next((shapes[start] for start in shapes if route.path.startswith(start)), ErrorResponse)
    statuses = sorted({KINDS[code].status for code in codes})
    return {
        str(status): {
            "description": "; ".join(
                f"{code}: {kind.meaning}" for code, kind in KINDS.items() if kind.status == status
            ),
            "content": {"application/json": {"schema": where[(shape, "serialization")]}},
        }
        for status in statuses
    }
