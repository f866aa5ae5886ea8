"""Ollama's routes that change which models there are: `/api/pull`, `/api/create`, `/api/copy`, `/api/delete`.

They need the server's key or `--allow-manage`. A model that is created is a preset of another one: its name, system
message and sampler settings. Copies are presets without settings. Both are kept in assay's folder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import Field

from assay.errors import AssayError
from assay.runtime import hf, hub, local, presets
from assay.runtime.model_names import find_name
from assay.runtime.registry_models import CATALOGUE
from assay.serve.api.schemas import Name, Schema, Text
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import LINES, Events, HttpReply, json_reply
from assay.serve.pool.models import Offer

_TOLD_S = 0.2  # between two lines about a download
_IGNORED = {"num_ctx", "num_predict", "num_keep", "seed"}  # parameters of Ollama that a preset does not have


class Naming(Schema):
    """A model under either of the names of the field."""

    model: Name | None = None
    name: Name | None = Field(None, description="the older name of `model`")
    stream: bool | None = Field(None, description="default true")


class PullRequest(Naming):
    insecure: bool | None = None


class DeleteRequest(Naming):
    pass


class CreateRequest(Naming):
    from_: Name | None = Field(None, alias="from", description="the model that it is a preset of")
    system: Text | None = None
    parameters: Annotated[dict[str, Any], Field(max_length=64)] | None = None


class CopyRequest(Schema):
    source: Name
    destination: Name


def _wanted(call: HttpCall, request: Naming) -> str:
    """The name in a request, which must be allowed to change something."""
    _check_allowed(call)
    name = request.model or request.name
    if not name:
        raise ApiError("invalid_value", "model: is missing", "model")
    return call.state.models.called(name)


def _check_allowed(call: HttpCall) -> None:
    if not call.state.manage:
        raise ApiError("not_allowed", "models are managed with a key or --allow-manage only; start the server with one")


async def pull(call: HttpCall, request: PullRequest) -> HttpReply | Events:
    name = _wanted(call, request)
    if name not in CATALOGUE and not find_name(name) and not hf.from_address(name).startswith("hf:"):
        raise ApiError(
            "model_not_found", f"{name!r:.80}: no such model; give a name of `assay search` or hf:…", "model"
        )
    await call.stack.enter_async_context(call.state.pulling)
    lines = _pull_lines(call, name)
    if request.stream is not False:
        return Events(lines, LINES)
    return json_reply([line async for line in lines][-1])


async def _pull_lines(call: HttpCall, name: str) -> AsyncIterator[dict[str, Any]]:
    told = ("", 0, 0)

    def progress(label: str, done: int, total: int) -> None:
        nonlocal told
        told = label, done, total

    yield {"status": "pulling manifest"}
    work = asyncio.ensure_future(asyncio.to_thread(hub.resolve, name, progress=progress))
    said: Any = None
    while not work.done():
        if told != said and told[2]:
            said = told
            yield {"status": f"pulling {told[0]}", "digest": told[0], "total": told[2], "completed": told[1]}
            await call.pause()
        await asyncio.wait([work], timeout=_TOLD_S)
    try:
        path = work.result()
    except AssayError as error:
        raise ApiError("model_not_found", str(error), "model") from None
    at = path.stat()
    if name not in call.state.models.entries:
        call.state.models.offers[name] = Offer(name, path, size=at.st_size, created=int(at.st_mtime))
    yield {"status": "verifying sha256 digest"}
    yield {"status": "success"}


async def delete(call: HttpCall, request: DeleteRequest) -> HttpReply:
    name, pool = _wanted(call, request), call.state.models
    if name not in pool.entries and name not in pool.offers:
        raise ApiError("model_not_found", f"model {name!r:.80} not found", "model")
    entry = pool.entries.get(name)
    if entry and entry.base is entry and not await pool.unload(entry):
        raise ApiError("rate_limit_exceeded", f"the model {name} is in use; try again later", "model")
    made = call.state.presets.pop(name, None)
    if made:
        await call.state.threads.run("disk", lambda: presets.store(call.state.presets.values()))
    elif name in pool.offers and pool.offers[name].preset:
        raise ApiError("unsupported", f"{name}: is a preset of a file; delete it there", "model")
    else:
        try:
            await call.state.threads.run("disk", lambda: local.remove(name))
        except AssayError as error:
            raise ApiError("unsupported", str(error), "model") from None
    await pool.forget(name)
    return json_reply({})


async def create(call: HttpCall, request: CreateRequest) -> HttpReply | Events:
    name = _wanted(call, request)
    source = call.state.models.called(request.from_ or "")
    given = request.parameters or {}
    settings = {key: value for key, value in given.items() if key not in _IGNORED}
    if isinstance(limit := given.get("num_predict"), int) and limit > 0:  # below 1: no limit
        settings["max_tokens"] = limit
    await _add_preset(call, name, source, {"system": request.system or "", **settings})
    if request.stream is False:
        return json_reply({"status": "success"})

    async def lines() -> AsyncIterator[dict[str, Any]]:
        yield {"status": f"using existing layer {source}"}
        yield {"status": "success"}

    return Events(lines(), LINES)


async def copy(call: HttpCall, request: CopyRequest) -> HttpReply:
    _check_allowed(call)
    source, name = call.state.models.called(request.source), request.destination
    await _add_preset(call, call.state.models.called(name), source, {})
    return json_reply({})


async def _add_preset(call: HttpCall, name: str, source: str, settings: dict[str, Any]) -> None:
    """Offer a preset of a model that the server has, and keep it."""
    pool = call.state.models
    if source not in pool.entries and source not in pool.offers:
        raise ApiError("model_not_found", f"model {source!r:.80} not found", "from")
    if (name in pool.entries or name in pool.offers) and name not in call.state.presets:
        raise ApiError("invalid_value", f"model: {name!r:.80} is another model; choose another name", "model")
    of = call.state.presets.get(source)
    model = of.model if of else _file_of(call, source)
    try:
        old: dict[str, Any] = {"system": of.system, "stop": list(of.stop), **of.sampler} if of else {}
        if of and of.max_tokens is not None:
            old["max_tokens"] = of.max_tokens
        made = presets.parse(name.removesuffix(":latest"), {"model": model, **old, **settings}, "preset")
    except AssayError as error:
        raise ApiError("invalid_value", str(error), "parameters") from None
    name = made.name
    await pool.forget(name)
    call.state.presets[name] = made
    await call.state.threads.run("disk", lambda: presets.store(call.state.presets.values()))
    pool.offers[name] = Offer(name, made.model, made, created=int(time.time()))


def _file_of(call: HttpCall, source: str) -> str:
    """The model of a preset: the offered name, or the path of a file that the server was given."""
    pool = call.state.models
    if source in pool.offers:
        offer = pool.offers[source]
        return str(offer.model)
    return str(pool.entries[source].file.path.resolve())
