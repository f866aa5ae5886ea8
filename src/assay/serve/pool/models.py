"""The models of a server: opened at the start, loaded on demand, evicted when idle and memory is short.

The file, graph, tokenizer and template of a model are opened at the start, so a broken file is refused before the
first request. Only the engine (weights and cache) takes memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from assay.engines.contract import Arithmetic
from assay.engines.plan.state_layout import StateMemory
from assay.errors import AssayError
from assay.gguf import open_file
from assay.runtime.grammar import Grammars
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.scheduler import Scheduler, Updates, deliver
from assay.runtime.sequence import Progress
from assay.runtime.sequence import Sequence as Running
from assay.runtime.worker import Worker
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.update_queue import Backend


class ServedModel(Opened):
    """One model of the server, loaded or not."""

    def __init__(self, name: str, path: Path, options: OpenOptions, limits: ServerLimits) -> None:
        super().__init__(open_file(path), options)
        self.id = name
        self.grammars = Grammars(self.tokenizer, self.model.hparams.n_vocab, limits.schema)
        _ = self.template  # a broken template is refused now
        self.created = int(path.stat().st_mtime)
        self.n_params = sum(t.n_elements for t in self.file.tensors.values())
        self._weights = sum(t.nbytes for t in self.file.tensors.values())
        self.bytes = self._weights + self.cache_bytes
        self.worker: Backend | None = None
        self.loading = False
        self.users = 0
        self.used = 0.0

    async def load(self, limits: ServerLimits, metrics: Metrics) -> Backend:
        """Load the model and return its backend."""
        loop = asyncio.get_running_loop()

        def post(news: Updates) -> None:
            loop.call_soon_threadsafe(deliver, news)

        return await asyncio.to_thread(self._build, limits, metrics, post)

    def _build(self, limits: ServerLimits, metrics: Metrics, post: Callable[[Updates], None]) -> Backend:
        """Build the engine and start its thread. Slow: do not call it on the event loop."""
        engine = self.engine(scheduled=True)
        memory = engine.memory
        self.bytes = self._weights + (self.n_pages * memory.page + memory.windows + memory.states or self.cache_bytes)
        if memory.states:
            metrics.state_bytes.labels(self.id).set(memory.states)
        scheduler = Scheduler(
            engine, self.tokenizer, n_ctx=self.n_ctx,
            running=limits.running, chunk=limits.chunk, meter=metrics.meter(self.id),
            speculator=self.speculator(),
        )  # fmt: skip
        return LocalWorker(Worker(scheduler, waiting=limits.waiting, post=post))


def states_line(entry: ServedModel) -> str:
    """The memory of the states of a model, in words; empty for a model whose layers keep rows by position only."""
    row = next(iter(entry.worker.rows()), {}) if entry.worker else {}
    slots, each = row.get("state_slots", entry.states.slots), entry.states.bytes_per_slot
    total = row.get("state_bytes", StateMemory(slots, each).bytes)
    if not slots:
        return ""
    return (
        f"{entry.id}: {slots} states of {each / 1e6:.1f} MB for running sequences and snapshots of prefixes, "
        f"{total / 1e6:,.1f} MB in all; --state-slots chooses another number"
    )


class LocalWorker:
    """The backend of a model that this process computes."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.submit, self.stop = worker.submit, worker.stop
        self.ready = True

    @property
    def arithmetic(self) -> Arithmetic:
        """What identifies the bits of its logits."""
        return self._worker.scheduler.engine.arithmetic

    def cancel(self, sequences: Sequence[Progress]) -> None:
        self._worker.cancel([sequence for sequence in sequences if isinstance(sequence, Running)])

    async def end(self, error: Exception) -> None:
        """End the thread, then free the weights."""
        self.stop(error)
        await asyncio.to_thread(self._worker.join)
        await asyncio.to_thread(self._worker.scheduler.close)

    def streams(self) -> list[Progress]:
        return list(self._worker.scheduler.running)

    def rows(self) -> list[dict[str, Any]]:
        scheduler = self._worker.scheduler
        running, waiting = self._worker.load
        return [
            {"replica": "this process", "node": "", "state": "up", "engine": scheduler.engine.name,
             "running": running, "waiting": waiting, "pages": scheduler.pages.n_pages,
             "pages_available": scheduler.pages.available, **scheduler.state_counts()},
        ]  # fmt: skip


Make = Callable[[str, Path, OpenOptions, ServerLimits], ServedModel]


