"""The box: a stranger's program, pattern or archive is worked on in a process that can be killed.

No check inside an interpreter catches every way to loop for ever or to double a string until the machine swaps, so the
work is done by a process that may take so much memory and time and can reach nothing: an empty environment, no file, no
descriptor but its pipes, no new process (`confine.py`). It is started once and serves many requests; when one of them
takes too long or brings it down, the next gets a fresh one.
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
_TEACHING_S = 20.0  # what a process must know is ours, so it is only a matter of size
_KEPT_NAMES = ("SYSTEMROOT", "TZ")  # Windows starts nothing without the first; the second is the user's clock


@dataclass(frozen=True)
class Limits:
    """What one process of a box may take."""

    memory: int  # bytes of address space
    seconds: float  # a request, by the wall clock
    cpu_s: int = 60  # a request, of CPU time, should nobody be left to watch the wall clock
    reply: int = 1 << 28  # bytes
    threads: bool = False  # whether its library computes on several
    processes: int = 1
    wait: float = 30.0  # for a process that is not busy


# Every box there is.
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
        """Start a process now, so that the first request need not wait for it."""
        with contextlib.suppress(queue.Empty):
            process = self._idle.get_nowait()
            try:
                process.start()
            finally:
                self._idle.put(process)

    def ask(self, request: Any, seconds: float | None = None, teach: Callable[[], Any] | None = None) -> Reply:
        """The script's answer; `{"fault": "time"}` when there was none in time, `{"fault": "died"}` when its process
        died of it, `{"fault": "busy"}` when others kept all processes. What JSON cannot say raises, as `json.dumps`.

        A process that answers `{"fault": "untaught"}` is told what `teach` gives, and asked again."""
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
    """One process, started when it is needed and again when it is gone."""

    def __init__(self, script: Path, limits: Limits) -> None:
        self._limits = limits
        given = {"script": str(script), "paths": [p for p in sys.path if p], **asdict(limits)}
        self._command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("boxed.py")), json.dumps(given)]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """The running process; starting one returns before it is ready."""
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
                start_new_session=True,  # Ctrl-C is for us
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
        # A process that somebody else ended, unnoticed while it was idle, is replaced once.
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
