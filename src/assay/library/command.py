"""Run another engine as a command, and read its output as a dump. Used by `watch`, `bisect` and `ci`."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from assay.errors import AssayError
from assay.verify.dumps.load import read_dump
from assay.verify.dumps.observation import Dump

MOST_PRINTED = 1 << 28  # largest output in bytes
_MOST_FILES = 10_000  # files examined in a watched folder
_GRACE_S = 2.0  # seconds between SIGTERM and SIGKILL


@contextmanager
def running(command: Sequence[str], log: Path, cwd: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with its output going to `log`. It is killed at the end of the block if it still runs."""
    if not command or (shutil.which(command[0]) is None and not (cwd and (cwd / command[0]).is_file())):
        raise AssayError(
            f"{command[0] if command else 'no command'}: no such program; give its path, or a name on PATH"
        )
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=cwd
            )
        except OSError as error:
            raise AssayError(f"{command[0]}: cannot be started ({(error.strerror or str(error)).lower()})") from None
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its child processes, which form a session of their own."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number) if hasattr(os, "killpg") else process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def check_size(log: Path, command: Sequence[str]) -> None:
    """Raise if an engine prints too much."""
    if log.stat().st_size > MOST_PRINTED:
        raise AssayError(
            f"{command[0]}: printed more than {MOST_PRINTED >> 20} MiB; print less, or write a --dump FILE"
        )


def whole_lines(log: Path, copy: Path) -> int:
    """Copy the output so far, up to the last complete line, to `copy`. Returns its size in bytes."""
    text = log.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    copy.write_bytes(text)
    return len(text)


def as_dump(path: Path, source: str, patterns: Sequence[str] = (), *, lenient: bool = False) -> Dump:
    """Read the file as a dump whose source is the command."""
    if path.is_file() and not path.stat().st_size:
        raise AssayError(f"{source}: {'the file is empty' if str(path) == source else 'printed nothing'}")
    try:
        return replace(read_dump(path, patterns, lenient=lenient), source=source)
    except AssayError as error:
        raise AssayError(str(error).replace(str(path), source)) from None


def run_to_dump(
    command: Sequence[str],
    folder: Path,
    *,
    dump: Path | None = None,
    patterns: Sequence[str] = (),
    cwd: Path | None = None,
    timeout: float = math.inf,
) -> Dump:
    """Run the command to its end, or for `timeout` seconds, and read the dump file that it wrote, or its output."""
    log, name = folder / "output.log", shlex.join(command)
    before = stamp(dump) if dump is not None else None
    ends = time.monotonic() + timeout
    with running(command, log, cwd) as process:
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                break
            check_size(log, command)
            if time.monotonic() > ends:
                raise AssayError(f"{name}: still runs after {timeout:g} seconds; it printed: {_tail(log)}")
    if dump is None:
        return as_dump(log, name, patterns)
    if stamp(dump) in (None, before):
        raise AssayError(f"{dump}: not written by {name} (exit code {process.returncode}); it printed: {_tail(log)}")
    return as_dump(dump, str(dump), patterns)


def _tail(log: Path) -> str:
    lines = log.read_bytes()[-400:].decode("utf-8", "replace").split("\n")
    return " | ".join(line.strip() for line in lines if line.strip())[-200:] or "nothing"


def stamp(path: Path) -> tuple[float, int] | None:
    """A value that changes when a file is written; None if it is missing. For a folder, that of its newest file."""
    try:
        if path.is_dir():
            found = [stamp(file) for file in sorted(path.rglob("*"))[:_MOST_FILES] if file.is_file()]
            return max((s for s in found if s is not None), default=None)
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime, facts.st_size
