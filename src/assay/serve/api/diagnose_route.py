"""`/v1/diagnose`: diagnose another engine's dump or log lines against the definition of a model.

The work takes a whole core for seconds. So it runs in a separate process with low priority and limits on time and
memory, one at a time. The process is killed when the client disconnects.

A dump comes in the JSON body or as an upload (`http/upload.py`). A client that accepts `text/event-stream` gets events:

    event: progress     {"label": "comparing", "done": 12, "total": 448, "unit": "nodes"}
    event: result       the same object as without events
    event: error        {"error": …}
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from assay.serve.api.job_process import job_process
from assay.serve.api.schemas import Name, Schema, Text
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import PROGRESS, Event, Events, HttpReply
from assay.serve.http.upload import new_folder
from assay.serve.limits import ServerLimits
from assay.serve.pool.models import ServedModel

_SUFFIX = re.compile(r"\.(jsonl|npz|safetensors|log|txt)")
RESULT = 32 << 20  # bytes of a line of the process
_SHORT = 4096  # bytes of a line of progress


class DiagnoseRequest(Schema):
    """Exactly one of text and data; neither in the first line of an upload."""

    model: Name | None = None
    text: Text | None = Field(None, description="JSON lines, or the lines of a log")
    data: Text | None = Field(None, description="the file in base64")
    name: Name | None = Field(None, description="name of the file: .jsonl, .npz, .safetensors, .log or .txt")
    prompt: Annotated[str, Field(max_length=65536)] | None = Field(
        None, description="the text that the engine was given, if known"
    )


class NodeVerdictRow(Schema, wire="NodeVerdict"):
    name: str
    verdict: str
    own: bool | None
    known: str = Field(description="own, between, differs, inherited, noise or same; see docs/howto/read-a-report.md")
    explained_by: str | None
    nmse: float | None


class DiagnoseResponse(Schema):
    verdict: str
    words: str
    nodes: list[NodeVerdictRow]
    diagnosis: dict[str, Any]
    report: dict[str, Any] | None = Field(description="what the report shows: fixes, map, values; `report.js` draws it")


async def diagnose(call: HttpCall, request: DiagnoseRequest) -> HttpReply | Events:
    entry = call.state.models.find(request.model, exact=True)
    given = [source for source in (request.text, request.data, call.upload) if source is not None]
    if len(given) != 1:
        where = "an upload has neither text nor data" if call.upload else "give exactly one of text and data"
        raise ApiError("invalid_value", where, "text")
    suffix = Path(request.name or "").suffix.lower() or ".log"
    if not _SUFFIX.fullmatch(suffix):
        raise ApiError("invalid_value", "name: must end in .jsonl, .npz, .safetensors, .log or .txt", "name")
    dump = await call.state.threads.run("disk", lambda: _stored(call, request, suffix))
    if "text/event-stream" in call.headers.get("accept", ""):
        return Events(_events(call, entry, dump, request.prompt), PROGRESS)
    async for event in _events(call, entry, dump, request.prompt):
        if isinstance(event, bytes):
            return HttpReply(event)
    raise AssertionError("the last event is the result")


def _stored(call: HttpCall, request: DiagnoseRequest, suffix: str) -> Path:
    """The dump as a file in a folder of its own, with the suffix of its format."""
    path = call.upload
    if path is None:
        folder = call.stack.enter_context(new_folder())
        path = Path(folder) / "given"
        path.write_bytes(request.text.encode() if request.text is not None else _decoded(request.data or ""))
    with path.open("rb") as file:
        if request.name is None and request.data is None and file.read(4096).lstrip().startswith(b"{"):
            suffix = ".jsonl"
    return path.rename(path.with_name(f"dump{suffix}"))


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("invalid_value", "data: is not base64", "data") from None


async def _events(call: HttpCall, entry: ServedModel, dump: Path, prompt: str | None) -> AsyncIterator[Event]:
    """Progress, then the result as bytes."""
    state, limits = call.state, call.state.limits
    yield {"event": "progress", "label": "waiting for a turn", "done": 0, "total": 0, "unit": ""}
    await call.pause()
    job = {
        "model": str(entry.file.path.absolute()), "dump": str(dump), "prompt": prompt,
        "memory": limits.examine_memory, "tokens": limits.examine_tokens,
    }  # fmt: skip
    line = b""
    async with state.examining, job_process("assay.library.diagnose_process", job, RESULT) as process:
        try:
            async with asyncio.timeout(limits.examine_s):
                while next_line := await _line(process):
                    line = next_line
                    if progress := _progress(line):
                        yield progress
                        await call.pause()
                await process.wait()
        except TimeoutError:
            message = f"the dump could not be diagnosed within {limits.examine_s:g} s; dump fewer tokens or nodes"
            raise ApiError("deadline_exceeded", message) from None
    await state.threads.run("parse", lambda: _check(line, process.returncode or 0, entry, limits))
    yield line.strip()


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    try:
        return await process.stdout.readline()
    except ValueError:
        message = f"the diagnosis is too long (more than {RESULT >> 20} MiB); dump fewer nodes"
        raise ApiError("invalid_value", message, "text") from None


def _progress(line: bytes) -> dict[str, Any] | None:
    """A line of progress as an event; None for the result."""
    if len(line) > _SHORT or not line.startswith(b'{"event"'):
        return None
    try:
        found = json.loads(line)
        return {
            "event": "progress", "label": str(found["label"])[:200], "done": int(found["done"]),
            "total": int(found["total"]), "unit": str(found.get("unit", ""))[:20],
        }  # fmt: skip
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _check(line: bytes, code: int, entry: ServedModel, limits: ServerLimits) -> None:
    """Raise the error that the process has told, or that its end tells."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not {"verdict", "error"} & found.keys():
        if code < 0:  # a signal: it could not even raise MemoryError
            message = f"the diagnosis ended (signal {-code}); it may need more than {limits.examine_memory >> 20} MiB"
            raise ApiError("invalid_value", f"{message}; dump fewer tokens or nodes", "text")
        raise ApiError("internal_error", "the dump could not be diagnosed; `assay diagnose` shows the reason")
    if "error" in found:
        message = str(found["error"]).replace(str(entry.file.path), entry.id)
        raise ApiError("invalid_value", re.sub(r"/\S*/dump(?=\.)", "dump", message)[:2000], "text")
