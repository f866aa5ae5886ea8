"""Generation in the caller's own thread: prompt in, events out, a result at the end.

    generator = Generator(engine, tokenizer)
    generation = generator.generate(tokenizer.encode("Once upon a time"), GREEDY, max_tokens=32)
    for event in generation:
        print(event.text, end="")
    print(generation.result.finish_reason)

Every generation is a sequence of one scheduler. The caller who waits for an event steps the scheduler. Generations that
run at once share their steps, whether one thread iterates them or several.
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
from assay.runtime.cache_folder import CacheFolder
from assay.runtime.image_places import Images, without_rows
from assay.runtime.pages import Pages
from assay.runtime.params import SamplerParams
from assay.runtime.pooling import EmbeddingRecipe
from assay.runtime.sampler import Choice, Ranked
from assay.runtime.scheduler import RUNNING, Scheduler, deliver
from assay.runtime.sequence import ENDS, Constraint, Job, Update
from assay.runtime.speculation import Speculator
from assay.text import Tokenizer

_MAX_PENDING = 1024  # finished results of a batch that may wait for an unfinished one before them

FINISH_REASONS = {
    **{reason: ENDS[reason] for reason in ("eos", "stop", "grammar", "length", "context")},
    "interrupted": "the user interrupted it",
}


@dataclass(frozen=True)
class Event:
    """One token. `text` can be shown now; it is empty while a character or a stop string may be incomplete."""

    id: int
    text: str
    logprob: float | None = None
    top: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Timing:
    """Tokens and seconds of a generation. `prompt_seconds` ends with the last logits of the prompt; cached tokens cost
    none."""

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
        """Tokens generated per second. The first token is not counted: its logits are part of the prompt's time."""
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else 0.0


@dataclass(frozen=True, repr=False)
class Result:
    """A finished generation. `ids` include the token that ended it; `text` contains neither that nor a stop string.

    If the generation was resumed, `ids`, `text` and `logprobs` have only what was added. `seed` is the one that was
    used, even if none was given. The seed, the prompt and any part of the ids reproduce the rest.
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

    def _repr_html_(self) -> str:
        """The answer in a notebook: its text, its figures, and with `logprobs` how probable each token was."""
        from assay.runtime.generation_html import answer_html

        count = f"{len(self.ids)} token{'s' if len(self.ids) != 1 else ''}"
        speed = f", {self.timing.rate:.1f} a second" if self.timing.rate else ""
        after = f"after a prompt of {self.timing.prompt_tokens}; ended by {self.finish_reason}; seed {self.seed}"
        return answer_html(self.text, f"{count}{speed}, {after}", [(c.id, c.logprob) for c in self.logprobs or ()])

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
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
    """Work that has a result or an error when it is over."""

    @property
    def over(self) -> bool: ...

    @property
    def result(self) -> Result: ...

    def begin(self) -> None: ...

    def cancel(self) -> None: ...


Work = TypeVar("Work", bound=Pending)


class Failed:
    """Stands for a generation whose arguments were refused."""

    over = True

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def result(self) -> Result:
        raise self._error

    def begin(self) -> None: ...

    def cancel(self) -> None: ...


class Generator:
    """Generations on one engine with one cache, in turn or together. Prefixes are reused."""

    def __init__(
        self,
        engine: PagedEngine,
        tokenizer: Tokenizer,
        *,
        n_ctx: int | None = None,
        chunk: int = 512,
        running: int = RUNNING,
        speculator: Speculator | None = None,
        folder: CacheFolder | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.scheduler = Scheduler(
            engine, tokenizer, n_ctx=n_ctx, running=running, chunk=chunk, speculator=speculator, folder=folder
        )
        self.n_ctx = self.scheduler.n_ctx
        self.lock = threading.RLock()  # protects the scheduler, its pages and the engine

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
        images: Images = (),
    ) -> Generation:
        """Prepare a generation; it runs while it is iterated. `max_tokens` -1 generates until the context is full.

        `answered` are ids of an answer that was begun with the same prompt, settings and seed. The generation
        continues exactly as that one would have. `images` are the pictures of the prompt (`image_places.py`).
        """
        job = Job(
            self.checked(prompt_ids, answered, images),
            params or SamplerParams(),
            None if max_tokens < 0 else max_tokens,
            tuple(stop),
            logprobs,
            constraint=constraint,
            ignore_eos=ignore_eos,
            answered=tuple(int(token) for token in answered),
            images=images,
        )
        return Generation(self, job)

    def probe(self, prompt_ids: Sequence[int], node: str, images: Images = ()) -> Generation:
        """Prepare to keep one node of a prompt, a row for every token; nothing is generated."""
        return Generation(self, Job(self.checked(prompt_ids, images=images), keep=(node,), images=images))

    def embed(self, prompt_ids: Sequence[int], recipe: EmbeddingRecipe) -> Generation:
        """Prepare to embed a text; `vector` has the result when it has ended."""
        return Generation(self, Job(self.checked(prompt_ids), keep=(recipe.node,), pooling=recipe.pooling))

    def checked(self, prompt_ids: Sequence[int], answered: Sequence[int] = (), images: Images = ()) -> tuple[int, ...]:
        """The prompt's ids, or an error if the model cannot take them."""
        ids = tuple(int(token) for token in prompt_ids)
        n_vocab = self.engine.model.hparams.n_vocab
        total = len(ids) + len(answered)
        if not ids:
            raise AssayError("prompt: has no tokens; give some text (this model adds no BOS token to an empty one)")
        if wrong := [token for token in (*without_rows(ids, images), *answered) if not 0 <= token < n_vocab]:
            raise AssayError(f"prompt: token {wrong[0]} is not in the vocabulary of {n_vocab}")
        if total > self.n_ctx:
            trained = self.engine.model.hparams.n_ctx_train
            raise AssayError(
                f"prompt: {total} tokens do not fit the context of {self.n_ctx}; shorten it by "
                f"{total - self.n_ctx}, or use a larger --ctx-size (the model was trained on {trained})"
            )
        return ids

    def together(self, generations: Iterable[Work]) -> Iterator[Work]:
        """Run generations in shared steps; each is yielded when it and all before it have ended or failed.

        They are taken from the iterable as places become free, so it may be long.
        """
        source = iter(generations)
        begun: deque[Work] = deque()
        try:
            while True:
                while len(begun) < _MAX_PENDING and len(self.scheduler.waiting) < self.scheduler.max_running:
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
        """Lend the engine for other work than generation. The cache is empty during and after it."""
        with self.lock:
            if self.scheduler.running or self.scheduler.waiting:
                raise AssayError("model: a generation is running; wait until it has ended")
            self.pages.clear()
            yield self.engine

    def step(self) -> None:
        """Compute one step of all generations."""
        with self.lock:
            deliver(self.scheduler.step())

    def deliver_updates(self) -> None:
        """Deliver pending updates without computing a step."""
        with self.lock:
            deliver(self.scheduler.take_updates())


