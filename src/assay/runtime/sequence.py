"""One sequence: what was asked, how far it came, and what a row of logits makes of it.

Drawing, the end of an answer, stop strings, lengths, log-probabilities and grammars are decided here and nowhere
else; whoever steps the scheduler (a loop, a server, a batch) gets `Update`s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from assay.engines.contract import Array, Best
from assay.errors import AssayError
from assay.runtime.draws import Draws, fresh_seed
from assay.runtime.lookahead import Guesses
from assay.runtime.pages import Lease
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.pooling import Pool
from assay.runtime.sampler import Choice, largest_needed, sample, sample_best, scores, the_best
from assay.runtime.stops import StopStrings
from assay.text import Tokenizer

ENDS = {
    "eos": "the model ended its answer",
    "stop": "a stop string came",
    "grammar": "the grammar allows nothing more",
    "length": "the number of tokens asked for was reached",
    "context": "the context is full",
    "cancelled": "nobody wants the rest",
    "error": "it could not go on",
}


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
    """What is asked for. `keep` makes it a probe: nodes are kept and nothing is generated; with `pooling`, only what
    pooling makes of their rows (`pooling.py`).

    `answered` are tokens of the answer that were drawn before, elsewhere: the rest is what would have followed them.
    """

    ids: tuple[int, ...]
    params: SamplerParams = GREEDY
    max_tokens: int | None = 0  # of the whole answer; None: as many as the context takes
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    keep: tuple[str, ...] = ()
    pooling: str | None = None
    constraint: Callable[[], Constraint] | None = None
    show_special: bool = False
    ignore_eos: bool = False
    deadline: float = math.inf  # of time.monotonic()
    answered: tuple[int, ...] = ()
    owner: tuple[str, str] = ("", "")  # client and request: whose share of the engine it is


class Update(NamedTuple):
    """One token, or the end, or both. `text` is what may be shown now."""

    choice: Choice | None = None
    text: str = ""
    finish: str | None = None  # one of ENDS
    error: Exception | None = None


Sink = Callable[[Update], None]


@dataclass
class Times:
    """Moments of time.monotonic(); 0 where it has not come to that."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    prompted: float = 0.0  # the prompt's last logits were there
    first: float = 0.0
    last: float = 0.0


class Progress:
    """What was asked and how far it came: all that a reader of the answer sees, whoever computes it, and where."""

    def __init__(self, job: Job, sink: Sink) -> None:
        self.job = job
        self.sink = sink
        self.seed = job.params.seed if job.params.seed is not None else fresh_seed()
        self.ids = list(job.ids)  # prompt and answer
        self.n_prompt = len(job.ids)
        self.prompt_choices: list[Choice] = []  # of prompt tokens 1, 2, …, when asked for
        self.nodes: dict[str, list[Array]] = {}
        self.pool = Pool(job.pooling) if job.pooling else None
        self.cached = 0  # given tokens that the cache had
        self.finished = False
        self.times = Times()

    @property
    def generated(self) -> int:
        return len(self.ids) - self.n_prompt


