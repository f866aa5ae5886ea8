"""`assay serve --browser`: the page of `assay export-web` for each served model, under /browser/MODEL/.

    index.html and other assets   from the package
    plan.json, packed.bin         made by a separate process when they are first asked for (`browser_plans.py`)
    model.gguf                    the model's own file, in pieces; by Range where the client asks for a part

This gives the weights to every client of the server, so it is off by default.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from assay.gguf import GGUFFile
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import HttpReply, Pieces

READ = 1 << 20  # bytes of a file that are read at once
_ASSETS = Path(__file__).parents[2] / "library" / "website"
_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
}  # fmt: skip
_FRESH = {"Cache-Control": "no-cache"}


async def first_page(call: HttpCall, _: Any) -> HttpReply:
    """To the page of the first model."""
    where = f"/browser/{quote(call.state.models.default.id, safe='')}/"
    return HttpReply(b"", "text/plain", 307, {"Location": where, **_FRESH})


async def site_file(call: HttpCall, _: Any) -> HttpReply | Pieces:
    """One file of a model's page."""
    state, name = call.state, call.path.get("file", "index.html")
    entry = state.models.find(call.path["model"], exact=True)
    if name in ("plan.json", "packed.bin"):
        assert state.plans is not None  # else the route does not exist
        folder = await state.plans.folder(entry)
        return await _from_disk(call, folder / name)
    if name.endswith(".gguf"):
        return await _from_disk(call, _model_file(entry.file, name))
    found = _ASSETS / name
    if found.parent != _ASSETS or found.suffix not in _TYPES or not found.is_file():
        raise ApiError("not_found", f"{name!r:.60}: no such file of a page")
    return HttpReply(found.read_bytes(), _TYPES[found.suffix], headers=_FRESH)


def _model_file(file: GGUFFile, name: str) -> Path:
    """The part of a model that a page calls by this name (`library/web_export.py`)."""
    count = len(file.parts)
    names = ["model.gguf"] if count == 1 else [f"model-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    if name not in names:
        raise ApiError("not_found", f"{name!r:.60}: no such file of this model")
    return file.parts[names.index(name)].path


async def _from_disk(call: HttpCall, path: Path) -> HttpReply | Pieces:
    """A file, or the part of it that the request's Range names. It is read in a thread, a piece at a time."""
    await call.stack.enter_async_context(call.state.downloads)
    run = call.state.threads.run
    try:
        file = await run("disk", partial(path.open, "rb", buffering=0))
    except OSError:
        raise ApiError("not_found", f"{path.name}: the file is no longer there") from None
    call.stack.callback(file.close)
    size = os.fstat(file.fileno()).st_size
    headers = {"Accept-Ranges": "bytes", **_FRESH}
    status, first, end = 200, 0, size
    if asked := _asked(call.headers.get("range", ""), size):
        status, (first, end) = 206, asked
        if first >= size:
            return HttpReply(b"", "text/plain", 416, {"Content-Range": f"bytes */{size}"})
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(first, end, READ):
            count = min(READ, end - at)
            data = await run("disk", partial(os.pread, file.fileno(), count, at))
            if len(data) != count:
                raise OSError(f"{path.name}: the file became shorter")
            yield data

    return Pieces(pieces(), end - first, _TYPES.get(path.suffix, "application/octet-stream"), status, headers)


def _asked(header: str, size: int) -> tuple[int, int] | None:
    """The first byte and the end of a Range header with one range; None for the whole file."""
    found = re.fullmatch(r"bytes=(\d{1,19})-(\d{0,19})", header.strip())
    if not found:
        return None
    first, end = int(found[1]), int(found[2]) + 1 if found[2] else size
    return (first, min(end, size)) if first < end or first >= size else None
