"""Many independent tasks over many workers, with the same result to the bit as one process, and resumable.

A task names a function and its arguments, as JSON. Its result is JSON too, and is stored under the hash of the task.
A killed sweep resumes from the stored results, and another sweep with the same tasks reuses them. Floats are written so
that they are read back to the bit. Results are joined in the order of the tasks, so the workers do not matter.

A worker that dies is replaced, and its task goes to another worker. A task is given up after TRIES dead workers.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from assay.errors import AssayError
from assay.system.files import recall, remember
from assay.system.home import home

TRIES = 3  # workers that may die on one task


@dataclass(frozen=True)
class Task:
    """A function and its arguments.

    `shared` is the same for all tasks of a sweep, such as the model; workers cache the value they prepare from it.
    The result depends on `shared` and `given` only. `where` has paths and thread counts, which do not change it.
    """

    function: str  # module:name
    shared: Mapping[str, Any]
    given: Mapping[str, Any]
    where: Mapping[str, Any]
    label: str  # for display

    def to_dict(self) -> dict[str, Any]:
        return {"function": self.function, "shared": self.shared, "given": self.given, "where": self.where}

    @property
    def key(self) -> str:
        """The hash of everything that the result depends on."""
        text = json.dumps([self.function, self.shared, self.given], sort_keys=True)
        return sha256(text.encode()).hexdigest()


class WorkerLost(Exception):
    """The worker died before it answered."""


class TaskWorker(Protocol):
    """Runs tasks, one at a time."""

    name: str

    def ask(self, task: Mapping[str, Any]) -> Any:
        """The result. Raises WorkerLost when the worker dies, AssayError when the task cannot be done."""
        ...

    def close(self) -> None: ...


class WorkerPool(Protocol):
    """Starts workers. `n` is the number of workers to use."""

    n: int

    def start_worker(self, number: int) -> TaskWorker: ...


Progress = Callable[[int, int, Mapping[str, str]], None]  # tasks done, tasks in all, the current task of each worker


def folder(results: str | None) -> Path:
    return Path(results) if results else home() / "sweeps"


def kept(where: Path, key: str) -> Any:
    """A stored result, or None."""
    found = recall(where / key[:2] / f"{key}.json")
    try:
        return json.loads(found)["result"] if found is not None else None
    except (ValueError, KeyError, TypeError):
        return None


def sweep(
    tasks: Sequence[Task], pool: WorkerPool, where: Path, progress: Progress = lambda done, total, who: None
) -> list[Any]:
    """The results, in the order of the tasks."""
    keys = [task.key for task in tasks]
    results: list[Any] = [kept(where, key) for key in keys]
    todo: queue.Queue[int] = queue.Queue()
    for i, result in enumerate(results):
        if result is None:
            todo.put(i)
    left = todo.qsize()
    if not left:
        return results
    lock, over, deaths = threading.Lock(), threading.Event(), [0] * len(tasks)
    errors: list[BaseException] = []
    doing: dict[str, str] = {}

    def report() -> None:
        progress(len(tasks) - left, len(tasks), dict(doing))

    def finish(i: int, result: Any) -> None:
        nonlocal left
        path = where / keys[i][:2] / f"{keys[i]}.json"
        remember(path, json.dumps({"task": tasks[i].to_dict(), "result": result}).encode())
        with lock:
            results[i] = result
            left -= 1
            report()
            if not left:
                over.set()

    def work(number: int) -> None:
        worker: TaskWorker | None = None
        try:
            while not over.is_set():
                try:
                    i = todo.get(timeout=0.1)
                except queue.Empty:
                    continue
                try:
                    worker = worker or pool.start_worker(number)
                    with lock:
                        doing[worker.name] = tasks[i].label
                        report()
                    finish(i, worker.ask(tasks[i].to_dict()))
                except WorkerLost as error:
                    if worker:
                        doing.pop(worker.name, None)
                    worker = None
                    deaths[i] += 1
                    if deaths[i] >= TRIES:
                        raise AssayError(
                            f"{tasks[i].label}: {deaths[i]} workers died while computing it ({error})"
                        ) from None
                    todo.put(i)
        except BaseException as error:
            errors.append(error)
            over.set()
        finally:
            if worker:
                worker.close()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(min(pool.n, left))]
    for thread in threads:
        thread.start()
    over.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
