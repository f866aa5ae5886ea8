"""llama-server's routes about models in memory: `/models`, `/models/load`, `/models/unload`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from pydantic import Field

from assay.serve.api.ollama import find
from assay.serve.api.schemas import Name, Schema
from assay.serve.api.server_state import HttpCall
from assay.serve.api.texts import load_status
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import BARE, Events, HttpReply, json_reply
from assay.serve.pool.models import ServedModel

_POLL_S = 0.1  # between two looks at the progress of loading


class LoadRequest(Schema):
    model: Name
    stream: bool | None = Field(None, description="answer with server-sent events about the progress")


class UnloadRequest(Schema):
    model: Name


async def router_models(call: HttpCall, _: None) -> HttpReply:
    pool = call.state.models
    found = [_row(entry.id, load_status(entry), entry.created, entry.file.path.name) for entry in pool.entries.values()]
    found += [_row(offer.name, "unloaded", offer.created, "") for offer in pool.unopened]
    return json_reply({"object": "list", "data": found})


def _row(name: str, status: str, created: int, path: str) -> dict[str, Any]:
    return {
        "id": name, "object": "model", "owned_by": "assay", "created": created, "in_cache": True, "path": path,
        "status": {"value": status, "args": []},
    }  # fmt: skip


async def load_model(call: HttpCall, request: LoadRequest) -> HttpReply | Events:
    entry = find(call, request.model, exact=True)
    if request.stream:
        return Events(_load_events(call, entry), BARE)
    async with call.state.models.use(entry):
        return json_reply({"success": True})


async def _load_events(call: HttpCall, entry: ServedModel) -> AsyncIterator[dict[str, Any]]:
    """How far loading is, whenever that changes, then the end of it."""

    async def load() -> None:
        async with call.state.models.use(entry):
            pass

    loading = asyncio.ensure_future(load())
    try:
        said: Any = None
        while not loading.done():
            # Before it begins it waits for memory, and the progress is that of an earlier load.
            label, done, total = entry.base.progress if entry.base.loading else ("", 0, 0)
            event = {"model": entry.id, "status": "loading", "label": label, "done": done, "total": total}
            if event != said and not entry.base.worker:
                said = event
                yield event
                await call.pause()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(loading), _POLL_S)
        loading.result()
        yield {"model": entry.id, "status": "loaded"}
    finally:
        loading.cancel()


async def unload_model(call: HttpCall, request: UnloadRequest) -> HttpReply:
    entry = find(call, request.model, exact=True)
    if call.state.models.is_resident(entry) and not call.state.manage:
        raise ApiError("not_allowed", f"{entry.id}: the server was started with it; it needs a key or --allow-manage")
    if not await call.state.models.unload(entry):
        raise ApiError("rate_limit_exceeded", f"the model {entry.id} is in use; try again later", "model")
    return json_reply({"success": True})
