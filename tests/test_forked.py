"""Processes that are forked instead of started: what a caller of `subprocess` sees is the same."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from tests import forked

SHOW = """
import json, os, resource, sys
out = [__name__, sys.argv, os.getcwd(), os.environ.get("MARK"), "HOME" in os.environ, sys.stdin.read()]
out += [resource.getrlimit(resource.RLIMIT_NOFILE)[0], sorted(map(int, os.listdir("/proc/self/fd")))[:3], sys.path[0]]
out += [sys.stdout.isatty(), sys.stdout.encoding, sys.stderr.errors]
print(json.dumps(out)); print("said \\udcff", file=sys.stderr); sys.exit(3)
"""
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "code": (["-c", SHOW, "a", "b c"], {"input": "given\r\n", "text": True}),
    "bytes, a folder, an environment": (["-c", SHOW], {"input": b"x", "cwd": "/", "env": {**os.environ, "MARK": "m"}}),
    "a limit": (["-c", SHOW], {
        "input": b"", "preexec_fn": partial(resource.setrlimit, resource.RLIMIT_NOFILE, (99, 99)),
    }),
    "a module": (["-m", "assay", "--version"], {}),
    "a fault": (["-m", "assay", "run", "nope.gguf", "-p", "x"], {}),
    "a path": (["-c", "import sys; print(sys.path[:2]); import late"], {"env": {**os.environ, "PYTHONPATH": "no"}}),
}  # fmt: skip


@pytest.mark.skipif(not forked.AVAILABLE, reason="processes are not forked here")
@pytest.mark.parametrize("case", CASES)
def test_a_forked_process_is_as_one_that_is_started(case: str) -> None:
    words, given = CASES[case]
    command = [sys.executable, *words]
    own = forked.run(command, capture_output=True, **given)
    usual = subprocess.run(command, capture_output=True, check=False, **given)
    assert (own.returncode, own.stdout) == (usual.returncode, usual.stdout)
    assert _last(own.stderr) == _last(usual.stderr)


def _last(said: Any) -> Any:
    """The last line: a traceback has other frames, and `-m` names its interpreter."""
    lines = said.splitlines() or [b""]
    return lines[-1].rpartition("python: " if isinstance(lines[-1], str) else b"python: ")[2]


def test_signals_and_ends() -> None:
    sleep = [sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(100)"]
    for sent, code in ((signal.SIGTERM, -15), (signal.SIGKILL, -9)):
        with forked.Popen(sleep, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline() == "up\n" and process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
            process.send_signal(sent)
            assert process.wait(30) == code == process.poll()
    with forked.Popen(sleep, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(sleep, timeout=0.1, stdout=subprocess.DEVNULL)


def test_a_session_of_its_own_is_started_as_usual() -> None:
    code = "import os; print(os.getsid(0) == os.getpid())"
    assert forked.run([sys.executable, "-c", code], capture_output=True, start_new_session=True).stdout == b"True\n"


def test_a_variable_that_is_read_at_the_start_is_kept_to() -> None:
    code = "import sys; sys.exit(sys.flags.dev_mode)"
    assert forked.run([sys.executable, "-c", code], env={**os.environ, "PYTHONDEVMODE": "1"}).returncode == 1


def test_many_at_once() -> None:
    commands = [[sys.executable, "-c", f"import sys; sys.exit({i})"] for i in range(8)]
    processes = [forked.Popen(command) for command in commands]
    assert [process.wait(30) for process in reversed(processes)] == list(range(7, -1, -1))
    assert os.getpid() not in {process.pid for process in processes}
