"""`/v1/diagnose`: diagnose another engine's dump or log lines against the definition of a model.

The work takes a whole core for seconds. So it runs in a separate process with low priority and a time limit, one at a
time. The process is killed when the client disconnects.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from assay.serve.api.schemas import Name, Schema, Text
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import HttpReply, json_reply

_SUFFIX = re.compile(r"\.(jsonl|npz|safetensors|log|txt)")


class DiagnoseRequest(Schema):
    """Exactly one of text and data."""

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
    explained_by: str | None
    nmse: float | None


class DiagnoseResponse(Schema):
    verdict: str
    words: str
    nodes: list[NodeVerdictRow]
    diagnosis: dict[str, Any]


async def diagnose(call: HttpCall, request: DiagnoseRequest) -> HttpReply:
    entry = call.state.models.find(request.model)
    if (request.text is None) == (request.data is None):
        raise ApiError("invalid_value", "give exactly one of text and data", "text")
    suffix = Path(request.name or "").suffix.lower() or ".log"
    if not _SUFFIX.fullmatch(suffix):
        raise ApiError("invalid_value", "name: must end in .jsonl, .npz, .safetensors, .log or .txt", "name")
    if request.text is not None and request.name is None and request.text.lstrip().startswith("{"):
        suffix = ".jsonl"
    content = request.text.encode() if request.text is not None else _decoded(request.data or "")
    async with call.state.examining:
        found = await _examine(entry.file.path, content, suffix, request.prompt, call.state.limits.examine_s)
    if "error" in found:
        message = str(found["error"]).replace(str(entry.file.path), entry.id)
        raise ApiError("invalid_value", re.sub(r"/\S*/dump(?=\.)", "dump", message)[:2000], "text")
    return json_reply(found)


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("invalid_value", "data: is not base64", "data") from None


async def _examine(model: Path, content: bytes, suffix: str, prompt: str | None, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        dump = Path(folder) / f"dump{suffix}"
        dump.write_bytes(content)
        command = [sys.executable, "-m", "assay.library.diagnose_process", str(model.absolute()), str(dump)]
        process = await asyncio.create_subprocess_exec(
            *command, *([prompt] if prompt is not None else ()), stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, process.pid, 5)
        try:
            async with asyncio.timeout(seconds):
                out, _ = await process.communicate()
        except TimeoutError:
            raise ApiError("deadline_exceeded", f"the dump could not be diagnosed within {seconds:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    try:
        found = json.loads(out)
    except ValueError:
        raise ApiError("internal_error", "the dump could not be diagnosed; `assay diagnose` shows the reason") from None
    return found if isinstance(found, dict) else {"error": "no answer"}
