"""Routes for tokenizing, detokenizing, rendering templates, embeddings, and the list of models."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from assay.errors import AssayError
from assay.runtime.pictured_prompt import MEDIA
from assay.runtime.pooling import check_dimensions, embedding_of
from assay.runtime.sequence import Job, Progress
from assay.serve.api import answers as common
from assay.serve.api import request_tokens
from assay.serve.api.request_pictures import urls_of, with_pictures
from assay.serve.api.schemas import (
    MARK,
    DetokenizeRequest,
    EmbeddingRequest,
    ReplicaList,
    ReplicaRow,
    TemplateRequest,
    TokenizeRequest,
)  # fmt: skip
from assay.serve.api.server_state import HttpCall, State
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import HttpReply, json_reply, large_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Reader


async def models(call: HttpCall, _: None) -> HttpReply:
    pool = call.state.models
    cards = [_card(entry, call.state) for entry in pool.entries.values()]
    unopened = {"loaded": False, "status": {"value": "unloaded"}}
    cards += [_named(offer.name, offer.created) | unopened | {"size": offer.size} for offer in pool.unopened]
    ends = {"first_id": cards[0]["id"] if cards else None, "last_id": cards[-1]["id"] if cards else None}
    return json_reply({"object": "list", "data": cards, "has_more": False, **ends})


async def model(call: HttpCall, _: None) -> HttpReply:
    return json_reply(_card(call.state.models.find(call.path["model"], exact=True), call.state))


def _named(name: str, created: int) -> dict[str, Any]:
    """The fields of OpenAI's card of a model, and those of Anthropic's."""
    at = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {
        "id": name, "object": "model", "created": created, "owned_by": "assay", "type": "model", "display_name": name,
        "created_at": at,
    }  # fmt: skip


def load_status(entry: ServedModel) -> str:
    """In llama-server's words."""
    return "loaded" if entry.base.worker else "loading" if entry.base.loading else "unloaded"


def _card(entry: ServedModel, state: State) -> dict[str, Any]:
    return _named(entry.id, entry.created) | {
        "loaded": entry.base.worker is not None,
        "status": {"value": load_status(entry)},
        "context_length": entry.n_ctx,
        "max_input_tokens": entry.n_ctx,
        "max_model_len": entry.n_ctx,
        "max_tokens": entry.n_ctx,
        "n_params": entry.n_params,
        "size": entry.file.size,
        "template": entry.template is not None,
        "browser": state.plans is not None,
    }


async def replicas(call: HttpCall, _: None) -> HttpReply:
    """The replicas of a cluster, or this process, one row each."""
    rows = [
        ReplicaRow.model_validate({"model": entry.id} | row)
        for entry in call.state.models.entries.values()
        for row in (entry.worker.rows() if entry.worker else ())
    ]
    return json_reply(ReplicaList(object="list", data=rows))


async def tokenize(call: HttpCall, request: TokenizeRequest) -> HttpReply:
    state, text = call.state, request.content
    entry = state.models.find(request.model)
    if len(text) > state.limits.text:
        message = f"content: too long (found {len(text)} characters, at most {state.limits.text})"
        raise ApiError("invalid_value", message, "content")

    def work() -> HttpReply:
        special = request.parse_special is not False
        ids = entry.tokenizer.encode(text, add_special=bool(request.add_special), parse_special=special)
        shown = pieces(entry, ids, state.limits.pieces, "with_pieces") if request.with_pieces else None
        return large_reply({"tokens": ids, "pieces": shown})

    found: HttpReply = await request_tokens.off_loop(state, len(text), work)
    return found


ROW = {"id": -1, "piece": "[image]", "bytes": list[int](), "special": True}  # of a picture, among the pieces


def pieces(entry: ServedModel, ids: Sequence[int], most: int, param: str) -> list[dict[str, Any]]:
    """Every token with its bytes. Limited, because the response is about a hundred times as long as the ids."""
    if len(ids) > most:
        raise ApiError(
            "invalid_value", f"{param}: too many tokens for their pieces (found {len(ids)}, at most {most})", param
        )
    return [
        {
            "id": token,
            "piece": (piece := common.piece_of(entry, token)).decode("utf-8", "replace"),
            "bytes": list(piece),
            "special": token < entry.tokenizer.n_vocab and entry.tokenizer.is_special(token),
        }
        if token >= 0
        else ROW
        for token in ids
    ]


