"""Errors of sequences. They know no protocol; a server maps them to HTTP statuses in one table."""

from __future__ import annotations

from assay.errors import AssayError


class QueueFull(AssayError):
    """The queue has no room for another sequence now."""

    def __init__(self, live: int, retry_after: int) -> None:
        super().__init__(f"the queue is full ({live} requests running or waiting); try again later")
        self.retry_after = retry_after  # seconds


class CompilersBusy(AssayError):
    """Other grammars keep all compilers busy; this one may be right."""

    retry_after = 5  # seconds

    def __init__(self, param: str) -> None:
        super().__init__(f"{param}: other grammars keep all compilers busy; try again later")


class DeadlinePassed(AssayError):
    """The request exceeded its time limit."""


class EngineFailed(AssayError):
    """The forward pass or the draw of a token failed; the request is not at fault."""


class NoLogits(AssayError):
    """A request to generate reached an encoder, which has no logits."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: is an encoder, which embeds text and cannot generate it; use `assay embed`")


class NoShift(AssayError):
    """A context shift was asked of a model with a recurrent state."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: cannot shift its context: its recurrent state cannot be cut; leave out --context-shift"
        )


class GrammarError(AssayError):
    """A schema or a grammar does not compile; `param` is the request's field that has it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class NoGrammars(GrammarError):
    """Grammars do not work here: llguidance is missing, or the vocabulary has no end token."""
