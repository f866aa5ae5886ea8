"""Uploads: a file of a client goes to the disk part by part, never into memory.

    POST /v1/diagnose
    Content-Type: application/vnd.assay.upload

    {"name": "dump.npz", "prompt": "…"}     one line of JSON: the request
    …                                       then the bytes of the file

A browser sends this with `new Blob([JSON.stringify(request), "\\n", file])`, also without reading the file into memory.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from assay.serve.api_errors import ApiError
from assay.serve.http.body import Body, Parts, over
from assay.serve.http.json_counts import JsonCounts
from assay.serve.limits import ServerLimits

UPLOAD = "application/vnd.assay.upload"
LINE = 512 << 10  # bytes of the first line
WRITTEN = 1 << 20  # bytes written at a time

Run = Callable[[str, Callable[[], Any]], Awaitable[Any]]


async def receive_upload(body: Parts, limits: ServerLimits, folder: Path, run: Run) -> tuple[Body, Path]:
    """The first line of an upload, and the file with the rest of it, in `folder`."""
    arriving = _Upload(limits)
    path = folder / "upload"
    file: IO[bytes] = await run("disk", lambda: path.open("xb"))
    try:
        async with asyncio.timeout(limits.upload_s):
            async for part in body:
                arriving.add(part)
                if len(arriving.held) >= WRITTEN:
                    await _write(file, arriving, run)
        line = arriving.line
        if line is None:
            raise ApiError("invalid_json", "an upload begins with one line of JSON; then follows the file")
        await _write(file, arriving, run)
        return line, path
    except TimeoutError:
        raise ApiError("request_timeout", f"the upload did not arrive within {limits.upload_s:g} s") from None
    except OSError as error:
        raise ApiError(
            "overloaded", f"the upload cannot be stored ({error.strerror})", headers={"Retry-After": "30"}
        ) from None
    finally:
        await run("disk", file.close)


async def _write(file: IO[bytes], arriving: _Upload, run: Run) -> None:
    data, arriving.held = arriving.held, bytearray()
    await run("disk", lambda: file.write(data))


class _Upload:
    """An upload that arrives part by part."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._found = 0
        self.line: Body | None = None
        self.held = bytearray()  # bytes that are not written yet

    def add(self, part: bytes) -> None:
        self._found += len(part)
        if self._found > self._limits.upload:
            raise ApiError("body_too_large", f"the upload is too large (at most {self._limits.upload >> 20} MiB)")
        self.held += part
        if self.line is not None:
            return
        end = self.held.find(b"\n")
        if end < 0 and len(self.held) <= LINE:
            return
        if not 0 <= end <= LINE:
            raise ApiError("invalid_json", f"the first line of the upload is too long (at most {LINE >> 10} KiB)")
        counts = JsonCounts()
        counts.feed(bytes(self.held[:end]))
        if fault := over(counts, self._limits):
            raise fault
        self.line = Body(bytes(self.held[:end]), counts)
        del self.held[: end + 1]


async def discard(body: Parts, limits: ServerLimits) -> None:
    """Read the rest of a refused upload: a client that is cut off while sending never reads the response."""
    found = 0
    with suppress(TimeoutError, ApiError):
        async with asyncio.timeout(limits.body_s):
            async for part in body:
                found += len(part)
                if found > limits.upload:
                    return


def new_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one upload, closed to other users."""
    return tempfile.TemporaryDirectory(prefix="assay-")
