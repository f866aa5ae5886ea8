"""One sequence: the job, its progress, and the step from a row of logits to the next token.

Sampling, the end of an answer, stop strings, length limits, log-probabilities and grammars are decided here and nowhere
else. Code that steps the scheduler (a loop, a server, a batch) receives `Update`s.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from assay.engines.contract import Array, PictureRows, TopK
from assay.errors import AssayError
from assay.runtime.context_shift import ContextShift
from assay.runtime.draws import Draws, fresh_seed
from assay.runtime.image_places import Images, only_tokens, prompt_part, rows_in_chunk
from assay.runtime.ngram_draft import NgramDraft
from assay.runtime.pages import Lease
from assay.runtime.params import GREEDY, SamplerParams
from assay.runtime.pooling import RowPooler
from assay.runtime.prefix_keys import answer_keys
from assay.runtime.receipts import row_digest
from assay.runtime.sampler import Choice, argmax_of_top, sample, sample_from_top, scores, top_k_needed
from assay.runtime.stops import StopStrings
from assay.runtime.thinking_budget import BudgetWatch, ThinkingBudget
from assay.text import Tokenizer

ENDS = {
    "eos": "the model ended its answer",
    "stop": "a stop string was generated",
    "grammar": "the grammar allows no further token",
    "length": "the requested number of tokens was reached",
    "context": "the context is full",
    "cancelled": "the client cancelled the rest",
    "error": "an error ended it",
}


class Constraint(Protocol):
    """Restricts the next token of one sequence, for example to a grammar. It is computed elsewhere meanwhile."""

    def start(self, tokens: Iterable[int] = ()) -> None:
        """Begin with tokens that were drawn before. A second call has no effect."""
        ...

    def masked(self) -> bool:
        """True if the mask of the next token is here."""
        ...

    def mask(self, logits: Array) -> Array:
        """A copy of the logits with -inf for every token that is not allowed."""
        ...

    def accept(self, token: int) -> None:
        """Advance past a token that was drawn."""
        ...

    def settled(self) -> bool:
        """True if the last token was accepted: `complete` is known."""
        ...

    @property
    def complete(self) -> bool:
        """True if no further token is allowed."""
        ...

    def fileno(self) -> int:
        """A file that is readable when `masked` or `settled` may have changed."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True)
class Job:
    """A request for one sequence.

    With `keep` it is a probe: the named nodes are kept, and nothing is generated. With `pooling`, only the pooled rows
    of the kept node are stored (`pooling.py`).
    `answered` are tokens of the answer that another process drew before; generation continues after them.
    """

    ids: tuple[int, ...]
    params: SamplerParams = GREEDY
    max_tokens: int | None = 0  # of the whole answer; None: until the context is full
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    keep: tuple[str, ...] = ()
    pooling: str | None = None
    constraint: Callable[[], Constraint] | None = None
    show_special: bool = False
    ignore_eos: bool = False
    deadline: float = math.inf  # on the clock of time.monotonic()
    answered: tuple[int, ...] = ()
    owner: tuple[str, str] = ("", "")  # client and request, for fair shares
    thinking: ThinkingBudget | None = None  # ends reasoning that takes too long
    receipt: bool = False  # hash the logits of every token that is drawn (`receipts.py`)
    adapters: tuple[tuple[int, float], ...] | None = None  # number and scale of each; None: as the engine was opened
    shift: ContextShift | None = None  # go on when the context is full; None: end there
    second: int = 0  # place of the second text of a pair in `ids`, which BERT gives token type 1; 0: there is one text
    images: Images = ()  # the pictures of the prompt; `ids` has negative numbers at their rows (`image_places.py`)


class Update(NamedTuple):
    """One token, or the end of the answer, or both. `text` can be shown to the user now."""

    choice: Choice | None = None
    text: str = ""
    finish: str | None = None  # one of ENDS
    error: Exception | None = None


Sink = Callable[[Update], None]


@dataclass
class Times:
    """Times on the clock of time.monotonic(); 0 until the event happens."""

    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    prompted: float = 0.0  # the last logits of the prompt were computed
    first: float = 0.0
    last: float = 0.0


class Progress:
    """A job and its progress: everything a reader of the answer sees, wherever it is computed."""

    def __init__(self, job: Job, sink: Sink) -> None:
        self.job = job
        self.sink = sink
        self.seed = job.params.seed if job.params.seed is not None else fresh_seed()
        self.ids = list(job.ids)  # prompt and answer, without the tokens that a context shift dropped
        self.dropped = 0  # by context shifts
        self.n_prompt = len(job.ids)
        self.prompt_choices: list[Choice] = []  # of prompt tokens 1, 2, …, if they were requested
        self.nodes: dict[str, list[Array]] = {}
        self.pool = RowPooler(job.pooling) if job.pooling else None
        self.cached = 0  # prompt tokens found in the prefix cache
        self.finished = False
        self.stop_string: str | None = None  # that ended the answer, where this process computes it
        self.times = Times()
        self.hashed_on_device = False  # whether the engine hashes rows for a receipt
        self.row_digests: list[bytes] = []  # of the tokens of the answer, if the job asks for a receipt

    @property
    def generated(self) -> int:
        return len(self.ids) + self.dropped - self.n_prompt


