"""An HTTP server in this process whose answers a function gives: what a client meets on the way to an engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What goes over the wire. A reply without a code closes the connection."""

    code: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def said(found: Mapping[str, Any]) -> Reply:
    return Reply(200, json.dumps(found).encode())


Answer = Callable[[str, dict[str, Any], Mapping[str, str]], Reply]  # path, body and headers of a request


@contextmanager
def http_server(answer: Answer) -> Iterator[str]:
    """The address of a server that runs until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = answer(self.path, body, self.headers)
            if not reply.code:
                return
            self.send_response(reply.code)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
