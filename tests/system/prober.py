"""A script for the box that tries what it must not be able to do, and says what came of it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import time
from typing import Any


def warm() -> None:
    socket.getaddrinfo  # noqa: B018  both modules are loaded before the doors close
    subprocess.Popen  # noqa: B018


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": TRIALS[request["try"]](*request.get("with", ()))}
    except OSError as error:
        return {"refused": error.errno}


def _grow(step: int) -> str:
    text = "x" * step
    while True:
        text += text


def _spin(_: Any = None) -> None:
    while True:
        pass


def _nap(seconds: float, _: Any = None) -> str:
    time.sleep(seconds)
    return "awake"


_counted: list[int] = []


def _count_after(seconds: float) -> int:
    """How often this was asked of the process."""
    time.sleep(seconds)
    _counted.append(1)
    return len(_counted)


def _open_descriptors() -> list[int]:
    found = []
    for fd in range(64):
        try:
            os.lseek(fd, 0, os.SEEK_CUR)
        except OSError as error:
            if error.errno == errno.EBADF:
                continue
        found.append(fd)
    return found


TRIALS: dict[str, Any] = {
    "echo": lambda value: value,
    "environment": lambda: dict(os.environ),
    "descriptors": _open_descriptors,
    "read": lambda path: os.open(path, os.O_RDONLY),
    "write": lambda path: os.open(path, os.O_WRONLY | os.O_CREAT),
    "list": os.listdir,
    "unlink": os.unlink,
    "mkdir": os.mkdir,
    "rename": os.rename,
    "chmod": lambda path: os.chmod(path, 0o777),
    "link": lambda path: os.symlink("/etc", path),
    "fork": os.fork,
    "exec": lambda path: os.execv(path, [path]),
    "kill": lambda pid: os.kill(pid, 9),
    "socket": lambda: socket.socket().fileno(),
    "pair": lambda: [s.fileno() for s in socket.socketpair()],
    "grow": _grow,
    "spin": _spin,
    "nap": _nap,
    "count_after": _count_after,
    "die": lambda: os._exit(3),
    "flood": lambda n: "x" * n,
}
