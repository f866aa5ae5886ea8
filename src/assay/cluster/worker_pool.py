"""The workers of a sweep: processes of this machine, or one actor on every node of a Ray cluster.

A worker loads the model once and keeps it for all tasks of the sweep.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any

from assay.cluster.fingerprint import sampling_digest
from assay.cluster.launchers import local_processes
from assay.cluster.sweep import WorkerLost, WorkerPool
from assay.errors import AssayError
from assay.system import machine


def perform(task: Mapping[str, Any]) -> Any:
    """Run a task in this process. The value that the module prepares from `shared` is cached for the next task."""
    module, _, name = str(task["function"]).partition(":")
    function = getattr(import_module(module), name)
    return function(_shared(json.dumps([task["shared"], task["where"]], sort_keys=True), module), task["given"])


@lru_cache(maxsize=2)
def _shared(text: str, module: str) -> Any:
    """The values that many tasks share, such as the model, as the module's `prepare` makes them."""
    return import_module(module).prepare(*json.loads(text))


def answer(task: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a task, or its error, as JSON."""
    try:
        return {"result": perform(task)}
    except AssayError as error:
        return {"error": str(error)}


class ProcessWorker:
    """A worker process of this machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay.cluster.worker_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, task: Mapping[str, Any]) -> Any:
        assert self.process.stdin and self.process.stdout
        line = ""
        with suppress(OSError):
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line.endswith("\n"):
            self.process.kill()
            raise WorkerLost(f"{self.name} ended with code {self.process.wait()}")
        return unwrap(json.loads(line))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()


def unwrap(found: Mapping[str, Any]) -> Any:
    if "error" in found:
        raise AssayError(found["error"])
    return found["result"]


class LocalPool:
    """Worker processes of this machine."""

    def __init__(self, n: int | None = None) -> None:
        self.n = n or machine.cores()

    def start_worker(self, number: int) -> ProcessWorker:
        return ProcessWorker(f"process {number}")


class TaskActor:
    """The actor that runs tasks on a node."""

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        return answer(task)

    def digest(self) -> str:
        return sampling_digest()


class ActorWorker:
    """A worker on a node of a Ray cluster."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self._actor, self._ray = name, actor, import_module("ray")

    def ask(self, task: Mapping[str, Any]) -> Any:
        try:
            return unwrap(self._ray.get(self._actor.ask.remote(dict(task))))
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(f"{self.name}: {type(error).__name__}") from None

    def close(self) -> None:
        self._ray.kill(self._actor, no_restart=True)


class RayPool:
    """One actor on every node. A node whose exp or log gives other bits is refused, because results would differ."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._nodes = [node for node in ray.nodes() if node["Alive"]]
        self.n = len(self._nodes)

    def start_worker(self, number: int) -> ActorWorker:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        if not alive:
            raise AssayError("--cluster: all nodes are gone")
        node = alive[number % len(alive)]
        strategy = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        name = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"
        actor = self._ray.remote(TaskActor).options(
            num_cpus=1, max_restarts=0, scheduling_strategy=strategy(node["NodeID"], soft=True)
        ).remote()  # fmt: skip
        try:
            digest = self._ray.get(actor.digest.remote())
        except self._ray.exceptions.RayError as error:
            raise WorkerLost(f"{name}: {type(error).__name__}") from None
        if digest != sampling_digest():
            raise AssayError(
                f"{name}: NumPy computes exp and log with other bits than on this machine; remove that node"
            )
        return ActorWorker(name, actor)


def worker_pool(address: str, *, insecure: bool = False) -> WorkerPool:
    """The workers of `--cluster ADDRESS`: `local`, `local:N`, or a Ray cluster; empty starts a Ray cluster here."""
    if (n := local_processes(address)) is not None:
        return LocalPool(n or None)
    from assay.cluster.ray_cluster import join

    return RayPool(join(address or None, insecure=insecure))


def main() -> int:
    """The worker process: one task per line on standard input, one answer per line on standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not write into the answers
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(1.0)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