def open_models(
    paths: Sequence[tuple[str, Path]], options: OpenOptions, limits: ServerLimits, make: Make = ServedModel
) -> list[ServedModel]:
    """Open models under unique names."""
    entries: dict[str, ServedModel] = {}
    for name, path in paths:
        if name in entries:
            raise AssayError(f"{path}: a second model called {name}; rename one of the files")
        entries[name] = make(name, path, options, limits)
    return list(entries.values())


class ModelPool:
    """Loads and evicts models. All methods run on the event loop; `budget` is in bytes."""

    def __init__(self, entries: Sequence[ServedModel], limits: ServerLimits, metrics: Metrics, budget: int) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.default = entries[0]
        self._limits = limits
        self._metrics = metrics
        self._budget = budget
        self._one = asyncio.Lock()  # held while a model is loaded or evicted
        self._changed = asyncio.Condition()
        self.closing: ApiError | None = None
        largest = max(entries, key=lambda entry: entry.bytes)
        if largest.bytes > budget:
            raise AssayError(
                f"{largest.id}: needs about {largest.bytes >> 20} MiB, more than the memory for models "
                f"({budget >> 20} MiB); raise --models-memory or use a smaller --cache-size"
            )

    def find(self, name: str | None) -> ServedModel:
        entry = self.entries.get(name) if name is not None else self.default
        if entry is None:
            known = ", ".join(self.entries)
            raise ApiError("model_not_found", f"the model {name!r:.80} does not exist; there are {known}", "model")
        return entry

    @property
    def ready(self) -> bool:
        return self.closing is None and any(entry.worker and entry.worker.ready for entry in self.entries.values())

    @asynccontextmanager
    async def use(self, entry: ServedModel) -> AsyncIterator[Backend]:
        """The backend of a model, loaded if necessary. It stays in memory until the end of the block."""
        worker = await self._acquire(entry)
        try:
            yield worker
        finally:
            entry.users -= 1
            entry.used = time.monotonic()
            self._wake_waiters()

    async def _acquire(self, entry: ServedModel) -> Backend:
        try:
            async with asyncio.timeout(self._limits.load_s):
                while True:
                    if self.closing:
                        raise self.closing
                    if entry.worker:
                        entry.users += 1
                        return entry.worker
                    async with self._one:
                        if not entry.worker and not entry.loading and await self._make_room(entry):
                            await self._load(entry)
                    async with self._changed:
                        if not entry.worker:
                            await self._changed.wait()
        except TimeoutError:
            raise ApiError(
                "model_not_loaded",
                f"the model {entry.id} is not loaded and there is no memory for it now; try again later",
                headers={"Retry-After": "10"},
            ) from None

    async def _make_room(self, entry: ServedModel) -> bool:
        """Evict idle models, least recently used first, until this one fits. False if it cannot fit now."""
        while self._used() + entry.bytes > self._budget:
            idle = [e for e in self.entries.values() if e.worker and not e.users]
            if not idle:
                return False
            await self._evict(min(idle, key=lambda e: e.used))
        return True

    def _used(self) -> int:
        used = sum(e.bytes for e in self.entries.values() if e.worker or e.loading)
        self._metrics.models_loaded.set(sum(e.worker is not None for e in self.entries.values()))
        self._metrics.models_bytes.set(used)
        return used

    async def _load(self, entry: ServedModel) -> None:
        entry.loading = True
        try:
            # Shielded: a client that disconnects must not cancel the loading.
            task = asyncio.ensure_future(entry.load(self._limits, self._metrics))
            task.add_done_callback(lambda done: self._loaded(entry, done))
            await asyncio.shield(task)
        except AssayError as error:
            raise ApiError("model_load_failed", str(error), "model") from None

    def _loaded(self, entry: ServedModel, task: asyncio.Task[Backend]) -> None:
        entry.loading = False
        if not task.cancelled() and task.exception() is None:
            entry.worker = task.result()
            entry.used = time.monotonic()
        self._used()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake requests that wait for a model or for memory."""

        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._notifying = asyncio.ensure_future(notify())  # keep a reference: asyncio holds tasks only weakly

    async def _evict(self, entry: ServedModel) -> None:
        worker, entry.worker = entry.worker, None
        if worker:
            entry.loading = True  # its memory is still in use
            try:
                await worker.end(ApiError("internal_error", "the model was unloaded"))
            finally:
                entry.loading = False
                self._used()

    def abort(self, error: ApiError) -> None:
        """End everything that still runs with `error`."""
        self.closing = self.closing or error
        for entry in self.entries.values():
            if entry.worker:
                entry.worker.stop(error)

    async def close(self) -> None:
        self.closing = self.closing or ApiError("shutting_down", "the server is shutting down")
        for entry in self.entries.values():
            if entry.worker:
                await self._evict(entry)