class Sequence(Progress):
    """One that is computed here: of `ids`, those behind `lease.length` are still to be computed.

    A sequence that decodes has one such token, one that is prefilled has many, one that was preempted or resumed has
    all: there is no other difference between them.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, n_ctx: int, sink: Sink) -> None:
        super().__init__(job, sink)
        self.lease: Lease | None = None
        self.preempted = 0
        self.guesses = Guesses()
        self.draft: list[int] = []  # tokens that are computed in this step on trial
        self.follow = 0  # tokens behind the next that the engine draws by itself
        self._n_ctx = n_ctx
        self._eog = frozenset() if job.ignore_eos else tokenizer.eog
        self._detokenizer = tokenizer.detokenizer(special=job.show_special)
        self._stops = StopStrings(job.stop)
        self._constraint = job.constraint() if job.constraint else None
        self._needed = largest_needed(job.params)
        longest = n_ctx + 1 if job.max_tokens is None else min(n_ctx + 1, self.n_prompt + job.max_tokens)
        self._free = 0 if job.stop or self._constraint else longest  # below so many ids only the end of text ends it
        self.over: tuple[str, str] | None = None  # last text and reason, where the answer given had ended already
        for i, token in enumerate(job.answered):
            text, finish = self._take(token)
            if finish and i + 1 < len(job.answered):
                raise AssayError(f"resume: the answer ends at its token {i} ({ENDS[finish]}); leave the rest out")
            self.over = (text, finish) if finish else None

    @property
    def computed(self) -> int:
        return self.lease.length if self.lease else 0

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed

    def part(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The next n tokens to compute."""
        return np.array((self.ids[self.computed :] + self.draft)[:n], dtype=np.int32)

    def outputs(self, n: int) -> str:
        """Which rows of logits a chunk of n tokens must give."""
        if self.job.prompt_logprobs is not None and self.computed < self.n_prompt:
            return "all"
        if self.draft:
            return "all"
        return "last" if n == self.pending and self.job.max_tokens != 0 else "none"

    @property
    def best(self) -> int:
        """How many of the largest logits of the last row are all that is read of it; 0: the whole row."""
        whole = self._constraint or self.draft or self.job.logprobs is not None or self.job.prompt_logprobs is not None
        return 0 if whole else self._needed

    @property
    def room(self) -> int:
        """How many tokens may follow the next one, at most."""
        left = self._n_ctx - len(self.ids)
        return left if self.job.max_tokens is None else min(left, self.job.max_tokens - self.generated - 1)

    def keep(self, nodes: Mapping[str, Array]) -> None:
        """Take what a chunk gave of the nodes that are kept."""
        for name, value in nodes.items():
            if self.pool:
                self.pool.push(value)
            else:
                self.nodes.setdefault(name, []).append(value)

    def forget(self) -> None:
        """The pages are gone: what was kept of the prompt will come again."""
        self.prompt_choices.clear()
        self.nodes.clear()
        if self.pool:
            self.pool.clear()

    def draw(self, logits: Array | Best) -> Update:
        """The next token, its text, and whether it is the last. A function of logits, tokens so far and seed."""
        job, constraint = self.job, self._constraint
        self.times.prompted = self.times.prompted or time.monotonic()
        if isinstance(logits, Best) and self._needed == 1:
            choice = Choice(the_best(logits))
        elif isinstance(logits, Best):
            choice = Choice(sample_best(logits, job.params, Draws(self.seed, len(self.ids))))
        else:
            numbers = Draws(self.seed, len(self.ids))
            allowed = constraint.mask(logits) if constraint else logits
            choice = sample(allowed, self.ids, job.params, numbers)
            if job.logprobs is not None:
                choice = scores(logits, choice.id, job.logprobs)
        token = choice.id
        text, finish = self._take(token)
        return Update(choice, text, finish)

    def rest(self) -> str:
        """Text that was held back, for a character or a stop string that did not come to its end."""
        if self._stops.found is not None:
            return ""
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()

    def _take(self, token: int) -> tuple[str, str | None]:
        """Go past a token of the answer: its text, and why the answer ends there, if it does."""
        self.ids.append(token)
        if len(self.ids) < self._free and token not in self._eog:
            return self._detokenizer.push(token), None
        if self._constraint:
            self._constraint.accept(token)
        ended = token in self._eog
        text = self._stops.push("" if ended else self._detokenizer.push(token))
        finish = self._why_ended(ended)
        return (text + self.rest(), finish) if finish else (text, None)

    def _why_ended(self, ended: bool) -> str | None:
        if ended:
            return "eos"
        if self._stops.found is not None:
            return "stop"
        if self._constraint and self._constraint.complete:
            return "grammar"
        if self.job.max_tokens is not None and self.generated >= self.job.max_tokens:
            return "length"
        return "context" if len(self.ids) > self._n_ctx else None
