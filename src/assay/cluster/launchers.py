"""Start replicas and stages: as processes of this machine here, as actors of a Ray cluster in `ray_cluster.py`.

A launcher takes a specification and returns a handle: an address to connect to, a liveness check, and a way to kill it.
Its calls may block. Tokens never pass through it, so its speed does not matter to clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from assay.errors import AssayError

START_S = 600.0  # seconds until a service must listen; loading a large file takes long
LOOPBACK = "127.0.0.1"


class Handle(Protocol):
    """A service that was started."""

    name: str
    node: str  # the machine, for display
    host: str
    port: int

    def alive(self) -> bool: ...

    def kill(self) -> None:
        """Kill it immediately."""
        ...


class Launcher(Protocol):
    """Starts services, and ends them when it is closed."""

    where: str  # for display

    def spawn(self, spec: Mapping[str, Any]) -> Handle:
        """Start a service from its specification, and wait until it listens."""
        ...

    def close(self) -> None:
        """Kill every service that was started."""
        ...


def local_processes(address: str) -> int | None:
    """N of the address `local:N`, 0 for `local`, None for the address of a Ray cluster."""
    name, colon, n = address.partition(":")
    if name != "local":
        return None
    if colon and not (n.isdigit() and 1 <= int(n) <= 1024):
        raise AssayError(f"--cluster: expected local:N, N processes from 1 to 1024 (found {address})")
    return int(n or 0)


class LocalProcess:
    """A process of this machine."""

    def __init__(self, name: str, node: str, process: subprocess.Popen[str], host: str, port: int) -> None:
        self.name, self.node, self.host, self.port = name, node, host, port
        self.process = process

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()


class LocalLauncher:
    """Processes of this machine.

    `cpus` pins processes to cores, one list for each in turn. `nodes` simulates several machines: a name, a command
    prefix such as `ip netns exec NAME`, and the address that a process has under it.
    """

    where = "processes of this machine"

    def __init__(
        self, cpus: Sequence[Sequence[int]] = (), nodes: Sequence[tuple[str, Sequence[str], str]] = ()
    ) -> None:
        self._cpus, self._nodes = cpus, nodes
        self._numbers = count()
        self._lock = threading.Lock()
        self._started: list[LocalProcess] = []

    def spawn(self, spec: Mapping[str, Any]) -> LocalProcess:
        with self._lock:
            number = next(self._numbers)
        name = f"{spec['kind']}-{number}"
        node, command, host = self._nodes[number % len(self._nodes)] if self._nodes else ("this machine", (), LOOPBACK)
        given = {**spec, "host": host}
        if self._cpus:
            given["cpus"] = list(self._cpus[number % len(self._cpus)])
        process = subprocess.Popen(
            [*command, sys.executable, "-m", "assay.cluster.service_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin and process.stdout
        timer = threading.Timer(START_S, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError):
            answer = {}
        finally:
            timer.cancel()
        if "port" not in answer:
            process.kill()
            why = answer.get("error", f"it ended with code {process.wait()} before it listened")
            raise AssayError(f"{name} on {node}: {why}")
        found = LocalProcess(name, node, process, answer["host"], answer["port"])
        with self._lock:
            self._started = [other for other in self._started if other.alive()] + [found]
        return found

    def close(self) -> None:
        with self._lock:
            started, self._started = self._started, []
        for process in started:
            process.kill()
