"""`/v1/fim/completions`: fill in between two texts, as Mistral's API does. Editors use it for completion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import Field

from assay.serve.api import answers as common
from assay.serve.api.llama_server import Text, continue_text, infill_ids, text_of
from assay.serve.api.schemas import Text as AnyText
from assay.serve.api.server_state import HttpCall
from assay.serve.http.exchange import Events, HttpReply, json_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader


class FimRequest(Text):
    prompt: AnyText = Field(description="the text before the gap")
    suffix: AnyText | None = Field(None, description="the text after the gap; without it the prompt is continued")
    random_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(None, description="another name of seed")


async def fim(call: HttpCall, request: FimRequest) -> HttpReply | Events:
    entry = call.state.models.find(request.model)
    if request.suffix:
        ids = await infill_ids(call, entry, request.prompt, request.suffix)
    else:
        ids = await text_of(call, entry, request.prompt)
    if request.seed is None:
        request.seed = request.random_seed
    origin = common.Origin.of(call.headers)
    reader = await continue_text(call, entry, ids, request)
    if request.stream:
        return Events(_chunks(entry, reader, origin))
    text, finish = "", "stop"
    async for _, update in reader:
        text, finish = text + update.text, update.finish or finish
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    head = common.heading("chat.completion", "fim", entry.id, origin)
    return json_reply(head | {"choices": [choice], "usage": common.usage(reader.sequences)})


async def _chunks(entry: ServedModel, reader: Reader, origin: common.Origin) -> AsyncIterator[dict[str, Any]]:
    """Every chunk has a text, because Continue reads it from each; the last one has the usage."""
    head = common.heading("chat.completion.chunk", "fim", entry.id, origin)
    role = {"role": "assistant"}
    async for _, update in reader:
        if update.text or update.finish:
            choice = {"index": 0, "delta": role | {"content": update.text}, "finish_reason": update.finish}
            role = {}
            yield head | {"choices": [choice]} | ({"usage": common.usage(reader.sequences)} if update.finish else {})
