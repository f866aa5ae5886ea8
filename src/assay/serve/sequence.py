"""One sequence on its way through the scheduler: what was asked, how far it came, what it tells its owner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from assay.engines.base import Array
from assay.runtime.pages import Lease
from assay.runtime.sampler import Choice, SamplerParams, make_rng
from assay.runtime.stops import StopStrings
from assay.serve.errors import ApiError
from assay.text import Tokenizer


class Constraint(Protocol):
    """What the next token may be. One object for one sequence."""

    def mask(self, logits: Array) -> Array:
        """The logits with -inf where a token is not allowed."""
        ...

    def accept(self, token: int) -> None: ...

    @property
    def complete(self) -> bool:
        """Whether nothing may follow."""
        ...


@dataclass(frozen=True)
class Job:
    """What is asked for. `keep` makes it a probe: nodes are kept and nothing is generated."""

    ids: tuple[int, ...]
    params: SamplerParams = SamplerParams(temp=0.0)  # noqa: RUF009  # frozen
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    keep: tuple[str, ...] = ()
    constraint: Callable[[], Constraint] | None = None
    show_special: bool = False
    ignore_eos: bool = False
    deadline: float = math.inf  # of time.monotonic()


@dataclass(frozen=True)
class Update:
    """One token, or the end, or both. `text` is what may be shown now."""

    choice: Choice | None = None
    text: str = ""
    finish: str | None = None  # stop, length, cancelled, error
    error: ApiError | None = None


Sink = Callable[[Update], None]


@dataclass
class Times:
    """Moments of time.monotonic(); 0 where it has not come to that."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    first: float = 0.0
    last: float = 0.0


class Sequence:
    """The scheduler's own. `ids` are prompt and answer; those behind `lease.length` are still to be computed.

    A sequence that decodes has one such token, one that is prefilled has many, one that was preempted has all:
    there is no other difference between the three.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, sink: Sink) -> None:
        self.job = job
        self.sink = sink
        self.ids = list(job.ids)
        self.n_prompt = len(job.ids)
        self.lease: Lease | None = None
        self.rng = make_rng(job.params)
        self.detokenizer = tokenizer.detokenizer(special=job.show_special)
        self.stops = StopStrings(job.stop)
        self.constraint = job.constraint() if job.constraint else None
        self.prompt_choices: list[Choice] = []  # of prompt tokens 1, 2, …, when asked for
        self.nodes: dict[str, list[Array]] = {}
        self.cached = 0  # prompt tokens that the cache had
        self.preempted = 0
        self.cancelled = False
        self.finished = False
        self.times = Times()

    @property
    def computed(self) -> int:
        return self.lease.length if self.lease else 0

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed

    @property
    def generated(self) -> int:
        return len(self.ids) - self.n_prompt

    def part(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The next n tokens to compute."""
        return np.array(self.ids[self.computed : self.computed + n], dtype=np.int32)

    def outputs(self, n: int) -> str:
        """Which rows of logits a chunk of n tokens must give."""
        if self.job.prompt_logprobs is not None and self.computed < self.n_prompt:
            return "all"
        return "last" if n == self.pending and self.job.max_tokens > 0 else "none"
