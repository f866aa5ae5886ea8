"""The edit-run loop of an engine's author: run it, compare its output while it prints, repeat on changes."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.library.command import as_dump, check_size, run_to_dump, running, stamp, whole_lines
from assay.library.dump_receiver import command as receiver_command
from assay.library.verdicts import Finding, ModelLike, diagnose, diff, opened
from assay.runtime.opening import Opened
from assay.verify.dumps.observation import Dump

_PAUSE_S = 0.2  # seconds between two reads of the output


@dataclass(frozen=True)
class WatchEvent:
    """An event of `watch`: `run`, `read`, `first` (the first wrong node is known), `verdict`, `cause`, `fault` or
    `wait`."""

    kind: str
    text: str
    finding: Finding | None = None


def watch(
    model: ModelLike,
    command: Sequence[str],
    *,
    dump: Path | None = None,
    on: Sequence[Path] = (),
    once: bool = False,
    why: bool = False,
    interval: float = 0.5,
    tokens: Sequence[int] = (),
    prompt: str | None = None,
    names: Mapping[str, str] | None = None,
    patterns: Sequence[str] = (),
    port: int = 0,
) -> Iterator[WatchEvent]:
    """Run the command and judge its output, or the `dump` file that it writes. Repeat when it or `on` changes.

    With `port`, there is no command: each dump that is posted to this port of this machine is judged.

    The program and the files among its arguments are watched, too. With `why`, each verdict is followed by a diagnosis,
    which also detects mistakes that are smaller than noise.
    """
    model = opened(model)
    name = f"http://127.0.0.1:{port}" if port else shlex.join(command)
    command = receiver_command(port) if port else command
    how: dict[str, Any] = {"tokens": tokens, "prompt": prompt, "names": names}
    paths = [Path(p) for p in (shutil.which(command[0]) or command[0], *command[1:]) if Path(p).is_file()]
    paths = [p for p in dict.fromkeys((*paths, *on)) if p != dump]
    while True:
        before = [stamp(p) for p in paths]
        yield WatchEvent("run", f"waiting for a dump posted to {name}; Ctrl-C ends" if port else name)
        try:
            for seen in _once(model, command, name, dump, patterns, how):
                yield seen
                if why and seen.kind == "verdict" and seen.finding is not None and seen.finding.dump is not None:
                    found = diagnose(model, seen.finding.dump)
                    yield WatchEvent("cause", found.verdict, found)
        except AssayError as error:
            if once or not (paths or port):
                raise
            yield WatchEvent("fault", str(error))
        if once:
            return
        if port:
            continue
        if not paths:
            raise AssayError(f"{name}: there is no file to watch; name one with --on, or run it --once")
        yield WatchEvent("wait", f"waiting for a change of {', '.join(map(str, paths))}; Ctrl-C ends")
        _wait(paths, before, interval)


def _wait(paths: Sequence[Path], before: Sequence[Any], interval: float) -> None:
    """Wait until a file changes and then stays unchanged for one interval."""
    last = list(before)
    while True:
        time.sleep(interval)
        found = [stamp(p) for p in paths]
        if found != list(before) and found == last and None not in found:
            return
        last = found


def _once(
    model: Opened,
    command: Sequence[str],
    name: str,
    file: Path | None,
    patterns: Sequence[str],
    how: Mapping[str, Any],
) -> Iterator[WatchEvent]:
    with tempfile.TemporaryDirectory(prefix="assay-watch-") as folder:
        if file is not None:
            yield from _judged(model, run_to_dump(command, Path(folder), dump=file, patterns=patterns), how)
            return
        log, copy = Path(folder) / "output.log", Path(folder) / "lines.log"
        done, told = 0, False
        with running(command, log) as process:
            while process.poll() is None:
                time.sleep(_PAUSE_S)
                check_size(log, command)
                if told or log.stat().st_size == done:
                    continue
                done = log.stat().st_size
                early = _early(model, copy, name, patterns, how) if whole_lines(log, copy) else None
                if early is not None and not early:
                    told = True
                    yield WatchEvent("first", f"{early.first_wrong} is the first wrong node so far", early)
        if process.returncode:
            yield WatchEvent("fault", f"{name}: ended with exit code {process.returncode}")
        yield from _judged(model, as_dump(log, name, patterns), how)


def _early(model: Opened, copy: Path, name: str, patterns: Sequence[str], how: Mapping[str, Any]) -> Finding | None:
    """The verdict on the output so far; None if it is not enough."""
    try:
        return _compare(model, as_dump(copy, name, patterns), how)
    except AssayError:
        return None


def _judged(model: Opened, dump: Dump, how: Mapping[str, Any]) -> Iterator[WatchEvent]:
    read: list[str] = []
    found = _compare(model, dump, how, read)
    yield from (WatchEvent("read", line) for line in read)
    yield WatchEvent("verdict", found.verdict, found)


def _compare(model: Opened, dump: Dump, how: Mapping[str, Any], read: list[str] | None = None) -> Finding:
    if not dump.tokens and not dump.prompt and not how["tokens"] and how["prompt"] is None:
        raise AssayError(f"{dump.source}: has no token ids; print them, or give --tokens or -p")
    found = diff(model, dump, **how, reading=read.append if read is not None else None)
    assert isinstance(found, Finding)
    return found
