"""Errors in OpenAI's form: an HTTP status, and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from assay.errors import AssayError
from assay.runtime.sequence_errors import (
    CompilersBusy,
    DeadlinePassed,
    EngineFailed,
    GrammarError,
    NoGrammars,
    NoLogits,
    NoShift,
    QueueFull,
)

log = logging.getLogger("assay.serve")


@dataclass(frozen=True)
class ErrorKind:
    """One error code: its HTTP status, OpenAI's type, and its meaning."""

    status: int
    type: str
    meaning: str


# Every code that a client can receive. The documentation is generated from this table.
KINDS: dict[str, ErrorKind] = {
    "invalid_json": ErrorKind(400, "invalid_request_error", "the body is not JSON"),
    "invalid_value": ErrorKind(400, "invalid_request_error", "a field has an invalid value; `param` names the field"),
    "context_length_exceeded": ErrorKind(400, "invalid_request_error", "the prompt is longer than the context"),
    "invalid_grammar": ErrorKind(
        400, "invalid_request_error", "a schema or grammar does not compile in time, or a token of it takes too long"
    ),
    "invalid_prompt": ErrorKind(400, "invalid_request_error", "the chat template rejects these messages"),
    "unsupported": ErrorKind(400, "invalid_request_error", "this model or server cannot do this"),
    "invalid_api_key": ErrorKind(401, "authentication_error", "the key is missing or wrong"),
    "forbidden_host": ErrorKind(403, "permission_error", "the Host header names another machine"),
    "not_allowed": ErrorKind(403, "permission_error", "the server does not let clients manage models"),
    "not_found": ErrorKind(404, "invalid_request_error", "no such route"),
    "model_not_found": ErrorKind(404, "invalid_request_error", "the server does not have that model"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error", "the route does not have this method"),
    "request_timeout": ErrorKind(408, "invalid_request_error", "the body did not arrive in time"),
    "body_too_large": ErrorKind(413, "invalid_request_error", "the body is too large"),
    "unsupported_media_type": ErrorKind(415, "invalid_request_error", "the body is not sent as application/json"),
    "rate_limit_exceeded": ErrorKind(429, "rate_limit_error", "the queue is full; Retry-After says when to try again"),
    "internal_error": ErrorKind(500, "server_error", "an internal error of the server"),
    "model_load_failed": ErrorKind(500, "server_error", "the model file cannot be loaded"),
    "model_not_loaded": ErrorKind(503, "server_error", "the model is being loaded or waits for memory"),
    "overloaded": ErrorKind(503, "server_error", "too many requests at once; /health is still answered"),
    "shutting_down": ErrorKind(503, "server_error", "the server is shutting down"),
    "deadline_exceeded": ErrorKind(504, "server_error", "the request passed its deadline"),
}


@dataclass(eq=False)
class ApiError(Exception):
    """An error response. Handlers and everything below them may raise it."""

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

    def anthropic_body(self) -> dict[str, Any]:
        """The body in the form of Anthropic's API, which has a type for each status."""
        kind = _ANTHROPIC.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def __str__(self) -> str:
        return self.message


_ANTHROPIC = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip

# Codes of the runtime's exceptions. The most specific class of an exception decides.
CODES: dict[type[BaseException], str] = {
    QueueFull: "rate_limit_exceeded",
    CompilersBusy: "rate_limit_exceeded",
    DeadlinePassed: "deadline_exceeded",
    EngineFailed: "internal_error",
    NoGrammars: "unsupported",
    NoLogits: "unsupported",
    NoShift: "unsupported",
    GrammarError: "invalid_grammar",
    AssayError: "invalid_value",
}


def as_api_error(error: Exception) -> ApiError:
    """The error response of an exception. An internal error is logged and exposes no details."""
    if isinstance(error, ApiError):
        return error
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None:
        log.error("a request failed", exc_info=error)
        return ApiError("internal_error", "the server failed; see its log")
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QueueFull | CompilersBusy) else {}
    return ApiError(code, str(error), error.param if isinstance(error, GrammarError) else None, headers)
