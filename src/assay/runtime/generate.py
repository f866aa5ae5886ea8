"""Generation in the caller's own thread: prompt in, events out, a result at the end.

    generator = Generator(engine, tokenizer)
    generation = generator.generate(tokenizer.encode("Once upon a time"), GREEDY, max_tokens=32)
    for event in generation:
        print(event.text, end="")
    print(generation.result.finish_reason)

Every generation is a sequence of one scheduler, which whoever waits for an event steps: several that are under way
at once share their steps, in one thread or in many.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PagedEngine
from assay.errors import AssayError
from assay.runtime.lookahead import Lookahead
from assay.runtime.pages import Pages
from assay.runtime.params import SamplerParams
from assay.runtime.pooling import Embedding
from assay.runtime.sampler import Choice, Ranked
from assay.runtime.scheduler import RUNNING, Scheduler, deliver
from assay.runtime.sequence import ENDS, Constraint, Job, Update
from assay.text import Tokenizer

_AHEAD = 1024  # results of a batch that may wait for one before them

FINISH_REASONS = {
    **{reason: ENDS[reason] for reason in ("eos", "stop", "grammar", "length", "context")},
    "interrupted": "the user ended it",
}


@dataclass(frozen=True)
class Event:
    """One token. `text` is what may be shown now: nothing while a character or a stop string may be unfinished."""

    id: int
    text: str
    logprob: float | None = None
    top: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Where the time went. The prompt's share counts up to its last logits, without what the cache had."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed per second."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        """Tokens generated per second. The first came with the prompt, so its time is not counted, nor is it."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else 0.0


@dataclass(frozen=True, repr=False)
class Result:
    """A finished generation. `ids` include a token that ended it; `text` has neither that nor a stop string.

    Of a resumed one, `ids`, `text` and `logprobs` are what was added. `seed` is the one that was used, also where none
    was given: with it, the prompt and any part of the ids, the rest can be had again.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str  # one of FINISH_REASONS
    timing: Timing
    seed: int
    logprobs: list[Choice] | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 200 else self.text[:199] + "…"
        speed = f", {self.timing.rate:.1f}/s" if self.timing.rate else ""
        return f"<Result {shown!r}: {len(self.ids)} tokens{speed}, ended by {self.finish_reason}, seed {self.seed}>"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        found: dict[str, Any] = {
            "prompt_ids": self.prompt_ids,
            "ids": self.ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "timing": asdict(self.timing),
        }
        if self.logprobs is not None:
            found["logprobs"] = [
                {"id": c.id, "logprob": c.logprob, "top": [r._asdict() for r in c.top]} for c in self.logprobs
            ]
        return found


class Pending(Protocol):
    """Something that has a result or an error when it is over."""

    @property
    def over(self) -> bool: ...

    @property
    def result(self) -> Result: ...

    def begin(self) -> None: ...

    def cancel(self) -> None: ...


Work = TypeVar("Work", bound=Pending)


class Failed:
    """A generation that could not even begin."""

    over = True

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def result(self) -> Result:
        raise self._error

    def begin(self) -> None: ...

    def cancel(self) -> None: ...


class Generator:
    """One engine, one tokenizer, one cache: generations one after the other or together, prefixes reused."""

    def __init__(
        self,
        engine: PagedEngine,
        tokenizer: Tokenizer,
        *,
        n_ctx: int | None = None,
        chunk: int = 512,
        running: int = RUNNING,
        lookahead: Lookahead | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.scheduler = Scheduler(engine, tokenizer, n_ctx=n_ctx, running=running, chunk=chunk, lookahead=lookahead)
        self.n_ctx = self.scheduler.n_ctx
        self.lock = threading.RLock()  # of the scheduler, its pages and the engine

    @property
    def pages(self) -> Pages:
        return self.scheduler.pages

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplerParams | None = None,
        *,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        ignore_eos: bool = False,
        constraint: Callable[[], Constraint] | None = None,
        answered: Sequence[int] = (),
    ) -> Generation:
        """Prepare a generation; it runs as it is iterated. `max_tokens` -1 is as many as the context takes.

        `answered` are ids of the answer that came before, from the same prompt, settings and seed: the generation
        goes on exactly as that one would have.
        """
        job = Job(
            self.checked(prompt_ids, answered),
            params or SamplerParams(),
            None if max_tokens < 0 else max_tokens,
            tuple(stop),
            logprobs,
            constraint=constraint,
            ignore_eos=ignore_eos,
            answered=tuple(int(token) for token in answered),
        )
        return Generation(self, job)

    def probe(self, prompt_ids: Sequence[int], node: str) -> Generation:
        """Prepare to keep one node of a prompt, a row for every token; nothing is generated."""
        return Generation(self, Job(self.checked(prompt_ids), keep=(node,)))

    def embed(self, prompt_ids: Sequence[int], how: Embedding) -> Generation:
        """Prepare to embed a text; `vector` is there when it has ended."""
        return Generation(self, Job(self.checked(prompt_ids), keep=(how.node,), pooling=how.pooling))

    def checked(self, prompt_ids: Sequence[int], answered: Sequence[int] = ()) -> tuple[int, ...]:
        """The prompt's ids, if the model can take them."""
        ids = tuple(int(token) for token in prompt_ids)
        n_vocab = self.engine.model.hparams.n_vocab
        total = len(ids) + len(answered)
        if not ids:
            raise AssayError("prompt: has no tokens; give some text (this model adds no BOS token to an empty one)")
        if wrong := [token for token in (*ids, *answered) if not 0 <= token < n_vocab]:
            raise AssayError(f"prompt: token {wrong[0]} is not in the vocabulary of {n_vocab}")
        if total > self.n_ctx:
            trained = self.engine.model.hparams.n_ctx_train
            raise AssayError(
                f"prompt: {total} tokens do not fit the context of {self.n_ctx}; shorten it by "
                f"{total - self.n_ctx}, or use a larger --ctx-size (the model was trained on {trained})"
            )
        return ids

    def together(self, generations: Iterable[Work]) -> Iterator[Work]:
        """Run them all, sharing steps; each is given when it and those before it have ended, or failed.

        They are taken from the iterable as room for them comes, so it may be long.
        """
        source = iter(generations)
        begun: deque[Work] = deque()
        try:
            while True:
                while len(begun) < _AHEAD and len(self.scheduler.waiting) < self.scheduler.most:
                    generation = next(source, None)
                    if generation is None:
                        break
                    begun.append(generation)
                    generation.begin()
                if not begun:
                    return
                if begun[0].over:
                    yield begun.popleft()
                else:
                    self.step()
        finally:
            for generation in begun:
                generation.cancel()

    @contextmanager
    def exclusive(self) -> Iterator[PagedEngine]:
        """The engine for something else than generating. The cache is empty then, and afterwards."""
        with self.lock:
            if self.scheduler.running or self.scheduler.waiting:
                raise AssayError("model: a generation is under way; let it end first")
            self.pages.clear()
            yield self.engine

    def step(self) -> None:
        """Compute once, for everybody."""
        with self.lock:
            deliver(self.scheduler.step())

    def tell(self) -> None:
        """What there is to tell, without computing."""
        with self.lock:
            deliver(self.scheduler.news())


