"""The sandbox: untrusted templates, grammars and archives are processed in a child process that can be killed.

No check inside an interpreter catches every endless loop or every way to exhaust memory. So a child process does the
work, with limits on memory and time, an empty environment, no files, no descriptors but its pipes, and no new processes
(`confine.py`). A process serves many requests. If a request exceeds its time or crashes the process, the next request
gets a new process.

Requests have two lanes, so that slow ones do not hold up the others. Each request first gets a short time in the quick
lane. If that is not enough, it starts again in the slow lane, which has a process of its own with a low priority. In
both lanes clients take turns (`fair_queue.py`). Equal requests that arrive together are computed once.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from assay.system.fair_queue import CLIENT, FairQueue

Reply = dict[str, Any]
_STARTING_S = 30.0  # to start a process
_TEACHING_S = 20.0  # for the set-up data of `teach`, which is trusted but may be large
_KEPT_NAMES = ("SYSTEMROOT", "TZ")  # Windows starts no process without the first; the second is the time zone


@dataclass(frozen=True)
class Limits:
    """The limits of one sandboxed process."""

    memory: int  # bytes of address space.
    seconds: float  # wall-clock time per request.
    cpu_s: int = 60  # CPU time per request, in case the parent dies and cannot enforce `seconds`.
    reply: int = 1 << 28  # largest reply in bytes.
    threads: bool = False  # whether the process may start threads.
    processes: int = 1
    quick: float = 0.0  # seconds in the quick lane; 0: there is no slow lane.
    wait: float = 30.0  # seconds to wait for a process, in all.
    line: int = 64  # requests that may wait for each lane.


# All sandboxes. `processes` are those of the quick lane; the slow lane has one more.
LIMITS = {
    "template": Limits(memory=1 << 29, seconds=10.0, reply=1 << 25, processes=2, quick=0.5),
    "grammar": Limits(
        memory=1 << 30, seconds=2.0, cpu_s=10, reply=1 << 20, threads=True, processes=2, quick=0.25, wait=10.0
    ),
    "archive": Limits(memory=3 << 29, seconds=60.0),
    "picture": Limits(memory=3 << 29, seconds=20.0, cpu_s=30, quick=2.0),
}
_LOW = 5  # priority of the slow lane's process, as of `nice`


class Box:
    """Processes that run one script. Safe to call from any thread; each process serves one request at a time."""

    def __init__(self, name: str, script: Path) -> None:
        self.limits = LIMITS[name]
        limits = self.limits
        self._quick = _Lane([_Process(script, limits) for _ in range(limits.processes)], limits.line)
        self._slow = _Lane([_Process(script, limits, low=True)] if limits.quick else [], limits.line)
        self._lock = threading.Lock()
        self._running: dict[bytes, Future[Reply]] = {}
        atexit.register(self.stop)

    def warm(self) -> None:
        """Start a process in advance, so that the first request does not wait for it."""
        self._quick.warm()

    def ask(self, request: Any, seconds: float | None = None, teach: Callable[[], Any] | None = None) -> Reply:
        """The script's answer, or a fault.

        `{"fault": "time"}`: no answer in time. `{"fault": "died"}`: the process crashed. `{"fault": "busy"}`: other
        requests occupied all processes. A request that is not JSON-serialisable raises, as in `json.dumps`.

        If a process answers `{"fault": "untaught"}`, it is sent the value of `teach()` and asked again.
        """
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            other = self._running.get(line)
            own = self._running[line] = Future() if other is None else other
        if other is not None:
            try:
                return dict(other.result(self.limits.wait + self.limits.seconds))
            except TimeoutError:
                return {"fault": "busy"}
        answer: Reply = {"fault": "died"}
        try:
            answer = self._answer(line, self.limits.seconds if seconds is None else seconds, teach)
            return answer
        finally:
            with self._lock:
                del self._running[line]
            own.set_result(answer)

    def _answer(self, line: bytes, seconds: float, teach: Callable[[], Any] | None) -> Reply:
        """Ask the quick lane, and the slow lane if that was too quick."""
        until = time.monotonic() + self.limits.wait
        quick = self.limits.quick or seconds
        answer = self._quick.ask(line, min(quick, seconds), teach, until)
        if answer.get("fault") == "time" and quick < seconds:
            answer = self._slow.ask(line, seconds, teach, until)
        return answer

    def stop(self) -> None:
        """End all processes; the next request starts new ones."""
        self._quick.stop()
        self._slow.stop()


class _Lane:
    """Some processes, and the requests that wait for one of them in fair turns."""

    def __init__(self, processes: list[_Process], line: int) -> None:
        self._all = processes
        self._idle = list(processes)
        self._lock = threading.Lock()
        self._waiting: FairQueue[Future[_Process | None]] = FairQueue(line)

    def ask(self, line: bytes, seconds: float, teach: Callable[[], Any] | None, until: float) -> Reply:
        process = self._take(until)
        if process is None:
            return {"fault": "busy"}
        try:
            answer = process.ask(line, seconds)
            if answer.get("fault") == "untaught" and teach is not None:
                process.teach(teach)
                answer = process.ask(line, seconds)
            return answer
        finally:
            if process.ended:  # its successor is given back when it is ready
                threading.Thread(target=self._replace, args=(process, teach), daemon=True).start()
            else:
                self._give_back(process)

    def warm(self) -> None:
        process = self._take(0)
        if process is not None:
            process.start()
            self._give_back(process)

    def _replace(self, process: _Process, teach: Callable[[], Any] | None) -> None:
        """Start a process again before the next request needs it."""
        try:
            process.start()
            if teach is not None:
                process.teach(teach)
        finally:
            self._give_back(process)

    def _take(self, until: float) -> _Process | None:
        """A process; None if none is free until then, or too many requests wait."""
        client, turn = CLIENT.get(), Future[_Process | None]()
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if until <= time.monotonic():
                return None
            lost = self._waiting.put(client, turn)
        if lost is not None:
            lost.set_result(None)
        try:
            return turn.result(max(until - time.monotonic(), 0))
        except TimeoutError:
            with self._lock:
                waits = self._waiting.discard(client, turn)
            return None if waits else turn.result()

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            turn = self._waiting.take()
            if turn is None:
                self._idle.append(process)
        if turn is not None:
            turn.set_result(process)

    def stop(self) -> None:
        for process in self._all:
            process.stop()


class _Process:
    """One process, started on demand and restarted after a crash."""

    def __init__(self, script: Path, limits: Limits, *, low: bool = False) -> None:
        self._limits = limits
        self._low = low  # whether it runs with a low priority
        given = {"script": str(script), "paths": [p for p in sys.path if p], **asdict(limits)}
        self._command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("boxed.py")), json.dumps(given)]
        self._child: subprocess.Popen[bytes] | None = None
        self._ready = False

    @property
    def ended(self) -> bool:
        """Whether it ran and was ended."""
        return self._child is None

    def start(self) -> subprocess.Popen[bytes]:
        """The running process. Returns before a new process is ready."""
        child = self._child
        if child is None or child.poll() is not None:
            self.stop()
            self._ready = False
            child = self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT_NAMES if name in os.environ},
                cwd=os.path.abspath(os.sep),
                start_new_session=True,  # Ctrl-C must not reach the child
            )
            if self._low:
                with contextlib.suppress(OSError, AttributeError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, _LOW)
        return child

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError, ValueError):
                child.communicate()

    def teach(self, data: Callable[[], Any]) -> None:
        self.ask(json.dumps(data()).encode() + b"\n", _TEACHING_S)

    def ask(self, line: bytes, seconds: float) -> Reply:
        answer = self._exchange(line, seconds)
        # The process may have been killed while it was idle: retry once with a new one.
        return self._exchange(line, seconds) if answer.get("fault") == "died" else answer

    def _exchange(self, line: bytes, seconds: float) -> Reply:
        child = self.start()
        if not self._ready:  # starting does not count as time of the request
            started, _ = self._line_of(child, b"", _STARTING_S)
            self._ready = bool(started)
        reply, in_time = self._line_of(child, line, seconds)
        try:
            if not reply.endswith(b"\n"):
                raise ValueError
            answer = json.loads(reply)
            if not isinstance(answer, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self.stop()
            return {"fault": "died" if in_time else "time"}
        return answer

    def _line_of(self, child: subprocess.Popen[bytes], line: bytes, seconds: float) -> tuple[bytes, bool]:
        """Write a line and read one. The process is killed if that takes longer; then the second result is False."""
        assert child.stdin is not None and child.stdout is not None
        alarm = threading.Timer(seconds, child.kill)
        alarm.daemon = True
        alarm.start()
        try:
            child.stdin.write(line)
            child.stdin.flush()
            reply = child.stdout.readline(self._limits.reply)
        except (OSError, ValueError):  # it has ended, or `stop` has closed its pipes
            reply = b""
        finally:
            in_time = alarm.is_alive()
            alarm.cancel()
        return reply, in_time
