"""The models of a server: loaded on demand, evicted when idle and memory is short, or when unused for a time.

Opening a model reads its file, graph, tokenizer and template; loading it makes the engine, which takes the memory. The
models of the command line are opened at the start, so a broken file is refused before the first request. A model that
is only *offered* (`Offer`: found on this machine, or a preset) is opened with the first request that names it.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.engines.contract import Arithmetic
from assay.engines.plan.state_layout import StateMemory
from assay.errors import AssayError
from assay.gguf import open_file
from assay.runtime.grammar import Grammars
from assay.runtime.opening import Opened, OpenOptions
from assay.runtime.prefix_store import PrefixStore
from assay.runtime.presets import Preset
from assay.runtime.scheduler import Scheduler, Updates, deliver
from assay.runtime.sequence import Progress
from assay.runtime.sequence import Sequence as Running
from assay.runtime.worker import Worker
from assay.serve.api_errors import ApiError
from assay.serve.limits import ServerLimits
from assay.serve.pool.meter import Metrics
from assay.serve.pool.update_queue import Backend

_IDLE_CHECK_S = 0.5  # how often unused models are looked for
_RESIDENT_S = 2.0  # a loaded model serves at least this long before it makes room for one that waits


class ServedModel(Opened):
    """One model of the server, loaded or not."""

    blind = "it has no mmproj file"  # why it takes no pictures, if it does not

    def __init__(self, name: str, path: Path, options: OpenOptions, limits: ServerLimits) -> None:
        super().__init__(open_file(path), options)
        self.id = name
        self.grammars = Grammars(self.tokenizer, self.model.hparams.n_vocab, limits.schema)
        _ = self.template, self.adapters  # a broken template or adapter is refused now
        self.lora_scales = {i: adapter.scale for i, adapter in enumerate(self.adapters)}
        self.created = int(path.stat().st_mtime)
        self.n_params = sum(t.n_elements for t in self.file.tensors.values())
        self._weights = sum(t.nbytes for t in self.file.tensors.values())
        self.bytes = self._weights + self.cache_bytes
        self.worker: Backend | None = None
        self.loading = False
        self.progress = ("", 0, 0)  # of loading: what is done, bytes done, bytes in total
        self.users = 0
        self.used = self.loaded = 0.0  # when, on the clock of time.monotonic()
        self.waiters = 0  # requests that wait until it can be used
        self.keep_s: float | None = None  # seconds in memory after the last use; None: as the server says
        self.base = self  # whose engine it uses: another one for a preset of a model that is here too
        self.system = ""  # message for conversations that begin without one
        self.defaults: Mapping[str, float] = {}  # sampler settings of requests that leave them out
        self.stop: tuple[str, ...] = ()  # stop strings of requests that leave them out
        self.max_tokens: int | None = None  # of answers to requests that set no limit

    def under(self, name: str, preset: Preset | None) -> ServedModel:
        """The same model under another name and with the settings of a preset. It uses the engine of this one."""
        found = copy.copy(self)
        found.id, found.base, found.worker = name, self.base, None
        found.apply(preset or Preset(name, self.base.id))
        return found

    def apply(self, preset: Preset) -> None:
        """Answer with the settings of a preset."""
        self.system, self.defaults = preset.system, preset.sampler
        self.stop, self.max_tokens = preset.stop, preset.max_tokens

    async def load(self, limits: ServerLimits, metrics: Metrics) -> Backend:
        """Load the model and return its backend."""
        loop = asyncio.get_running_loop()

        def post(news: Updates) -> None:
            loop.call_soon_threadsafe(deliver, news)

        return await asyncio.to_thread(self._build, limits, metrics, post)

    def _build(self, limits: ServerLimits, metrics: Metrics, post: Callable[[Updates], None]) -> Backend:
        """Build the engine and start its thread. Slow: do not call it on the event loop."""

        def progress(label: str, done: int, total: int) -> None:
            self.progress = label, done, total

        engine = self.engine(progress, scheduled=True)
        if engine.warm_up:
            engine.warm_up()
        memory = engine.memory
        self.bytes = self._weights + (self.n_pages * memory.page + memory.windows + memory.states or self.cache_bytes)
        if memory.states:
            metrics.state_bytes.labels(self.id).set(memory.states)
        scheduler = Scheduler(
            engine, self.tokenizer, n_ctx=self.n_ctx,
            running=limits.running, chunk=limits.chunk, meter=metrics.meter(self.id),
            speculator=self.speculator(engine), folder=self.folder(),
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

    def arithmetic(self, sequence: Progress) -> Arithmetic:
        return self._worker.scheduler.engine.arithmetic

    @property
    def store(self) -> PrefixStore | None:
        """Its prefixes on disk."""
        return self._worker.scheduler.store

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


@dataclass(frozen=True)
class Offer:
    """A model that can be opened: the name that clients use, its file or the name of one, and a preset's settings."""

    name: str
    model: str | Path
    preset: Preset | None = None
    size: int = 0  # bytes of its file, if it is here
    created: int = 0


