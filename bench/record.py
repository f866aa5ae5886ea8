"""Record what a client sends to a server: a proxy that passes every request on and keeps it.

    python bench/record.py OUT.json --client "Name 1.2" --to http://127.0.0.1:8080 --port 8090

`GET /~what/some text` names the requests that follow. Ctrl-C or SIGTERM writes OUT.json, in the form of
`tests/data/recordings`: method, path, the headers that a server may read, body, status and kind of the answer.

Keys are replaced. A request that differs from another one in its ids alone is kept once. `tools` of a body is the
number of a list of tools. A text over 60 characters becomes its number and length, `«7 1200»`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

KEPT = re.compile(r"(accept|user-agent|authorization|api-key|x-api-key|anthropic-.*|x-openwebui-.*)$")
HOPS = {"connection", "transfer-encoding", "keep-alive", "content-length", "host"}
KINDS = {"application/json": "json", "text/event-stream": "events", "application/x-ndjson": "lines"}
LONGEST = 60
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Recorder(ThreadingHTTPServer):
    """The proxy's state: the requests so far and the name of the next ones."""

    daemon_threads = True

    def __init__(self, port: int, to: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.to = urlsplit(to)
        self.what = ""
        self.found: list[dict[str, Any]] = []
        self.tools: list[Any] = []
        self.texts: dict[str, str] = {}
        self.lock = threading.Lock()

    def keep(self, entry: dict[str, Any]) -> None:
        with self.lock:
            entry = self.plain(entry)
            if (tools := entry.get("body", {}).get("tools")) is not None:
                if tools not in self.tools:
                    self.tools.append(tools)
                entry["body"]["tools"] = self.tools.index(tools)
            if not any({**entry, "what": ""} == {**other, "what": ""} for other in self.found):
                self.found.append(entry)

    def plain(self, value: Any) -> Any:
        """The value without long texts and without ids that each run draws anew."""
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if not isinstance(value, str):
            return value
        value = IDS.sub("00000000-0000-4000-8000-000000000000", value)
        if len(value) <= LONGEST:
            return value
        return self.texts.setdefault(value, f"«{len(self.texts) + 1} {len(value)}»")


class Handler(BaseHTTPRequestHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"

    def handle_one(self) -> None:
        if self.path.startswith("/~what/"):
            self.server.what = unquote(self.path.removeprefix("/~what/"))
            self.send_response(204)
            self.end_headers()
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        to = self.server.to
        upstream = http.client.HTTPConnection(to.hostname or "", to.port, timeout=600)
        given = {name: value for name, value in self.headers.items() if name.lower() not in HOPS | {"accept-encoding"}}
        upstream.request(self.command, self.path, body or None, given)
        reply = upstream.getresponse()
        kind = (reply.getheader("Content-Type") or "").partition(";")[0]
        entry: dict[str, Any] = {"what": self.server.what, "request": [self.command, self.path]}
        headers = {name.lower(): value for name, value in self.headers.items() if KEPT.match(name.lower())}
        entry["headers"] = {
            name: "Bearer none" if name == "authorization" else value for name, value in headers.items()
        }
        if body:
            entry["body"] = json.loads(body)
        self.server.keep(entry | {"status": reply.status, "answer": KINDS.get(kind, kind)})
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in HOPS:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while chunk := reply.read1(65536):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        upstream.close()

    do_GET = do_POST = do_DELETE = do_HEAD = handle_one

    def log_message(self, format: str, *args: Any) -> None:
        print(self.server.what, "|", format % args, flush=True)


def shown(client: str, tools: list[Any], found: list[dict[str, Any]]) -> str:
    """The recording as JSON with a line for each list of tools and each request."""
    rows = [",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in part) for part in (tools, found)]
    return f'{{\n "client": {json.dumps(client)},\n "tools": [\n{rows[0]}\n ],\n "requests": [\n{rows[1]}\n ]\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--client", required=True, help="its name and version")
    parser.add_argument("--to", default="http://127.0.0.1:8080", help="the server")
    parser.add_argument("--port", type=int, default=8090)
    given = parser.parse_args()
    recorder = Recorder(given.port, given.to)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        recorder.serve_forever()
    finally:
        given.out.write_text(shown(given.client, recorder.tools, recorder.found))


if __name__ == "__main__":
    main()
