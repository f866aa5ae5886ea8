"""Driving assay against strangers: real processes with a limit on their memory and their time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import forked, tiny
from tests.cli.conftest import here  # noqa: F401  the command without a process

SRC = Path(__file__).parents[2] / "src"
Bounded = Callable[..., subprocess.CompletedProcess[str]]
_STARTING = 3 << 29  # bytes of address space
ESCAPES = "\x1b\x07\x9b"


def bounded_memory(memory: int = 1 << 30) -> None:
    """Limit this process to so much memory beyond what starting takes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory + _STARTING, memory + _STARTING))


def bounded_environment() -> dict[str, str]:
    """Variables for a process that imports this checkout and computes with one thread."""
    paths = os.pathsep.join([str(SRC), str(SRC.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def bounded(
    *args: str | Path, memory: int = 1 << 30, seconds: float = 60, stdin: bytes = b"", **env: str
) -> subprocess.CompletedProcess[str]:
    """`python *args` in so much memory beyond what starting takes, and so much time; 124 is too late."""
    try:
        done = forked.run(
            [sys.executable, *["-S"] * sys.flags.no_site, *map(str, args)],
            input=stdin,
            capture_output=True,
            env={**bounded_environment(), **env},
            timeout=seconds,
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (memory + _STARTING,) * 2),
        )
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(late.cmd, 124, "", "took too long")
    out, errors = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, errors)


@pytest.fixture(scope="session")
def assay() -> Bounded:
    """`assay *args`, bounded."""
    return lambda *args, **options: bounded("-m", "assay", *args, **options)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("hostile") / "tiny.gguf")


def one_line(done: subprocess.CompletedProcess[str]) -> None:
    """A fault of the user's making, told as one: exit code 2, one line, nothing that a terminal obeys."""
    assert done.returncode == 2, (done.returncode, done.stderr[-2000:])
    last = done.stderr.splitlines()[-1]
    assert last.startswith("assay: ") and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert not any(c in done.stderr for c in ESCAPES)
