"""Matchers in processes of their own: a grammar that takes long delays its own sequence and no other.

`MatcherProcesses` is the vocabulary process of one model, `CompiledGrammar` the process of one grammar, and `Matcher`
the process of one sequence (`matcher_program.py`). Nothing here waits for a process, except a first compilation and
`Matcher.mask` of a caller that did not ask `masked` before. The caller sends a token, computes the next logits, and
finds the mask ready.

Without `os.fork` a thread takes the place of a sequence's process. It keeps to the same budget, but a single token
cannot be interrupted.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.contract import Array
from assay.errors import AssayError
from assay.runtime import matcher_program as program
from assay.runtime.matcher_vocabulary import MatcherVocabulary
from assay.runtime.sequence_errors import GrammarError

_START_S = 60.0  # for the vocabulary process: it reads the whole vocabulary
_COMPILE_S = 10.0  # for a grammar that compiled in the sandbox within its limits
_KILLED = f"{program.OVER} (or it took more than {program.MEMORY >> 20} MiB)"
_ANSWER_S = 30.0  # for a token, on the wall clock: a process that was stopped or starved


class MatcherProcesses:
    """The processes of one model. Safe to call from any thread."""

    def __init__(self, path: Path, vocabulary: MatcherVocabulary) -> None:
        self._path, self._vocabulary = path, vocabulary
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False  # it has the vocabulary
        self._tokenizer: Any = None  # of this process, where it cannot fork

    def begin(self) -> None:
        """Start the vocabulary process unless it runs. Does not wait for it."""
        with self._lock:
            if hasattr(os, "fork") and (self._process is None or self._process.poll() is not None):
                self._start()

    def compile(self, lark: str) -> CompiledGrammar | str:
        """The process of a grammar, or the error in the grammar. Slow: do not call it on an event loop."""
        if not hasattr(os, "fork"):
            return self._compile_here(lark)
        self.begin()
        with self._lock:
            self._await_ready()
            assert self._control is not None
            ours, theirs = socket.socketpair()
            with theirs:
                _send_socket(self._control, theirs)
        ours.settimeout(_COMPILE_S)
        try:
            ours.sendall(_sized(lark.encode("utf-8", "surrogatepass")))
            found = _receive(ours)
        except OSError:
            found = "its process ended or took too long"
        if found != program.READY:
            ours.close()
            return found
        ours.setblocking(False)
        return CompiledGrammar(ours)

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        given = {
            "paths": [p for p in sys.path if p],
            "path": str(self._path.resolve()),
            "n_vocab": self._vocabulary.n_vocab,
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(program.__file__)), json.dumps(given)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd=os.path.abspath(os.sep),
                process_group=0,  # Ctrl-C must not reach it; in a new session its priority would not count
            )
        self._control, self._ready = ours, False

    def _await_ready(self) -> None:
        """Wait until the vocabulary process has the vocabulary, and check that it is the same one."""
        if self._ready or self._control is None:
            return
        self._control.settimeout(_START_S)
        try:
            found = _receive(self._control)
        except OSError:
            found = "its process did not start"
        if found != program.READY + self._vocabulary.digest:
            self.close()
            changed = "the model's file has changed since it was opened" if found.startswith(program.READY) else found
            raise AssayError(f"grammar: cannot be matched ({changed}); start again")
        self._ready = True

    def _compile_here(self, lark: str) -> CompiledGrammar | str:
        compiler = import_module("assay.runtime.compiler")
        with self._lock:
            self._tokenizer = self._tokenizer or self._vocabulary.wrapped()
        matcher = compiler.compiled(self._tokenizer, lark)
        return str(matcher.get_error()) if matcher.is_error() else CompiledGrammar(None, matcher)

    def close(self) -> None:
        """End the vocabulary process. Grammars and sequences that have a process keep it."""
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            process.wait()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class CompiledGrammar:
    """A grammar's process, which gives every sequence a process of its own."""

    def __init__(self, control: socket.socket | None, matcher: Any = None) -> None:
        self._control, self._matcher = control, matcher
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """False if the process has ended."""
        if self._control is None:
            return True
        try:
            return self._control.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def open(self) -> socket.socket:
        """The socket of a new sequence. Does not wait."""
        ours, theirs = socket.socketpair()
        if self._control is None:
            work = partial(program.attend, self._matcher.deep_copy(), theirs, kills=False)
            threading.Thread(target=work, name="assay-matcher", daemon=True).start()
        else:
            with theirs, self._lock:
                try:
                    _send_socket(self._control, theirs)
                except OSError:
                    ours.close()
                    raise
        ours.setblocking(False)
        return ours

    def __del__(self) -> None:
        if self._control is not None:
            self._control.close()


