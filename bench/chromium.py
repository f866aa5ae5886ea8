"""A headless Chromium driven through its debugging pipe, with nothing but Python's standard library.

    with Chromium("chromium") as browser:
        browser.open("http://127.0.0.1:8000/")
        print(browser.evaluate("document.title"))

Messages of the DevTools protocol end with a zero byte; the browser reads them from its descriptor 3 and writes to 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

# A kernel in software may take longer than the watchdog of the GPU process allows.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu-watchdog", "--enable-unsafe-webgpu", "--mute-audio")


class Chromium:
    """One browser with one page. `log` names a file for what the browser prints."""

    def __init__(
        self, program: str, flags: Sequence[str] = (), env: Mapping[str, str] | None = None, log: str = os.devnull
    ) -> None:
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (reads, writes)]

        def wire() -> None:
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [program, *FLAGS, *flags, "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}"]
        with open(log, "w") as printed:
            self._process = subprocess.Popen(
                [*command, "about:blank"], env=dict(env or os.environ), preexec_fn=wire, close_fds=False,
                stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
            )  # fmt: skip
        for fd in (reads, writes, *theirs):
            os.close(fd)
        self._number, self._pending = 0, b""
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self.call("Page.enable")
        except BaseException:
            self.close()
            raise

    _session: str | None = None

    def call(self, method: str, timeout: float = 60, **params: Any) -> Any:
        """The result of a method of the protocol."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        sent = json.dumps({"id": self._number, "method": method, "params": params, **session})
        os.write(self._to, sent.encode() + b"\0")
        until = time.monotonic() + timeout
        while True:
            answer = self._message(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self, until: float) -> Any:
        while b"\0" not in self._pending:
            if not select.select([self._from], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("the browser did not answer in time")
            some = os.read(self._from, 1 << 16)
            if not some:
                raise RuntimeError("the browser has ended")
            self._pending += some
        text, _, self._pending = self._pending.partition(b"\0")
        return json.loads(text)

    def open(self, url: str) -> None:
        """Navigate, and wait until the document is loaded."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def evaluate(self, expression: str, timeout: float = 60) -> Any:
        """The value of an expression of JavaScript, awaited."""
        found = self.call(
            "Runtime.evaluate", timeout=timeout, expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def wait(self, condition: str, timeout: float = 60) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + timeout
        while not self.evaluate(condition):
            if time.monotonic() > until:
                raise TimeoutError(f"not true after {timeout:g} s: {condition}")
            time.sleep(0.05)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()