class Generation:
    """A generation on its way. Iterate it once for its events; `result` is there at the end, unless that is an error.

    `interrupt` ends it after the step that is under way, from a signal handler or another thread. A
    KeyboardInterrupt while the engine computes ends it too: what has been shown is kept either way.
    """

    def __init__(self, generator: Generator, job: Job) -> None:
        self._generator = generator
        self._sequence = generator.scheduler.make(job, self._sink)
        self._news: deque[Update] = deque()
        self._started = False
        self._stop_requested = False
        self._choices: list[Choice] = []
        self._text: list[str] = []
        self._finish: str | None = None
        self._error: Exception | None = None
        self.prompt_ids = list(job.ids)
        self.seed = self._sequence.seed

    def interrupt(self) -> None:
        self._stop_requested = True

    @property
    def computing(self) -> bool:
        """Whether the engine is at work this moment."""
        return self._generator.scheduler.computing

    @property
    def ended(self) -> bool:
        return self._finish is not None

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self.ended or self._error is not None

    @property
    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        if self._finish is None:
            raise RuntimeError("the generation has not ended: iterate it first")
        sequence, times = self._sequence, self._sequence.times
        done = len(self._choices)
        return Result(
            prompt_ids=self.prompt_ids,
            ids=[choice.id for choice in self._choices],
            text="".join(self._text),
            finish_reason=self._finish,
            timing=Timing(
                prompt_tokens=len(sequence.ids) - done,
                cached_tokens=sequence.cached,
                prompt_seconds=(times.prompted or times.admitted) - times.admitted,
                tokens=done,
                seconds=times.last - times.prompted,
            ),
            seed=self.seed,
            logprobs=self._choices if sequence.job.logprobs is not None else None,
        )

    @property
    def nodes(self) -> dict[str, list[Any]]:
        """What a probe has kept, chunk by chunk."""
        return self._sequence.nodes

    def vector(self, dimensions: int | None = None) -> NDArray[np.float32]:
        """What the text that was embedded has become."""
        pool = self._sequence.pool
        assert pool is not None
        return pool.vector(dimensions)

    def run(self) -> Result:
        """To the end, without looking."""
        for _ in self:
            pass
        return self.result

    def begin(self) -> None:
        """Join the queue; whoever steps the generator computes it."""
        if self._started:
            raise RuntimeError("a generation can be iterated once")
        self._started = True
        with self._generator.lock:
            self._generator.scheduler.add([self._sequence])

    def cancel(self) -> None:
        """Let go of what it holds. It ends as interrupted, if it had not ended."""
        with self._generator.lock:
            self._generator.scheduler.cancel([self._sequence])
            self._generator.tell()

    def __iter__(self) -> Iterator[Event]:
        self.begin()
        try:
            while not self.over or self._news:
                while self._news:
                    choice, text = (update := self._news.popleft()).choice, update.text
                    if choice is not None:
                        yield Event(choice.id, text, choice.logprob, choice.top)
                if not self.over:
                    self._step()
        finally:
            if not self.over:  # the reader has had enough
                self.cancel()
        if self._error is not None:
            raise self._error

    def _step(self) -> None:
        if self._stop_requested:
            self.cancel()
            return
        try:
            self._generator.step()
        except KeyboardInterrupt:
            self.cancel()

    def _sink(self, update: Update) -> None:
        if update.choice is not None:
            self._choices.append(update.choice)
        self._text.append(update.text)
        self._news.append(update)
        if update.error is not None:
            self._error = update.error
        elif update.finish:
            self._finish = "interrupted" if update.finish == "cancelled" else update.finish
