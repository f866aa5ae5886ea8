"""Errors as OpenAI's clients expect them: a status, and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from assay.errors import AssayError
from assay.runtime.sequence_errors import DeadlinePassed, EngineFailed, GrammarError, NoGrammars, NoLogits, QueueFull

log = logging.getLogger("assay.serve")


@dataclass(frozen=True)
class ErrorKind:
    """One row of the table: what a code means on the wire."""

    status: int
    type: str
    meaning: str


# Every code a client can meet. The table is part of the documentation.
KINDS: dict[str, ErrorKind] = {
    "invalid_json": ErrorKind(400, "invalid_request_error", "the body is not JSON"),
    "invalid_value": ErrorKind(400, "invalid_request_error", "a field has an invalid value; `param` names the field"),
    "context_length_exceeded": ErrorKind(400, "invalid_request_error", "the prompt is longer than the context"),
    "invalid_grammar": ErrorKind(400, "invalid_request_error", "a schema or grammar does not compile in time"),
    "invalid_prompt": ErrorKind(400, "invalid_request_error", "the chat template does not take these messages"),
    "unsupported": ErrorKind(400, "invalid_request_error", "this model or server cannot do what is asked"),
    "invalid_api_key": ErrorKind(401, "authentication_error", "no key, or another than the server's"),
    "forbidden_host": ErrorKind(403, "permission_error", "the Host header names another machine"),
    "not_found": ErrorKind(404, "invalid_request_error", "no such route"),
    "model_not_found": ErrorKind(404, "invalid_request_error", "the server does not have that model"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error", "the route has other methods"),
    "request_timeout": ErrorKind(408, "invalid_request_error", "the body did not arrive in time"),
    "body_too_large": ErrorKind(413, "invalid_request_error", "the body is larger than the server takes"),
    "unsupported_media_type": ErrorKind(415, "invalid_request_error", "the body is not sent as application/json"),
    "rate_limit_exceeded": ErrorKind(429, "rate_limit_error", "the queue is full; Retry-After says when to come back"),
    "internal_error": ErrorKind(500, "server_error", "a fault of the server's"),
    "model_load_failed": ErrorKind(500, "server_error", "the model's file cannot be loaded"),
    "model_not_loaded": ErrorKind(503, "server_error", "the model is being loaded, or waits for memory"),
    "overloaded": ErrorKind(503, "server_error", "too many requests at once; /health is still answered"),
    "shutting_down": ErrorKind(503, "server_error", "the server is ending"),
    "deadline_exceeded": ErrorKind(504, "server_error", "the request took longer than it may"),
}


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error. Raised anywhere on the way to one."""

    code: str
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return KINDS[self.code].status

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": KINDS[self.code].type,
                "param": self.param,
                "code": self.code,
            }
        }

    def __str__(self) -> str:
        return self.message


# The runtime's errors on the wire; of an error's classes the nearest counts.
CODES: dict[type[BaseException], str] = {
    QueueFull: "rate_limit_exceeded",
    DeadlinePassed: "deadline_exceeded",
    EngineFailed: "internal_error",
    NoGrammars: "unsupported",
    NoLogits: "unsupported",
    GrammarError: "invalid_grammar",
    AssayError: "invalid_value",
}


def as_api_error(error: Exception) -> ApiError:
    """What a client is told. A fault of ours is logged, and says nothing of the inside."""
    if isinstance(error, ApiError):
        return error
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None:
        log.error("a request failed", exc_info=error)
        return ApiError("internal_error", "the server failed; its log says why")
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QueueFull) else {}
    return ApiError(code, str(error), error.param if isinstance(error, GrammarError) else None, headers)
