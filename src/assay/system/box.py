"""The sandbox: untrusted templates, grammars and archives are processed in a child process that can be killed.

No check inside an interpreter catches every endless loop or every way to exhaust memory. So a child process does the
work, with limits on memory and time, an empty environment, no files, no descriptors but its pipes, and no new processes
(`confine.py`). A process serves many requests. If a request exceeds its time or crashes the process, the next request
gets a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Reply = dict[str, Any]
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
    wait: float = 30.0  # seconds to wait for an idle process.


# All sandboxes.
LIMITS = {
    "template": Limits(memory=1 << 29, seconds=10.0),
    "grammar": Limits(memory=1 << 30, seconds=2.0, cpu_s=10, reply=1 << 20, threads=True, processes=2),
    "archive": Limits(memory=3 << 29, seconds=60.0),
}


class Box:
    """Processes that run one script. Safe to call from any thread; each process serves one request at a time."""

    def __init__(self, name: str, script: Path) -> None:
        self.limits = LIMITS[name]
        self._script = script
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()
        for _ in range(self.limits.processes):
            self._idle.put(_Process(script, self.limits))
        self._all = list(self._idle.queue)
        atexit.register(self.stop)

    def warm(self) -> None:
        """Start a process in advance, so that the first request does not wait for it."""
        with contextlib.suppress(queue.Empty):
            process = self._idle.get_nowait()
            try:
                process.start()
            finally:
                self._idle.put(process)

    def ask(self, request: Any, seconds: float | None = None, teach: Callable[[], Any] | None = None) -> Reply:
        """The script's answer, or a fault.

        `{"fault": "time"}`: no answer in time. `{"fault": "died"}`: the process crashed. `{"fault": "busy"}`: other
        requests occupied all processes. A request that is not JSON-serialisable raises, as in `json.dumps`.

        If a process answers `{"fault": "untaught"}`, it is sent the value of `teach()` and asked again.
        """
        line = json.dumps(request).encode() + b"\n"
        try:
            process = self._idle.get(timeout=self.limits.wait)
        except queue.Empty:
            return {"fault": "busy"}
        try:
            allowed = self.limits.seconds if seconds is None else seconds
            answer = process.ask(line, allowed)
            if answer.get("fault") == "untaught" and teach is not None:
                process.ask(json.dumps(teach()).encode() + b"\n", _TEACHING_S)
                answer = process.ask(line, allowed)
            return answer
        finally:
            self._idle.put(process)

    def stop(self) -> None:
        """End all processes; the next request starts new ones."""
        for process in self._all:
            process.stop()


class _Process:
    """One process, started on demand and restarted after a crash."""

    def __init__(self, script: Path, limits: Limits) -> None:
        self._limits = limits
        given = {"script": str(script), "paths": [p for p in sys.path if p], **asdict(limits)}
        self._command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("boxed.py")), json.dumps(given)]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """The running process. Returns before a new process is ready."""
        child = self._child
        if child is None or child.poll() is not None:
            self.stop()
            child = self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT_NAMES if name in os.environ},
                cwd=os.path.abspath(os.sep),
                start_new_session=True,  # Ctrl-C must not reach the child
            )
        return child

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError, ValueError):
                child.communicate()

    def ask(self, line: bytes, seconds: float) -> Reply:
        answer = self._exchange(line, seconds)
        # The process may have been killed while it was idle: retry once with a new one.
        return self._exchange(line, seconds) if answer.get("fault") == "died" else answer

    def _exchange(self, line: bytes, seconds: float) -> Reply:
        child = self.start()
        assert child.stdin is not None and child.stdout is not None
        alarm = threading.Timer(seconds, child.kill)
        alarm.daemon = True
        alarm.start()
        try:
            child.stdin.write(line)
            child.stdin.flush()
            reply = child.stdout.readline(self._limits.reply)
        except OSError:
            reply = b""
        finally:
            in_time = alarm.is_alive()
            alarm.cancel()
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
