"""The program of the processes that match grammars; started by `matchers.py`.

    vocabulary process   has llguidance and the model's vocabulary, reads nothing of a client; a copy of it is
      grammar process    a grammar of a client, compiled; a copy of it is
        sequence process a matcher at one place of one answer: tokens in, masks out

Some grammars make a single token cost seconds, and llguidance can neither be interrupted nor does it release
Python's lock. A sequence process can be killed without harm to any other sequence, so each one limits its own processor
time. The kernel ends a process that exceeds the limit (`ITIMER_PROF`), and its parent's end of the socket closes.

A sequence's socket carries token ids (u32) one way and `HEADER`s with a payload the other way:

    ACCEPTED | COMPLETE   after each token: the number of tokens so far
    MASK                  unless complete: the number of tokens so far, and one bit for each token of the vocabulary
    FAILED                a message; the last frame
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

HEADER = struct.Struct("<BII")  # kind, tokens so far, bytes that follow
ACCEPTED, COMPLETE, MASK, FAILED = range(4)
TOKEN_S = 1.0  # processor time of one token, at most
BURST_S, SHARE_S = 2.0, 0.05  # and of n tokens together: BURST_S + n * SHARE_S
_KIND_S, _KIND_SHARE_S = 0.1, 0.004  # a sequence that takes more than this is computed with the lowest priority
MEMORY = 1 << 30  # bytes of address space beyond the vocabulary's
READY = "ready:"  # begins the first message of a process that can take work; any other message is an error
OVER = (
    f"takes too long (more than {TOKEN_S:g} s of processor time for a token, or {BURST_S:g} s and {SHARE_S:g} s a "
    "token in all); write it with fewer ways to match the same text"
)


class Budget:
    """The processor time of one sequence. `kills`: this process belongs to the sequence and ends when it is spent."""

    def __init__(self, *, kills: bool) -> None:
        self._kills = kills
        self._clock = time.process_time if kills else time.thread_time
        self._used, self._started, self._polite = 0.0, 0.0, False

    def begin(self, n_tokens: int) -> bool:
        """Start the clock for one token. False if nothing is left."""
        left = min(TOKEN_S, BURST_S + n_tokens * SHARE_S - self._used)
        if left <= 0:
            return False
        self._started = self._clock()
        if self._kills:
            signal.setitimer(signal.ITIMER_PROF, left)
        return True

    def end(self, n_tokens: int) -> None:
        self._used += self._clock() - self._started
        if not self._kills:
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not self._polite and self._used > _KIND_S + n_tokens * _KIND_SHARE_S:
            self._polite = True
            os.nice(19)


def attend(matcher: Any, connection: socket.socket, *, kills: bool) -> None:
    """Serve one sequence until its socket closes."""
    budget, rest, count, complete = Budget(kills=kills), b"", 0, False

    def send(kind: int, payload: bytes = b"") -> None:
        connection.sendall(HEADER.pack(kind, count, len(payload)) + payload)

    def fail(message: str) -> None:
        send(FAILED, " ".join(message.split())[:300].encode("utf-8", "replace"))

    while True:
        # No mask is needed if the grammar allows no token, or if the next token is already here.
        if not complete and not rest and not select.select([connection], [], [], 0)[0]:
            if not budget.begin(count):
                return fail(OVER)
            bits = matcher.compute_bitmask()
            budget.end(count)
            if matcher.is_error():
                return fail(matcher.get_error())
            send(MASK, bits)
        data = connection.recv(1 << 16)
        if not data:
            return None
        rest += data
        whole = len(rest) - len(rest) % 4
        for (token,) in struct.iter_unpack("<I", rest[:whole]):
            if not budget.begin(count):
                return fail(OVER)
            accepted = matcher.consume_token(token)
            count += 1
            budget.end(count)
            if not accepted:
                return fail(matcher.get_error())
            complete = matcher.is_stopped()
            send(COMPLETE if complete else ACCEPTED)
        rest = rest[whole:]


def main() -> None:
    """The vocabulary process. Standard input is a socket; each byte on it brings the socket of a new grammar."""
    given = json.loads(sys.argv[1])
    sys.path[:] = given["paths"]
    control = _socket(0)
    import assay.runtime.compiler as compiler
    from assay.runtime.matcher_vocabulary import MatcherVocabulary
    from assay.system import confine

    try:
        vocabulary = MatcherVocabulary.of_file(given["path"], given["n_vocab"])
        tokenizer = vocabulary.wrapped()
    except Exception as error:
        control.sendall(_message(f"{type(error).__name__}: {error}"))
        return
    compiler.compiled(tokenizer, 'start: "a" /[0-9]+/ %json {"type": "boolean"}').compute_bitmask()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for its copies
    memory = _address_space() + MEMORY
    confine.confine(memory, further=confine.FORKS, descriptors=64)
    control.sendall(_message(f"{READY}{vocabulary.digest}"))
    for connection in _copies(control):
        _serve_grammar(tokenizer, connection, compiler, lambda: confine.confine(memory, further=confine.SOCKETS))


def _serve_grammar(tokenizer: Any, control: socket.socket, compiler: Any, confine: Callable[[], Any]) -> None:
    """The grammar process: its socket brings the grammar's text, then the sockets of sequences."""
    (size,) = struct.unpack("<I", _read(control, 4))
    matcher = compiler.compiled(tokenizer, _read(control, size).decode())
    control.sendall(_message(matcher.get_error() if matcher.is_error() else READY))
    for connection in _copies(control):
        confine()
        with suppress(OSError):  # the answer is not wanted any more
            attend(matcher, connection, kills=True)


def _copies(control: socket.socket) -> Iterator[socket.socket]:
    """Copy this process for every socket that arrives. Yields only in a copy, once, and then ends the copy.

    The copy's standard input is the socket.
    """
    gc.collect()
    gc.freeze()  # copies share the pages that no process writes
    while True:
        try:
            word, fds, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            return
        if not word:
            return
        if fds:
            try:
                child = os.fork()
            except OSError:  # too many processes: the socket closes, which its owner sees
                child = 1
            if child == 0:
                control.detach()
                os.dup2(fds[0], 0)
                os.close(fds[0])
                try:
                    yield _socket(0)
                finally:
                    os._exit(0)
            os.close(fds[0])


def _socket(number: int) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=number)


def _message(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return struct.pack("<I", len(data)) + data


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _address_space() -> int:
    """Bytes of address space in use; 0 if the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, AttributeError):
        return 0


if __name__ == "__main__":
    main()