Make = Callable[[str, Path, OpenOptions, ServerLimits], ServedModel]


def open_models(
    paths: Sequence[tuple[str, Path]], options: OpenOptions, limits: ServerLimits, make: Make = ServedModel
) -> list[ServedModel]:
    """Open models under unique names."""
    entries: dict[str, ServedModel] = {}
    for name, path in paths:
        if name in entries:
            raise AssayError(f"{path}: a second model called {name}; give each its own --alias")
        entries[name] = make(name, path, options, limits)
    return list(entries.values())


class ModelPool:
    """Opens, loads and evicts models. All methods run on the event loop; `budget` is in bytes.

    `most` models are loaded at once, and each is unloaded `idle_s` seconds after its last use. `open_offer` opens an
    offered model; it is slow and runs in a thread.
    """

    def __init__(
        self,
        entries: Sequence[ServedModel],
        limits: ServerLimits,
        metrics: Metrics,
        budget: int,
        *,
        offers: Sequence[Offer] = (),
        open_offer: Callable[[Offer], ServedModel] | None = None,
        most: int | None = None,
        idle_s: float = math.inf,
    ) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.offers = {offer.name: offer for offer in offers}
        self._open_offer = open_offer
        self._opening = asyncio.Lock()
        self._default = next(iter((*self.entries, *self.offers)), "")
        self.most, self._idle_s = most, idle_s
        self._wanted: list[ServedModel] = []  # models that wait for memory, the first in turn first
        self._draining: ServedModel | None = None  # takes no new requests, so that it can be evicted
        self._limits = limits
        self._metrics = metrics
        self.budget = budget
        self._one = asyncio.Lock()  # held while a model is loaded or evicted
        self._changed = asyncio.Condition()
        self.closing: ApiError | None = None
        self._unloaded = False  # whether a model was loaded and then unloaded
        self.strict = False  # whether a single model answers under its own name only
        for entry in entries:
            self._check_size(entry)

    def _check_size(self, entry: ServedModel) -> None:
        if entry.bytes > self.budget:
            raise AssayError(
                f"{entry.id}: needs about {entry.bytes >> 20} MiB, more than the memory for models "
                f"({self.budget >> 20} MiB); raise --models-memory or use a smaller --cache-size"
            )

    @property
    def default(self) -> ServedModel:
        """The model of requests that name none."""
        return self.find(self._default)

    @property
    def unopened(self) -> list[Offer]:
        """Models that no request has named yet."""
        return [offer for name, offer in self.offers.items() if name not in self.entries]

    def called(self, name: str | None) -> str:
        """The name under which a request's model is known. Ollama's clients add or leave out `:latest`, and know
        nothing of the `ollama:` before the names of its store."""
        wanted = self._default if name is None else name
        short = wanted.removesuffix(":latest")
        forms = (wanted, short, f"ollama:{wanted}", f"ollama:{short}:latest", f"{short}:latest")
        return next((form for form in forms if form in self.entries or form in self.offers), wanted)

    async def prepare(self, body: Any, path: Mapping[str, str]) -> None:
        """Open the offered model that a request is about, before its handler looks for it."""
        name = path.get("model") or getattr(body, "model", None) or getattr(body, "name", None)
        if (name is not None or hasattr(body, "model")) and self.called(name) not in self.entries:
            await self.open(name)

    async def open(self, name: str | None) -> None:
        """Open an offered model. Names that are open or unknown are ignored."""
        called = self.called(name)
        async with self._opening:
            offer, make = self.offers.get(called), self._open_offer
            if called in self.entries or offer is None or make is None:
                return
            try:
                entry = await asyncio.to_thread(make, offer)
                self._check_size(entry)
            except AssayError as error:
                raise ApiError("model_load_failed", f"{called}: {error}", "model") from None
            self.entries[called] = entry

    async def forget(self, name: str) -> None:
        """Unload a model and offer it no more."""
        self.offers.pop(name, None)
        if name in self.entries:
            if self.entries[name].base is self.entries[name]:
                await self.unload(self.entries[name])
            del self.entries[name]

    async def unload(self, entry: ServedModel) -> bool:
        """Unload a model unless a request uses it. True if it is not in memory afterwards."""
        entry = entry.base
        async with self._one:
            if entry.worker and not entry.users:
                await self._evict(entry)
        self._wake_waiters()
        return entry.worker is None

    async def unload_idle(self) -> None:
        """Unload models that no request has used for their time. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(_IDLE_CHECK_S)
            now = time.monotonic()
            for entry in self._bases():
                if entry.worker and not entry.users and self.expires(entry) <= now:
                    await self.unload(entry)

    def expires(self, entry: ServedModel) -> float:
        """When an idle model is unloaded, on the clock of time.monotonic()."""
        return entry.used + (self._idle_s if entry.keep_s is None else entry.keep_s)

    def find(self, name: str | None, *, exact: bool = False) -> ServedModel:
        """The model of that name. A server with one model answers for every name, unless it is `strict` or the name
        must be `exact`: clients have the names of other providers built in."""
        entry = self.entries.get(self.called(name))
        if entry is None and len(self.entries) == 1 and not (self.offers or exact or self.strict):
            return self.default
        if entry is None:
            known = ", ".join(dict.fromkeys((*self.entries, *self.offers)))
            raise ApiError("model_not_found", f"the model {name!r:.80} does not exist; there are {known}", "model")
        return entry

    @property
    def ready(self) -> bool:
        """Whether requests are answered, if need be by loading a model that was unloaded."""
        loaded = any(entry.worker and entry.worker.ready for entry in self.entries.values())
        return self.closing is None and (loaded or self._unloaded or bool(self.offers))

    def is_resident(self, entry: ServedModel) -> bool:
        """Whether the server was started with this model. Clients cannot unload it: others would wait for it."""
        return entry.base.id not in self.offers

    @asynccontextmanager
    async def use(self, entry: ServedModel) -> AsyncIterator[Backend]:
        """The backend of a model, loaded if necessary. It stays in memory until the end of the block."""
        entry = entry.base
        worker = await self._acquire(entry)
        try:
            yield worker
        finally:
            entry.users -= 1
            entry.used = time.monotonic()
            self._wake_waiters()

    async def _acquire(self, entry: ServedModel) -> Backend:
        entry.waiters += 1
        try:
            async with asyncio.timeout(self._limits.load_s):
                while True:
                    if self.closing:
                        raise self.closing
                    if self._draining is entry and self._wanted[:1] in ([], [entry]):
                        self._draining = None  # no other request waits before it
                    if entry.worker and entry is not self._draining:
                        entry.users += 1
                        return entry.worker
                    if entry not in self._wanted:
                        self._wanted.append(entry)
                    async with self._one:
                        first = self._wanted[:1] == [entry] and not entry.loading
                        if first and not entry.worker and await self._make_room(entry):
                            await self._load(entry)
                    async with self._changed:
                        if not entry.worker or entry is self._draining:
                            with suppress(TimeoutError):
                                await asyncio.wait_for(self._changed.wait(), _IDLE_CHECK_S)
        except TimeoutError:
            raise ApiError(
                "model_not_loaded",
                f"the model {entry.id} is not loaded and there is no memory for it now; try again later",
                headers={"Retry-After": "10"},
            ) from None
        finally:
            entry.waiters -= 1
            if entry in self._wanted and (not entry.waiters or (entry.worker and entry is not self._draining)):
                self._wanted.remove(entry)
                self._draining = self._draining if self._wanted else None
                self._wake_waiters()

    async def _make_room(self, entry: ServedModel) -> bool:
        """Evict idle models, least recently used first, until this one fits. False if it cannot fit now."""
        while self.used + entry.bytes > self.budget or self.n_loaded >= (self.most or math.inf):
            idle = [e for e in self._bases() if e.worker and not e.users]
            if not idle:
                self._drain_one()
                return False
            await self._evict(min(idle, key=lambda e: e.used))
        return True

    def _drain_one(self) -> None:
        """Let the model that has been loaded longest finish its requests and take no new ones: another one waits.

        Otherwise clients that keep one model in use could keep all others out.
        """
        loaded = [e for e in self._bases() if e.worker]
        if self._draining is None and loaded:
            oldest = min(loaded, key=lambda e: e.loaded)
            if time.monotonic() - oldest.loaded > _RESIDENT_S:
                self._draining = oldest

    def _bases(self) -> list[ServedModel]:
        """The models that have engines of their own."""
        return list({id(entry.base): entry.base for entry in self.entries.values()}.values())

    @property
    def n_loaded(self) -> int:
        return sum(e.worker is not None or e.loading for e in self._bases())

    @property
    def used(self) -> int:
        """Bytes of the models that are in memory or being loaded."""
        return sum(e.bytes for e in self._bases() if e.worker or e.loading)

    def _measure(self) -> None:
        self._metrics.models_loaded.set(sum(e.worker is not None for e in self._bases()))
        self._metrics.models_bytes.set(self.used)

    async def _load(self, entry: ServedModel) -> None:
        entry.loading, entry.progress = True, ("", 0, 0)
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
            entry.used = entry.loaded = time.monotonic()
        self._measure()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake requests that wait for a model or for memory."""

        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._notifying = asyncio.ensure_future(notify())  # keep a reference: asyncio holds tasks only weakly

    async def _evict(self, entry: ServedModel) -> None:
        worker, entry.worker = entry.worker, None
        if self._draining is entry:
            self._draining = None
        if worker:
            self._unloaded = True
            entry.loading = True  # its memory is still in use
            try:
                await worker.end(ApiError("internal_error", "the model was unloaded"))
            finally:
                entry.loading = False
                self._measure()

    def abort(self, error: ApiError) -> None:
        """End everything that still runs with `error`."""
        self.closing = self.closing or error
        for entry in self._bases():
            if entry.worker:
                entry.worker.stop(error)

    async def close(self) -> None:
        self.closing = self.closing or ApiError("shutting_down", "the server is shutting down")
        for entry in self._bases():
            if entry.worker:
                await self._evict(entry)
