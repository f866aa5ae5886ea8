"""Answers of a server in a file, so that an audit that was stopped continues where it was.

The file has a line of JSON for each request: its path, its body, and the answer or the words of a refusal. An audit
with the same options asks the same requests in the same order. So the answers that are there are taken, and only the
rest is asked for. Equal requests have their answers in order. The key of the server is not in the file.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.errors import AssayError

FORMAT = "assay audit answers 1"
Body = Mapping[str, Any]


class KeptAnswers:
    """The answers of `url`; the file is made if it is missing. A last line that was cut off is removed."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.used = 0  # answers that were taken from the file
        self._kept: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        head = {"format": FORMAT, "url": url}
        raw = path.read_bytes() if path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        if not whole:
            if raw:
                raise AssayError(f"{path}: not the answers of an audit; name another file")
            self._append(head)
            return
        lines = [_line(path, number, text) for number, text in enumerate(whole.splitlines(), 1)]
        if lines[0] != head:
            found = lines[0].get("url", "no address") if lines[0].get("format") == FORMAT else "no answers of an audit"
            raise AssayError(f"{path}: of another endpoint (found {found}, expected {url}); name another file")
        for line in lines[1:]:
            self._kept[_key(line.get("path", ""), line.get("request", {}))].append(line)
        if len(whole) < len(raw):
            with path.open("r+b") as file:
                file.truncate(len(whole))

    def take(self, path: str, body: Body) -> dict[str, Any] | None:
        """The next answer to this request, or None. Raises the refusal that was kept in its place."""
        queue = self._kept.get(_key(path, body))
        if not queue:
            return None
        self.used += 1
        line = queue.popleft()
        if "refused" in line:
            raise AssayError(str(line["refused"]))
        answer = line.get("answer")
        return answer if isinstance(answer, dict) else {}

    def keep(self, path: str, body: Body, answer: Any) -> None:
        self._append({"path": path, "request": dict(body), "answer": answer})

    def keep_refusal(self, path: str, body: Body, words: str) -> None:
        self._append({"path": path, "request": dict(body), "refused": words})

    def _append(self, line: dict[str, Any]) -> None:
        try:
            with self.path.open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise AssayError(f"{self.path}: cannot write the answers ({error.strerror})") from None


def _key(path: Any, body: Any) -> str:
    return json.dumps([path, body], sort_keys=True)


def _line(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise AssayError(f"{path}:{number}: not an answer of an audit; name another file")
    return found
