"""The models a server has: opened at the start, loaded when wanted, put out again when memory is short and they idle.

An entry's file, graph, tokenizer and template are there from the start, so a file that cannot work is refused
before the first request. What costs memory is the engine (weights and cache) and its scheduler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from assay import engines
from assay.engines.base import PAGE
from assay.engines.cache import page_bytes
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import load
from assay.runtime.params import DRY_BREAKERS, Breakers
from assay.runtime.sampler import dry_breakers
from assay.serve.errors import ApiError
from assay.serve.grammar import Grammars
from assay.serve.limits import Limits
from assay.serve.meter import Metrics
from assay.serve.scheduler import Batch, Scheduler, deliver
from assay.text import ChatTemplate, Tokenizer

DEFAULT_CTX = 8192
MIN_CACHE = 16384  # positions shared by all sequences, unless the context is larger


@dataclass(frozen=True)
class Options:
    """How every model is loaded; None leaves a choice to the engine."""

    engine: str | None = None
    precision: str | None = None
    threads: int | None = None
    kv_type: str | None = None
    ctx_size: int | None = None  # positions of one sequence; 0: all the model was trained on
    cache_size: int | None = None  # positions of all sequences together
    template: str | None = None


class Entry:
    """One model, loaded or not."""

    def __init__(self, name: str, path: Path, options: Options, limits: Limits) -> None:
        self.id = name
        self.options = options
        self.file = open_file(path)
        self.model = load(self.file)
        self.tokenizer = Tokenizer.from_gguf(self.file)
        if options.template is not None:
            self.template: ChatTemplate | None = ChatTemplate.named(options.template, self.tokenizer)
        else:
            self.template = ChatTemplate.from_gguf(self.file, self.tokenizer)
        hp = self.model.hparams
        self.grammars = Grammars(self.tokenizer, hp.n_vocab, limits)
        wanted = options.ctx_size if options.ctx_size is not None else min(hp.n_ctx_train, DEFAULT_CTX)
        self.n_ctx = wanted or hp.n_ctx_train
        self.model = self.model.at(self.n_ctx)
        self.n_pages = -(-max(options.cache_size or max(MIN_CACHE, self.n_ctx), self.n_ctx) // PAGE)
        self.created = int(path.stat().st_mtime)
        self.n_params = sum(t.n_elements for t in self.file.tensors.values())
        weights = sum(t.nbytes for t in self.file.tensors.values())
        self.bytes = weights + self.n_pages * page_bytes(self.model.graph, "f16")
        self.scheduler: Scheduler | None = None
        self.loading = False
        self.users = 0
        self.used = 0.0

    @cached_property
    def dry_breakers(self) -> Breakers:
        """llama.cpp's default sequence breakers, in this vocabulary."""
        pieces = [self.tokenizer.piece(token) for token in range(self.tokenizer.n_vocab)]
        return dry_breakers(
            pieces, lambda text: self.tokenizer.encode(text, add_special=False, parse_special=False), DRY_BREAKERS
        )

    def load(self, limits: Limits, metrics: Metrics, post: Callable[[Batch], None]) -> Scheduler:
        """Build the engine and start its thread. Slow: not for the event loop."""
        o = self.options
        engine = engines.create(
            o.engine or engines.default_name(), self.model,
            n_pages=self.n_pages, precision=o.precision, threads=o.threads, kv_type=o.kv_type,
        )  # fmt: skip
        return Scheduler(
            engine, self.tokenizer, n_ctx=self.n_ctx, limits=limits, meter=metrics.meter(self.id), post=post
        )


def unload(scheduler: Scheduler, error: ApiError) -> None:
    """End the thread, then let go of the weights."""
    scheduler.stop(error)
    scheduler.join()
    scheduler.engine.close()


def open_models(paths: Sequence[tuple[str, Path]], options: Options, limits: Limits) -> list[Entry]:
    """Entries under unique names."""
    entries: dict[str, Entry] = {}
    for name, path in paths:
        if name in entries:
            raise AssayError(f"{path}: a second model called {name}; rename one of the files")
        entries[name] = Entry(name, path, options, limits)
    return list(entries.values())


