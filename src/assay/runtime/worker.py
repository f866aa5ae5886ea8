"""A thread that steps a scheduler: any thread submits jobs, and updates are published once per step.

Other threads may call `submit`, `cancel` and `stop` only. Everything else belongs to the worker's own thread, which
also calls `post` with the updates.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence

from assay.errors import AssayError
from assay.runtime.scheduler import Scheduler, Updates, deliver
from assay.runtime.sequence import Job, Sink
from assay.runtime.sequence import Sequence as Running
from assay.runtime.sequence_errors import EngineFailed, QueueFull

log = logging.getLogger("assay.runtime")
IDLE_SECONDS = 1.0  # without work, after which freed memory is returned to the system


def trim_heap() -> None:
    """Return freed memory to the system. The C library would otherwise keep what large requests have used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


class Worker:
    """Submit jobs from any thread. Their sinks receive updates; the last one has `finish` set."""

    def __init__(self, scheduler: Scheduler, *, waiting: int = 256, post: Callable[[Updates], None] = deliver) -> None:
        self.scheduler = scheduler
        self._max_live = scheduler.max_running + waiting
        self._post = post
        self._seconds = 1.0  # duration of a sequence, a running mean
        self._held: Updates = []  # published while the engine computes the next step, because publishing takes time
        self._overlaps = scheduler.engine.decode_runner is not None
        if scheduler.engine.decode_runner:
            scheduler.engine.decode_runner.on_launch = self._publish
            scheduler.publish = self._publish_now
            scheduler.must_stop = lambda: bool(self._inbox or self._unwanted or self._stop)
        # Shared with other threads, under the lock:
        self._wake = threading.Condition()
        self._inbox: list[Running] = []
        self._unwanted: list[Running] = []
        self._live = 0
        self._stop: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="assay-engine", daemon=True)
        self._thread.start()

    # --- from any thread

    def submit(self, jobs: Sequence[Job], sinks: Sequence[Sink]) -> list[Running]:
        """Submit all jobs, or none if the queue has no room for them."""
        sequences = [self.scheduler.make(job, sink) for job, sink in zip(jobs, sinks, strict=True)]
        with self._wake:
            if self._stop:
                raise self._stop
            if self._live + len(sequences) > self._max_live:
                raise QueueFull(self._live, self._retry_after())
            self._live += len(sequences)
            self._inbox += sequences
            self._wake.notify()
        return sequences

    def cancel(self, sequences: Sequence[Running]) -> None:
        """End sequences and free their pages after the current step at the latest. Finished ones are ignored."""
        with self._wake:
            self._unwanted += sequences
            self._wake.notify()

    def stop(self, error: Exception) -> None:
        """End all unfinished sequences with `error`, then the thread."""
        with self._wake:
            self._stop = self._stop or error
            self._wake.notify()

    def join(self) -> None:
        self._thread.join()

    @property
    def load(self) -> tuple[int, int]:
        """The number of running and of waiting sequences."""
        running = len(self.scheduler.running)
        return running, max(self._live - running, 0)

    def _retry_after(self) -> int:
        return max(1, min(60, round(self._seconds * self._live / self.scheduler.max_running)))

    # --- the thread

    def _run(self) -> None:
        scheduler = self.scheduler
        while True:
            with self._wake:
                timeout: float | None = IDLE_SECONDS
                while not (self._inbox or self._unwanted or self._stop or scheduler.busy):
                    if not self._wake.wait(timeout):
                        trim_heap()
                        timeout = None
                arrived, self._inbox = self._inbox, []
                unwanted, self._unwanted = self._unwanted, []
                stop = self._stop
            scheduler.add(arrived)
            scheduler.cancel(unwanted)
            if stop:
                scheduler.fail((*scheduler.running, *scheduler.waiting), stop)
                self._held += scheduler.take_updates()
                self._publish()
                return
            try:
                updates = scheduler.step()
                self._publish()
                self._held = updates
                if not scheduler.running or not self._overlaps:
                    self._publish()
            except Exception as error:  # of any kind: every client must get an answer
                log.error("a step failed: %s", error, exc_info=not isinstance(error, AssayError))
                failed = scheduler.running or scheduler.waiting
                scheduler.fail(list(failed), EngineFailed(f"the engine failed: {error}"))
                self._held += scheduler.take_updates()
                self._publish()

    def _publish_now(self, updates: Updates) -> None:
        self._held += updates
        self._publish()

    def _publish(self) -> None:
        """Post the held updates, and account for sequences that ended with them."""
        updates, self._held = self._held, []
        ended = [sequence for sequence, update in updates if update.finish]
        if ended:
            now = time.monotonic()
            for sequence in ended:
                if sequence.times.admitted:
                    self._seconds += 0.1 * (now - sequence.times.admitted - self._seconds)
            with self._wake:
                self._live -= len(ended)
        if updates:
            try:
                self._post(updates)
            except RuntimeError:  # the event loop has ended, and with it all clients
                log.debug("updates are dropped: the event loop has ended")
        self.scheduler.meter.state(*self.load, self.scheduler.pages)