class Sequence(Progress):
    """A sequence that this process computes. The tokens of `ids` from index `lease.length` on are still to be computed.

    A decoding sequence has one such token, a prefilling one has many, and a preempted or resumed one has all. The
    scheduler makes no other difference between these states.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, n_ctx: int, sink: Sink) -> None:
        super().__init__(job, sink)
        self.lease: Lease | None = None
        self.preempted = 0
        self.adapters: tuple[tuple[int, float], ...] = ()  # those that are applied, without scales of 0
        self.salt = b""  # of its prefix: what beside its tokens its cache depends on
        self.m_rope = False  # positions have several numbers, and differ from the slots after a picture
        self.answer_from = sys.maxsize  # the index from which tokens have the keys of an answer (`prefix_keys.py`)
        self.restoring = False  # waits for pages of its prompt that are on disk (`prefix_store.py`)
        self.ngrams = NgramDraft()
        self.draft: list[int] = []  # drafted tokens that this step verifies
        self.run_tokens = 0  # tokens after the next one that a decode run of this step may generate
        self._n_ctx = n_ctx
        self._eog = frozenset() if job.ignore_eos else tokenizer.eog
        self._detokenizer = tokenizer.detokenizer(special=job.show_special)
        self._stops = StopStrings(job.stop)
        self.constraint = job.constraint() if job.constraint else None
        self.late = 0  # draws for which the scheduler does not wait for the constraint, because it was late before
        self.undrawn: Array | None = None  # a row of logits that waits for the constraint's mask
        self._unsettled: Choice | None = None  # a drawn token that waits for the constraint to take it
        self._thinking = BudgetWatch(job.thinking, tokenizer) if job.thinking else None
        self._top_k = top_k_needed(job.params)
        longest = n_ctx + 1 if job.max_tokens is None else min(n_ctx + 1, self.n_prompt + job.max_tokens)
        others = job.stop or self.constraint or job.shift
        self._only_eos_below = 0 if others else longest  # with fewer ids, only EOS can end it
        self.ended_before: tuple[str, str] | None = None  # last text and reason, if the given answer is complete
        self._resumed_text = ""  # of the last token of the given answer
        for i, token in enumerate(job.answered):
            self.ids.append(token)
            if self._thinking:
                self._thinking.push(token)
            text, finish = self._text_of(token)
            if finish and i + 1 < len(job.answered):
                raise AssayError(
                    f"resume: the answer ends at its token {i} ({ENDS[finish]}); leave out the tokens after it"
                )
            self.ended_before = (text, finish) if finish else None
            self._resumed_text = text
            if self.full and not finish:
                self.shift()

    @property
    def computed(self) -> int:
        return self.lease.length if self.lease else 0

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed

    def keys(self, start: int = 0, end: int | None = None) -> list[int]:
        """The prefix keys of its tokens from `start` on."""
        ids, cut = self.ids[start:end], max(self.answer_from - start, 0)
        return ids if cut >= len(ids) else ids[:cut] + answer_keys(ids[cut:])

    @cached_property
    def prompt_part(self) -> int:
        """How many tokens have the arithmetic of a prompt: not its last one, and none of a probe."""
        return 0 if self.job.keep else prompt_part(self.job.images, self.n_prompt)

    def prompt_among(self, n: int) -> int:
        """How many of the next n tokens have the arithmetic of a prompt."""
        return max(0, min(self.prompt_part - self.computed, n))

    def next_tokens(self, n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The next n tokens to compute, drafted ones included."""
        ids = (self.ids[self.computed :] + self.draft)[:n]
        return np.array([max(token, 0) for token in ids] if self.job.images else ids, dtype=np.int32)

    def next_pictures(self, n: int) -> PictureRows | None:
        """Pictures of the prompt in a chunk of the next n tokens."""
        return rows_in_chunk(self.job.images, self.computed, n, self.m_rope) if self.job.images else None

    def outputs_for(self, n: int) -> str:
        """The output rows that a chunk of the next n tokens must return."""
        if self.job.prompt_logprobs is not None and self.computed < self.n_prompt:
            return "all"
        if self.draft:
            return "all"
        return "last" if n == self.pending and self.job.max_tokens != 0 else "none"

    @property
    def top_k(self) -> int:
        """How many of the largest logits of a row suffice to draw the next token; 0 if the whole row is needed.

        With 1 the engine may draw further tokens itself, which it cannot if some of them are not drawn.
        """
        scored = self.job.logprobs is not None or self.job.prompt_logprobs is not None
        if scored or self.constraint or self.draft or (self.job.receipt and not self.hashed_on_device):
            return 0
        return max(self._top_k, 2) if self._thinking and self._top_k else self._top_k

    @property
    def max_further(self) -> int:
        """How many tokens may follow the next one, at most."""
        left = self._n_ctx - len(self.ids)
        return left if self.job.max_tokens is None else min(left, self.job.max_tokens - self.generated - 1)

    @property
    def full(self) -> bool:
        """True if the last token has no position in the context."""
        return len(self.ids) > self._n_ctx

    def shift(self) -> None:
        """Drop the oldest tokens of a full context. Nothing of the rest is computed then (`context_shift.py`)."""
        assert self.job.shift and self.lease is None
        start, end = self.job.shift.dropped(self.n_prompt, self._n_ctx)
        del self.ids[start:end]
        self.dropped += end - start
        self.ngrams = NgramDraft()

    def collect(self, nodes: Mapping[str, Array]) -> None:
        """Store or pool the kept nodes of a chunk."""
        for name, value in nodes.items():
            if self.pool:
                self.pool.push(value)
            else:
                self.nodes.setdefault(name, []).append(value)

    def discard_kept(self) -> None:
        """Drop what was kept of the prompt. The pages are gone, so the prompt will be computed again."""
        self.prompt_choices.clear()
        self.nodes.clear()
        if self.pool:
            self.pool.clear()

    def draw(self, logits: Array | TopK) -> Update | None:
        """Draw the next token. The result depends only on the logits, the tokens so far and the seed.

        With a constraint, the update comes from `settle`: the constraint decides whether the answer ends.
        """
        job, constraint = self.job, self.constraint
        self.times.prompted = self.times.prompted or time.monotonic()
        written = self._thinking.forced() if self._thinking else None
        if written is not None:
            scored = None if isinstance(logits, TopK) or job.logprobs is None else logits
            choice = Choice(written) if scored is None else scores(scored, written, job.logprobs or 0)
        elif isinstance(logits, TopK) and self._top_k == 1:
            choice = Choice(argmax_of_top(logits))
        elif isinstance(logits, TopK):
            choice = Choice(sample_from_top(logits, job.params, Draws(self.seed, len(self.ids) + self.dropped)))
        else:
            numbers = Draws(self.seed, len(self.ids) + self.dropped)
            allowed = constraint.mask(logits) if constraint else logits
            history = only_tokens(self.ids) if job.images else self.ids
            choice = sample(allowed, history, job.params, numbers)
            if job.logprobs is not None:
                choice = scores(logits, choice.id, job.logprobs)
        token = choice.id
        self.ids.append(token)
        if self._thinking:
            self._thinking.push(token)
        if job.receipt:
            digest = logits.digest if isinstance(logits, TopK) else row_digest(logits)
            assert digest, "an engine that hashes rows returned none"
            self.row_digests.append(digest)
        if constraint:
            constraint.accept(token)
            self._unsettled = choice
            return None
        text, finish = self._text_of(token)
        return Update(choice, text, finish)

    # --- the constraint, which may take its time

    def start_constraint(self) -> None:
        """Let the constraint compute its first mask, while the prompt is computed."""
        if self.constraint:
            self.constraint.start(self.job.answered)

    @property
    def blocked(self) -> bool:
        """True while a row or a token waits for the constraint. The sequence takes part in no step then."""
        return self.undrawn is not None or self._unsettled is not None

    @property
    def unsettled(self) -> bool:
        return self._unsettled is not None

    def can_draw(self) -> bool:
        """Whether a token can be drawn from the next row: no mask is awaited."""
        return self.constraint is None or self.constraint.masked()

    def has_settled(self) -> bool:
        return self.constraint is None or self.constraint.settled()

    def settle(self) -> Update | None:
        """The update of a token that waited for the constraint; None if it still waits."""
        choice = self._unsettled
        if choice is None or self.constraint is None or not self.constraint.settled():
            return None
        self._unsettled = None
        text, finish = self._text_of(choice.id)
        return Update(choice, text, finish)

    def ended_by_resume(self) -> Update | None:
        """The end of an answer that was given whole: its constraint allows no further token."""
        if self.constraint and self.constraint.complete and self.generated == len(self.job.answered):
            return Update(None, self._resumed_text + self.flush_text(), "grammar")
        return None

    def close(self) -> None:
        """Free what the constraint holds."""
        self.undrawn = self._unsettled = None
        if self.constraint:
            self.constraint.close()

    # --- text and ends

    def flush_text(self) -> str:
        """Text that was held back because it could have been part of a character or of a stop string."""
        if self._stops.found is not None:
            return ""
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()

    def _text_of(self, token: int) -> tuple[str, str | None]:
        """The last token's text to show, and the reason if the answer ends with it."""
        if len(self.ids) < self._only_eos_below and token not in self._eog:
            return self._detokenizer.push(token), None
        ended = token in self._eog
        text = self._stops.push("" if ended else self._detokenizer.push(token))
        finish = self._why_ended(ended)
        return (text + self.flush_text(), finish) if finish else (text, None)

    def _why_ended(self, ended: bool) -> str | None:
        """The reason why the answer ends after the last token; None if it continues."""
        if ended:
            return "eos"
        if self._stops.found is not None:
            self.stop_string = self._stops.found
            return "stop"
        if self.constraint and self.constraint.complete:
            return "grammar"
        if self.job.max_tokens is not None and self.generated >= self.job.max_tokens:
            return "length"
        return "context" if self.full and not self.job.shift else None