async def detokenize(call: HttpCall, request: DetokenizeRequest) -> HttpReply:
    entry = call.state.models.find(request.model)
    n_vocab = entry.tokenizer.n_vocab
    if len(request.tokens) > (most := call.state.limits.ids):
        raise ApiError("invalid_value", f"tokens: too many (found {len(request.tokens)}, at most {most})", "tokens")
    if (wrong := max(request.tokens, default=0)) >= n_vocab:
        raise ApiError("invalid_value", f"tokens: {wrong} is not in the vocabulary of {n_vocab}", "tokens")
    found: HttpReply = await request_tokens.off_loop(
        call.state, len(request.tokens), lambda: json_reply({"content": entry.tokenizer.decode(request.tokens)})
    )
    return found


async def apply_template(call: HttpCall, request: TemplateRequest) -> HttpReply:
    """The prompt as text and as the ids that `/v1/chat/completions` would compute."""
    entry = call.state.models.find(request.model)
    chat = request_tokens.RenderInput(
        request.messages, tools=request.tools, variables=request.chat_template_kwargs or {},
        add_generation_prompt=request.add_generation_prompt is not False,
    )  # fmt: skip
    text = await request_tokens.chat_text(call.state, entry, chat)
    ids: Sequence[int]
    if urls := urls_of(chat.messages):
        ids, _ = await with_pictures(call.state, entry, text, urls, counted=True)
        text, ids = text.replace(MARK, MEDIA), [max(token, -1) for token in ids]
    else:
        ids = await request_tokens.rendered_ids(call.state, entry, text)
    most = call.state.limits.pieces
    found: HttpReply = await request_tokens.off_loop(
        call.state, len(text),
        lambda: large_reply({"prompt": text, "tokens": ids, "pieces": pieces(entry, ids, most, "messages")}),
    )  # fmt: skip
    return found


async def embed_texts(
    call: HttpCall,
    request: EmbeddingRequest,
    reply: Callable[[list[dict[str, Any]], str, int], HttpReply],
    *,
    truncate: bool = False,
) -> HttpReply:
    """One normalised vector per text, pooled as the request or else the file says.

    With `truncate` a text that is longer than the context is cut at its end, otherwise it is refused.
    `reply` makes the reply from the rows, the model's name and the number of tokens, off the event loop.
    """
    state = call.state
    entry = state.models.find(request.model)
    how = embedding_of(entry.model.graph, request.pooling)
    try:
        check_dimensions(request.dimensions, how.width)
    except AssayError as error:
        raise ApiError("invalid_value", str(error), "dimensions") from None
    given = request.input
    if truncate:
        listed = [given] if isinstance(given, str) else given
        given = [request_tokens.cut_text(text, entry) for text in listed if isinstance(text, str)]
    texts = await request_tokens.prompt_ids(state, entry, given)
    if truncate:
        texts = [request_tokens.cut_ids(ids, entry) for ids in texts]
    for ids in texts:
        request_tokens.check(ids, entry, room=0, param="input")
        await asyncio.sleep(0)  # other requests go on between two long texts
    worker = await call.stack.enter_async_context(state.models.use(entry))
    until = common.deadline(state.limits)
    jobs = [Job(ids=tuple(ids), keep=(how.node,), pooling=how.pooling, deadline=until) for ids in texts]
    reader = call.stack.enter_context(Reader(worker, jobs, state.limits.buffer, call.owner, call.pause))
    async for _ in reader:
        pass
    as_text = request.encoding_format == "base64"

    def row(index: int, sequence: Progress) -> dict[str, Any]:
        assert sequence.pool
        vector = sequence.pool.vector(request.dimensions)
        value = base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_text else vector.tolist()
        return {"object": "embedding", "index": index, "embedding": value}

    total = sum(map(len, texts))
    return await state.threads.run(
        "reply", lambda: reply([row(i, sequence) for i, sequence in enumerate(reader.sequences)], entry.id, total)
    )


def _openai_embeddings(rows: list[dict[str, Any]], model: str, tokens: int) -> HttpReply:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return large_reply({"object": "list", "data": rows, "model": model, "usage": usage})


async def embeddings(call: HttpCall, request: EmbeddingRequest) -> HttpReply:
    return await embed_texts(call, request, _openai_embeddings)
