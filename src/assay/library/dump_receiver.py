"""Receives one dump by HTTP and prints it: `python -m assay.library.dump_receiver PORT`.

`assay watch --http PORT` runs it as the engine's command, so that a page in a browser, which cannot be run as one, is
watched like any engine. It listens on this machine alone. Any page may post to it: what arrives is only judged.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from assay.errors import AssayError

TIMEOUT_S = 60  # for a sender that stops in the middle
_CHUNK = 1 << 20


class _Receiver(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    complete = False

    def do_OPTIONS(self) -> None:
        """A browser asks first whether its page may post here."""
        self._answer(204)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or not int(length):
            self._answer(411)
            return
        left, out = int(length), sys.stdout.buffer
        while left and (part := self.rfile.read(min(left, _CHUNK))):
            out.write(part)
            left -= len(part)
        out.flush()
        self._answer(204 if not left else 400)
        _Receiver.complete = True

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Methods", "POST")
        self.send_header("Access-Control-Allow-Headers", "Content-Type")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Standard output is the dump, and standard error would be taken for the engine's."""


def command(port: int) -> list[str]:
    """The command that receives one dump on this port."""
    return [sys.executable, "-m", __name__, str(port)]


def receive(port: int) -> None:
    """Wait for one dump and print it. Raises AssayError if the port is taken."""
    try:
        server = HTTPServer(("127.0.0.1", port), _Receiver)
    except OSError as error:
        raise AssayError(f"--http {port}: cannot listen there ({error.strerror}); choose another port") from None
    with server:
        while not _Receiver.complete:
            server.handle_request()


if __name__ == "__main__":
    try:
        receive(int(sys.argv[1]))
    except AssayError as error:
        sys.exit(str(error))