class Generation:
    """A running generation. Iterate it once for its events; afterwards `result` has the result or raises the error.

    `interrupt` ends it after the current step; a signal handler or another thread may call it. A KeyboardInterrupt
    while the engine computes ends it, too. Both keep the text so far.
    """

    def __init__(self, generator: Generator, job: Job) -> None:
        self._generator = generator
        self._sequence = generator.scheduler.make(job, self._sink)
        self._updates: deque[Update] = deque()
        self._started = False
        self._stop_requested = False
        self._choices: list[Choice] = []
        self._text: list[str] = []
        self._finish: str | None = None
        self._error: Exception | None = None
        self.prompt_ids = [max(token, -1) for token in job.ids]  # -1: a row of a picture
        self.seed = self._sequence.seed

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 200 else f"{self.text[:199]}…"
        made = f"{len(self._choices)} token{'s' if len(self._choices) != 1 else ''}"
        return f"<Generation {text!r}: {made} after {len(self.prompt_ids)}, {self.state}, seed {self.seed}>"

    def _repr_html_(self) -> str:
        """The text so far in a notebook."""
        from assay.runtime.generation_html import text_html

        return text_html(self.text, f"{len(self._choices)} tokens, {self.state}, seed {self.seed}")

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def state(self) -> str:
        """Where it is: not started, running, failed, or why it ended."""
        if self._error is not None:
            return f"failed ({self._error})"
        if self._finish is not None:
            return f"ended by {self._finish}"
        return "running" if self._started else "not started"

    def interrupt(self) -> None:
        """End it after the current step and keep the text so far."""
        self._stop_requested = True

    @property
    def computing(self) -> bool:
        """Whether the engine is computing now."""
        return self._generator.scheduler.computing

    @property
    def ended(self) -> bool:
        return self._finish is not None

    @property
    def over(self) -> bool:
        """Whether it has a result or an error."""
        return self.ended or self._error is not None

    @property
    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        if self._finish is None:
            raise RuntimeError("the generation has not ended; iterate it first")
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
        """The kept nodes of a probe, one value per chunk."""
        return self._sequence.nodes

    def vector(self, dimensions: int | None = None) -> NDArray[np.float32]:
        """The embedding of the text."""
        pool = self._sequence.pool
        assert pool is not None
        return pool.vector(dimensions)

    def run(self) -> Result:
        """Run to the end and return the result."""
        for _ in self:
            pass
        return self.result

    def begin(self) -> None:
        """Join the queue. The caller who steps the generator computes it."""
        if self._started:
            raise RuntimeError("a generation can be iterated once")
        self._started = True
        with self._generator.lock:
            self._generator.scheduler.add([self._sequence])

    def cancel(self) -> None:
        """Free its pages. If it had not ended, it ends as interrupted."""
        with self._generator.lock:
            self._generator.scheduler.cancel([self._sequence])
            self._generator.deliver_updates()

    def __iter__(self) -> Iterator[Event]:
        self.begin()
        try:
            while not self.over or self._updates:
                while self._updates:
                    choice, text = (update := self._updates.popleft()).choice, update.text
                    if choice is not None:
                        yield Event(choice.id, text, choice.logprob, choice.top)
                if not self.over:
                    self._step()
        finally:
            if not self.over:  # the caller stopped iterating
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
        self._updates.append(update)
        if update.error is not None:
            self._error = update.error
        elif update.finish:
            self._finish = "interrupted" if update.finish == "cancelled" else update.finish