class Models:
    """Which models are in memory. All methods run on the event loop; `budget` is in bytes."""

    def __init__(self, entries: Sequence[Entry], limits: Limits, metrics: Metrics, budget: int) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.default = entries[0]
        self._limits = limits
        self._metrics = metrics
        self._budget = budget
        self._one = asyncio.Lock()  # loads or puts out a model
        self._changed = asyncio.Condition()
        self.closing: ApiError | None = None
        largest = max(entries, key=lambda entry: entry.bytes)
        if largest.bytes > budget:
            raise AssayError(
                f"{largest.id}: needs about {largest.bytes >> 20} MiB, more than the memory for models "
                f"({budget >> 20} MiB); raise --models-memory or use a smaller --cache-size"
            )

    def find(self, name: str | None) -> Entry:
        entry = self.entries.get(name) if name is not None else self.default
        if entry is None:
            known = ", ".join(self.entries)
            raise ApiError("model_not_found", f"the model {name!r:.80} does not exist; there are {known}", "model")
        return entry

    @property
    def ready(self) -> bool:
        return self.closing is None and any(entry.scheduler for entry in self.entries.values())

    @asynccontextmanager
    async def use(self, entry: Entry) -> AsyncIterator[Scheduler]:
        """The model's scheduler, loaded if need be; it stays in memory until the end of the block."""
        scheduler = await self._acquire(entry)
        try:
            yield scheduler
        finally:
            entry.users -= 1
            entry.used = time.monotonic()
            self._tell()

    async def _acquire(self, entry: Entry) -> Scheduler:
        try:
            async with asyncio.timeout(self._limits.load_s):
                while True:
                    if self.closing:
                        raise self.closing
                    if entry.scheduler:
                        entry.users += 1
                        return entry.scheduler
                    async with self._one:
                        if not entry.scheduler and not entry.loading and await self._make_room(entry):
                            await self._load(entry)
                    async with self._changed:
                        if not entry.scheduler:
                            await self._changed.wait()
        except TimeoutError:
            raise ApiError(
                "model_not_loaded",
                f"the model {entry.id} is not loaded and there is no memory for it now; try again later",
                headers={"Retry-After": "10"},
            ) from None

    async def _make_room(self, entry: Entry) -> bool:
        """Put out idle models, the longest unused first, until this one fits."""
        while self._used() + entry.bytes > self._budget:
            idle = [e for e in self.entries.values() if e.scheduler and not e.users]
            if not idle:
                return False
            await self._evict(min(idle, key=lambda e: e.used))
        return True

    def _used(self) -> int:
        used = sum(e.bytes for e in self.entries.values() if e.scheduler or e.loading)
        self._metrics.models_loaded.set(sum(e.scheduler is not None for e in self.entries.values()))
        self._metrics.models_bytes.set(used)
        return used

    async def _load(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()

        def post(batch: Batch) -> None:
            loop.call_soon_threadsafe(deliver, batch)

        entry.loading = True
        try:
            # Shielded: a client that goes away does not leave a model half loaded.
            task = asyncio.ensure_future(asyncio.to_thread(entry.load, self._limits, self._metrics, post))
            task.add_done_callback(lambda done: self._loaded(entry, done))
            await asyncio.shield(task)
        except AssayError as error:
            raise ApiError("model_load_failed", str(error), "model") from None

    def _loaded(self, entry: Entry, task: asyncio.Task[Scheduler]) -> None:
        entry.loading = False
        if not task.cancelled() and task.exception() is None:
            entry.scheduler = task.result()
            entry.used = time.monotonic()
        self._used()
        self._tell()

    def _tell(self) -> None:
        """Wake those who wait for a model or for room."""

        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._telling = asyncio.ensure_future(tell())  # kept: a task nobody holds may be collected

    async def _evict(self, entry: Entry) -> None:
        scheduler, entry.scheduler = entry.scheduler, None
        if scheduler:
            entry.loading = True  # its memory is still taken
            try:
                await asyncio.to_thread(unload, scheduler, ApiError("internal_error", "the model was put out"))
            finally:
                entry.loading = False
                self._used()

    def abort(self, error: ApiError) -> None:
        """Everything that still runs gets `error`."""
        self.closing = self.closing or error
        for entry in self.entries.values():
            if entry.scheduler:
                entry.scheduler.stop(error)

    async def close(self) -> None:
        self.closing = self.closing or ApiError("shutting_down", "the server is shutting down")
        for entry in self.entries.values():
            if entry.scheduler:
                await self._evict(entry)
