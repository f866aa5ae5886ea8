"""What can happen to a sequence, as errors of its own: no protocol is known here. A server has one table for them."""

from __future__ import annotations

from assay.errors import AssayError


class QueueFull(AssayError):
    """There is no room for another sequence now."""

    def __init__(self, live: int, retry_after: int) -> None:
        super().__init__(f"the queue is full ({live} requests running or waiting); try again later")
        self.retry_after = retry_after  # seconds


class DeadlinePassed(AssayError):
    """It took longer than it may."""


class EngineFailed(AssayError):
    """The forward pass or the draw of a token broke: not the request's fault."""


class NoLogits(AssayError):
    """An encoder is asked to generate."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: an encoder, which embeds texts and generates none; use `assay embed`")


class GrammarError(AssayError):
    """A schema or a grammar that does not compile; `param` is the argument that it came in."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class NoGrammars(GrammarError):
    """This vocabulary cannot be constrained."""
