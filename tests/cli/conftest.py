"""Driving the real command: a process with its own argv, stdin and exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.cli import main
from tests import forked, tiny

SRC = Path(__file__).parents[2] / "src"
Assay = Callable[..., subprocess.CompletedProcess[str]]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="session")
def assay() -> Assay:
    """Run `assay` with these arguments; stdin is empty unless given, as text or bytes."""

    def run(*args: str | bytes | Path, stdin: str | bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
        done = forked.run(
            [sys.executable, "-m", "assay", *args],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env={**environment(), **env},
            timeout=120,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Assay:
    """The same without a process: for what does not concern one."""

    def run(*args: str | Path, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        out, errors = capfd.readouterr()
        return subprocess.CompletedProcess(args, code, out, errors)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny whole model with a chat template."""
    return tiny.make(tmp_path_factory.mktemp("cli") / "tiny.gguf")


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a template."""
    return tiny.make(tmp_path_factory.mktemp("cli") / "base.gguf", template=None)
