"""Python processes without the time of their imports: forked from one process that has imported the package.

A server takes 0.9 s of processor time to start, nearly all of it imports. `Popen` and `run` are those of `subprocess`
for `python -m MODULE` and `python -c CODE`: a process of its own with its own arguments, environment, descriptors,
signals and exit code. Only the exec and the imports are missing, which a few tests keep: `test_install.py`,
`test_tutorial.py` and `cli/test_cli.py` start the command itself.

One helper process for each process of pytest, started with the first use. It has one thread, so what it forks has no
locks that are held. Where there is no fork, or with `ASSAY_TEST_EXEC=1`, every process is started as usual.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import pickle
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

AVAILABLE = sys.platform == "linux" and not os.environ.get("ASSAY_TEST_EXEC") and not sys.flags.no_site
_ROOT = Path(__file__).parents[1]
_REQUEST, _STATUS = 1 << 20, 32  # bytes of a message: arguments and environment; a process' number or status
# Options of `subprocess.Popen` that the helper keeps to; those of text concern the parent.
# Variables that are read before a program's first line: a process that has others than the helper is started as usual.
_READ_AT_START = re.compile(r"LD_|PYTHON(?!PATH$|IOENCODING$)|OPENBLAS_|MALLOC_|GLIBC_|LC_|LANG|TZ$")
_FORKED = {"stdin", "stdout", "stderr", "cwd", "env", "text", "encoding", "errors", "bufsize", "preexec_fn"}


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`; what the helper cannot fork is started as usual."""

    def __init__(self, args: Any, **given: Any) -> None:
        self._status: socket.socket | None = None
        words = [] if isinstance(args, (str, bytes)) else [os.fspath(word) for word in args]
        python = len(words) > 2 and words[0] == sys.executable and words[1] in ("-m", "-c")
        own = AVAILABLE and python and _FORKED.issuperset(given) and _starts_alike(given.get("env") or os.environ)
        self._words = words if own else []
        super().__init__(args, **given)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = rest
        request = {
            "words": self._words, "cwd": os.fspath(cwd or os.getcwd()), "env": dict(os.environ if env is None else env),
            "before": preexec_fn,
        }  # fmt: skip
        ends = [given if given != -1 else usual for given, usual in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2))]
        self._status = _helper().fork(request, ends) if self._words else None
        if self._status is None:
            return super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc, no-any-return]
        self.pid = int(self._status.recv(_STATUS))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        return None

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            self._take_status(os.WNOHANG)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        return self._take_status(wait_flags)

    def _take_status(self, wait_flags: int) -> tuple[int, int]:
        """As `os.waitpid`: the process and its status; 0 while it runs."""
        assert self._status is not None
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        found = self._status.recv(_STATUS)
        if not found:
            raise AssertionError("the process that forks others has ended")
        self._handle_exitstatus(int(found))  # type: ignore[attr-defined]
        self._status.close()
        return self.pid, int(found)


def run(
    command: Any, *, input: Any = None, capture_output: bool = False, timeout: float | None = None, check: bool = False,
    **given: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """`subprocess.run` of such a process."""
    given |= {"stdin": subprocess.PIPE} if input is not None else {}
    given |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with Popen(command, **given) as process:
        try:
            out, errors = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def _starts_alike(env: Mapping[str, str]) -> bool:
    return _read_at_start(env) == _read_at_start(_helper().env)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _READ_AT_START.match(name)}


class _Helper:
    """The process that forks, and the socket to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (own, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
        command = [sys.executable, "-m", "tests.forked", str(its.fileno())]
        self.env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads is not forked
        with its:
            self.process = subprocess.Popen(
                command, cwd=_ROOT, env=self.env, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL
            )
        self.socket = own
        atexit.register(self.end)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> socket.socket | None:
        """The socket on which the process' number and then its status come. None: the request is too long."""
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its, self.lock:
                socket.send_fds(self.socket, [pickle.dumps(request)], [its.fileno(), *descriptors])
        except OSError as error:
            own.close()
            if error.errno != errno.EMSGSIZE:
                raise
            return None
        return own

    def end(self) -> None:
        self.socket.close()
        self.process.wait()


_HELPERS: list[_Helper] = []
_STARTING = threading.Lock()


def _helper() -> _Helper:
    with _STARTING:
        if not _HELPERS:
            _HELPERS.append(_Helper())
        return _HELPERS[0]


# --- the helper


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for until the socket is closed. In a new process: its request."""
    ended, news = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(news)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then closes the socket
    running: dict[int, socket.socket] = {}
    asked = True
    while asked or running:
        ready = select.select([control, ended] if asked else [ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            _report(running)
        if control not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, _REQUEST, 4)
        if not data:
            asked = False
            continue
        pid = os.fork()
        if not pid:
            for end in (control, *running.values()):
                end.detach()  # `_enter` closes the descriptors; the objects must not close later ones of that number
            request: dict[str, Any] = pickle.loads(data)
            _enter(request, descriptors[1:])
            return request
        running[pid] = socket.socket(fileno=descriptors[0])
        running[pid].send(str(pid).encode())
        for number in descriptors[1:]:
            os.close(number)
    return None


def _report(running: dict[int, socket.socket]) -> None:
    """Send the status of each process that has ended."""
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            with running.pop(pid) as waiting, suppress(OSError):
                waiting.send(str(status).encode())


def _enter(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become the process that was asked for: descriptors, signals, environment, folder, arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for to, number in enumerate(descriptors):
        os.dup2(number, to)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update({os.fsdecode(key): os.fsdecode(value) for key, value in request["env"].items()})
    os.chdir(request["cwd"])
    if request["before"] is not None:
        request["before"]()
    errors = {"errors": "strict"} if os.environ.get("PYTHONIOENCODING") else {"errors": sys.stdout.errors}
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        how = {"errors": "backslashreplace", "buffering": 1} if number == 2 else errors
        stream = open(number, "w" if number else "r", encoding="utf-8", newline="\n", closefd=False, **how)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    words = [os.fsdecode(word) for word in request["words"]]
    sys.argv = [words[1], *words[3:]]
    given = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = request["cwd"] if words[1] == "-m" else ""
    sys.path[:] = [first, *given, *(path for path in sys.path[1:] if path not in given)]


def _main(words: list[bytes | str]) -> None:
    """`python -m MODULE` or `python -c CODE`."""
    if os.fsdecode(words[1]) == "-m":
        runpy.run_module(os.fsdecode(words[2]), run_name="__main__", alter_sys=True)
        return
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(os.fsdecode(words[2]), "<string>", "exec"), module.__dict__)


def _preload() -> None:
    """Import what servers and commands import."""
    for name in ("assay.cli.run", "assay.cli.diagnose", "assay.serve.server", "assay.verify.diagnosis.diagnose_dump"):
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads is not forked"
    gc.freeze()  # its collections do not touch, and so copy, what all processes share


if __name__ == "__main__":
    _preload()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        asked = _serve(control)
    if asked is not None:
        _main(asked["words"])
