"""What the runtime can say, on the wire: one table, the nearest class counts."""

from __future__ import annotations

import logging

import pytest

from assay.errors import AssayError
from assay.runtime import sequence_errors as runtime
from assay.runtime.pages import OutOfPages
from assay.serve.api_errors import CODES, KINDS, ApiError, as_api_error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (runtime.QueueFull(9, 7), 429, "rate_limit_exceeded"),
        (runtime.DeadlinePassed("too late"), 504, "deadline_exceeded"),
        (runtime.EngineFailed("320 of 320 are NaN"), 500, "internal_error"),
        (runtime.GrammarError("does not compile", "grammar"), 400, "invalid_grammar"),
        (runtime.NoGrammars("no end token", "tools"), 400, "unsupported"),
        (OutOfPages("a kind of AssayError that has no row"), 400, "invalid_value"),
        (AssayError("anything else"), 400, "invalid_value"),
    ],
)
def test_each_error_has_its_status(error: AssayError, status: int, code: str) -> None:
    told = as_api_error(error)
    assert (told.status, told.code, told.message) == (status, code, str(error))


def test_what_goes_along() -> None:
    assert as_api_error(runtime.QueueFull(9, 7)).headers == {"Retry-After": "7"}
    assert as_api_error(runtime.GrammarError("x", "response_format")).param == "response_format"
    refused = ApiError("not_found", "no such route")
    assert as_api_error(refused) is refused


def test_a_bug_says_nothing_of_the_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "assay.serve"):
        told = as_api_error(KeyError("a secret"))
    assert (told.status, told.code) == (500, "internal_error")
    assert "secret" not in told.message
    assert "a secret" in caplog.text


def test_every_error_of_the_runtime_has_a_row() -> None:
    own = [kind for kind in vars(runtime).values() if isinstance(kind, type) and kind.__module__ == runtime.__name__]
    assert set(own) <= set(CODES)
    assert set(CODES.values()) <= set(KINDS)
