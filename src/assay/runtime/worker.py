"""A thread for a scheduler: jobs come from any thread, and what there is to tell goes out once a step.

Other threads only `submit`, `cancel` and `stop`; everything else belongs to the worker's own thread. What it has to
tell is handed to `post`, on that thread.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence

from assay.errors import AssayError
from assay.runtime.scheduler import News, Scheduler, deliver
from assay.runtime.sequence import Job, Sink
from assay.runtime.sequence import Sequence as Running
from assay.runtime.sequence_errors import EngineFailed, QueueFull

log = logging.getLogger("assay.runtime")
REST = 1.0  # seconds without work after which freed memory goes back to the system


def give_back() -> None:
    """Freed memory to the system: the C library keeps what large requests held, and does not say for how long."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


class Worker:
    """Submit jobs from any thread; their sinks get updates until one that finishes."""

    def __init__(self, scheduler: Scheduler, *, waiting: int = 256, post: Callable[[News], None] = deliver) -> None:
        self.scheduler = scheduler
        self._most = scheduler.most + waiting
        self._post = post
        self._seconds = 1.0  # of a sequence, a running mean
        self._held: News = []  # what goes out when the engine is at work: whoever listens takes time, too
        if scheduler.engine.follows:
            scheduler.engine.meanwhile = self._tell
            scheduler.report = self._report
            scheduler.wanted = lambda: bool(self._inbox or self._unwanted or self._stop)
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
        """All of them or, when the queue has no room, none."""
        sequences = [self.scheduler.make(job, sink) for job, sink in zip(jobs, sinks, strict=True)]
        with self._wake:
            if self._stop:
                raise self._stop
            if self._live + len(sequences) > self._most:
                raise QueueFull(self._live, self._retry_after())
            self._live += len(sequences)
            self._inbox += sequences
            self._wake.notify()
        return sequences

    def cancel(self, sequences: Sequence[Running]) -> None:
        """Free what they hold, at the latest after the step under way. Finished ones are left alone."""
        with self._wake:
            self._unwanted += sequences
            self._wake.notify()

    def stop(self, error: Exception) -> None:
        """End everything that is not finished with `error`, and the thread."""
        with self._wake:
            self._stop = self._stop or error
            self._wake.notify()

    def join(self) -> None:
        self._thread.join()

    @property
    def load(self) -> tuple[int, int]:
        """How many run and how many wait."""
        running = len(self.scheduler.running)
        return running, max(self._live - running, 0)

    def _retry_after(self) -> int:
        return max(1, min(60, round(self._seconds * self._live / self.scheduler.most)))

    # --- the thread

    def _run(self) -> None:
        scheduler = self.scheduler
        while True:
            with self._wake:
                rest: float | None = REST
                while not (self._inbox or self._unwanted or self._stop or scheduler.busy):
                    if not self._wake.wait(rest):
                        give_back()
                        rest = None
                arrived, self._inbox = self._inbox, []
                unwanted, self._unwanted = self._unwanted, []
                stop = self._stop
            scheduler.add(arrived)
            scheduler.cancel(unwanted)
            if stop:
                scheduler.fail((*scheduler.running, *scheduler.waiting), stop)
                self._held += scheduler.news()
                self._tell()
                return
            try:
                news = scheduler.step()
                self._tell()
                self._held = news
                if not scheduler.running or not scheduler.engine.follows:
                    self._tell()
            except Exception as error:  # whatever it was, nobody is left waiting for an answer
                log.error("a step failed: %s", error, exc_info=not isinstance(error, AssayError))
                failed = scheduler.running or scheduler.waiting
                scheduler.fail(list(failed), EngineFailed(f"the engine failed: {error}"))
                self._held += scheduler.news()
                self._tell()

    def _report(self, news: News) -> None:
        self._held += news
        self._tell()

    def _tell(self) -> None:
        """Hand out what is held back."""
        news, self._held = self._held, []
        ended = [sequence for sequence, update in news if update.finish]
        if ended:
            now = time.monotonic()
            for sequence in ended:
                if sequence.times.admitted:
                    self._seconds += 0.1 * (now - sequence.times.admitted - self._seconds)
            with self._wake:
                self._live -= len(ended)
        if news:
            try:
                self._post(news)
            except RuntimeError:  # the event loop is gone, and with it everybody who listened
                log.debug("nobody listens")
        self.scheduler.meter.state(*self.load, self.scheduler.pages)