class Matcher:
    """The state of one sequence in a grammar. Not safe to use from several threads at once.

    Every method raises a GrammarError if the grammar's process has failed. It exists from `start` on.
    """

    def __init__(self, grammar: CompiledGrammar, param: str) -> None:
        self._grammar, self._param = grammar, param
        self._socket: socket.socket | None = None
        self._sent = self._settled = 0  # tokens
        self._unsent, self._got = bytearray(), bytearray()
        self._complete = False
        self._mask: bytes | None = None  # after `_sent` tokens
        self._error: GrammarError | None = None
        self._asked = 0.0  # when the next answer was asked for

    def start(self, tokens: Iterable[int] = ()) -> None:
        """Begin with tokens that were drawn before. A second call has no effect."""
        if self._socket is None and self._error is None:
            self._asked = time.monotonic()
            try:
                self._socket = self._grammar.open()
            except OSError as error:
                self._error = GrammarError(f"{self._param}: no process for it ({error}); try again", self._param)
            for token in tokens:
                self.accept(token)

    def accept(self, token: int) -> None:
        """Advance past a token. `settled` and then `masked` turn true later."""
        self.start()
        self._sent += 1
        self._mask, self._asked = None, time.monotonic()
        self._unsent += struct.pack("<I", token)
        self._flush()

    def settled(self) -> bool:
        """True if the grammar has taken every token: `complete` is known."""
        self._receive()
        return self._settled == self._sent

    def masked(self) -> bool:
        """True if the mask of the next token is here, or if the grammar allows no further token."""
        self.start()
        self._receive()
        return self._mask is not None or (self._complete and self._settled == self._sent)

    @property
    def complete(self) -> bool:
        """True if no further token is allowed, of the tokens that have settled."""
        return self._complete

    def mask(self, logits: Array) -> Array:
        """A copy of the logits with -inf for every token that is not allowed. Waits for the mask."""
        while self._mask is None and not Matcher.masked(self):
            wait([self], 1.0)
        if self._mask is None:
            raise GrammarError(f"{self._param}: allows no further token", self._param)
        bits = np.frombuffer(self._mask, np.uint8)
        allowed = np.unpackbits(bits, count=min(len(logits), 8 * len(bits)), bitorder="little").view(np.bool_)
        out = np.full_like(logits, -np.inf)
        np.copyto(out[: len(allowed)], logits[: len(allowed)], where=allowed)
        return out

    def fileno(self) -> int:
        """Readable when an answer arrives; -1 if there is nothing to wait for."""
        return self._socket.fileno() if self._socket is not None else -1

    def close(self) -> None:
        """End the process."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._error = self._error or GrammarError(f"{self._param}: closed", self._param)

    def __del__(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _flush(self) -> None:
        if self._socket is not None and self._unsent:
            with suppress(OSError):  # full; or broken, which reading tells
                del self._unsent[: self._socket.send(self._unsent)]

    def _receive(self) -> None:
        """Take what has arrived."""
        if self._error:
            raise self._error
        if self._socket is None:
            return
        self._flush()
        try:
            while data := self._socket.recv(1 << 17):
                self._got += data
                self._parse()
            self._fail(_KILLED)
        except BlockingIOError:
            if self._mask is None and not self._complete and time.monotonic() - self._asked > _ANSWER_S:
                self._fail(f"no answer from its process within {_ANSWER_S:g} s")
        except OSError:  # reset: the process ended before it read its last token
            self._fail(_KILLED)

    def _parse(self) -> None:
        got, head = self._got, program.HEADER
        while len(got) >= head.size:
            kind, count, size = head.unpack_from(got)
            if len(got) < head.size + size:
                return
            payload = bytes(got[head.size : head.size + size])
            del got[: head.size + size]
            if kind == program.FAILED:
                self._fail(payload.decode("utf-8", "replace"))
            elif kind == program.MASK:
                self._mask = payload if count == self._sent else None
            else:
                self._settled, self._complete = count, kind == program.COMPLETE
                self._asked = time.monotonic()

    def _fail(self, why: str) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._error = None, GrammarError(f"{self._param}: {why}", self._param)
        raise self._error


def wait(matchers: Iterable[Any], seconds: float) -> None:
    """Wait until one of the matchers has an answer, or the time is over."""
    numbers = {number for matcher in matchers if (number := matcher.fileno()) >= 0}
    if numbers:
        with selectors.DefaultSelector() as selector:
            for number in numbers:
                selector.register(number, selectors.EVENT_READ)
            selector.select(max(seconds, 0))


def _send_socket(control: socket.socket, passed: socket.socket) -> None:
    rights = array.array("i", [passed.fileno()])
    control.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def _sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _receive(connection: socket.socket) -> str:
    """One message with its length before it."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError("closed")
        data += part
    return data[4:].decode("utf-8", "replace")
