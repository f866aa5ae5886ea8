"""`/v1/rerank`: score documents by how well they answer a query, in the form of Cohere and Jina. A request with `texts`
instead of `documents` is one of text-embeddings-inference (TEI) and gets the list that this server answers.

Two kinds of models can. A cross-encoder has a classification head (`pooling_type` 4), which scores query and document
read as one text. A causal model without a head (Qwen3-Reranker) is asked whether the document answers the query; the
score is the probability of `yes` against `no`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import Field, RootModel

from assay.models.blocks import RANK
from assay.models.token_types import has_second_type
from assay.runtime.params import SamplerParams
from assay.runtime.pooling import embedding_of
from assay.runtime.sequence import Job, Progress
from assay.serve.api import answers as common
from assay.serve.api import request_tokens
from assay.serve.api.schemas import LIMITS, Name, Schema, Text
from assay.serve.api.server_state import HttpCall
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import HttpReply, large_reply
from assay.serve.pool.models import ServedModel
from assay.serve.pool.update_queue import Backend, Reader

AT_ONCE = 16  # documents in the queue at once: a long list must not fill it
TEMPLATE = "tokenizer.chat_template.rerank"  # key of a file's own prompt, with {query} and {document}
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The prompt that Qwen3-Reranker was trained on.
QWEN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


class RerankText(Schema):
    text: Text


class RerankRequest(Schema):
    model: Name | None = Field(None, description="one of /v1/models; default: the first")
    query: Text
    documents: (
        Annotated[list[Text | RerankText], Field(min_length=1, max_length=LIMITS.documents, fail_fast=True)] | None
    ) = None
    texts: Annotated[list[Text], Field(min_length=1, max_length=LIMITS.documents, fail_fast=True)] | None = Field(
        None, description="instead of documents: the reply is a list, as TEI's"
    )
    return_text: bool | None = Field(None, description="with texts: repeat each text")
    top_n: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(None, description="results; default: all")
    return_documents: bool | None = None
    instruction: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="the task, for models that are asked; default: web search"
    )


class RerankResult(Schema):
    index: int
    relevance_score: float
    document: RerankText | None = None


class RerankResponse(Schema):
    id: str
    object: str
    model: str
    results: list[RerankResult]
    usage: dict[str, int]
    meta: dict[str, Any]


class TextScore(Schema):
    index: int
    score: float
    text: str | None = None


class RerankReply(RootModel[RerankResponse | list[TextScore]]):
    """Results for `documents`, or the list for `texts`."""


async def rerank(call: HttpCall, request: RerankRequest) -> HttpReply:
    state = call.state
    entry = state.models.find(request.model)
    if (request.documents is None) == (request.texts is None):
        found = "none" if request.documents is None else "both"
        raise ApiError(
            "invalid_value", f"documents: give documents, or texts as TEI has it (found {found})", "documents"
        )
    texts = [text if isinstance(text, str) else text.text for text in request.documents or request.texts or ()]
    request_tokens.check_length(len(request.query) + max(map(len, texts)), entry, "documents")
    jobs_of = _jobs_of(entry, request.query, request.instruction or INSTRUCTION, common.deadline(state.limits))
    worker = await call.stack.enter_async_context(state.models.use(entry))
    scores: list[float] = []
    tokens = 0
    for start in range(0, len(texts), AT_ONCE):
        part = texts[start : start + AT_ONCE]
        n_chars = sum(map(len, part)) + len(request.query) * len(part)
        jobs = await request_tokens.off_loop(state, n_chars, partial(_made, jobs_of, part))
        for found in jobs:
            request_tokens.check(found[0].ids, entry, room=0 if jobs_of.probes else 1, param="documents")
        rows = await _computed(call, worker, [job for found in jobs for job in found])
        each = len(jobs[0])
        scores += [jobs_of.score(rows[i * each : (i + 1) * each]) for i in range(len(part))]
        tokens += sum(len(found[0].ids) for found in jobs)
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: request.top_n]

    def reply() -> HttpReply:
        if request.texts is not None:
            more = [{"text": texts[i]} if request.return_text else {} for i in order]
            return large_reply([{"index": i, "score": scores[i], **m} for i, m in zip(order, more, strict=True)])
        results = [
            {"index": i, "relevance_score": scores[i]}
            | ({"document": {"text": texts[i]}} if request.return_documents else {})
            for i in order
        ]
        return large_reply(
            {
                "id": f"rerank-{common.Origin.of(call.headers).id}",
                "object": "list",
                "model": entry.id,
                "results": results,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}},
            }
        )

    return await state.threads.run("reply", reply)


def _made(scoring: _Scoring, texts: list[str]) -> list[list[Job]]:
    return [scoring.make(text) for text in texts]


async def cohere_rerank(call: HttpCall, request: RerankRequest) -> HttpReply:
    return await rerank(call, request)


async def _computed(call: HttpCall, worker: Backend, jobs: list[Job]) -> list[tuple[Progress, float]]:
    """The sequences, each with the log-probability of the token that it drew, if it drew one."""
    drawn = [math.nan] * len(jobs)
    with Reader(worker, jobs, call.state.limits.buffer, call.owner, call.pause) as reader:
        async for index, update in reader:
            if update.choice and update.choice.logprob is not None:
                drawn[index] = update.choice.logprob
    return list(zip(reader.sequences, drawn, strict=True))


class _Scoring:
    """How a model scores: the jobs of one document, and the score of their results."""

    def __init__(
        self, make: Callable[[str], list[Job]], score: Callable[[list[tuple[Progress, float]]], float], *, probes: bool
    ) -> None:
        self.make, self.score, self.probes = make, score, probes


def _jobs_of(entry: ServedModel, query: str, instruction: str, until: float) -> _Scoring:
    if entry.file.get_int(f"{entry.model.hparams.arch}.pooling_type", 0) == RANK:
        return _by_head(entry, query, instruction, until)
    return _by_question(entry, query, instruction, until)


def _by_head(entry: ServedModel, query: str, instruction: str, until: float) -> _Scoring:
    graph = entry.model.graph
    how = embedding_of(graph)
    labels = entry.file.metadata.get(f"{entry.model.hparams.arch}.classifier.output_labels") or ()
    yes = next((i for i, label in enumerate(labels) if str(label).lower() == "yes"), None)

    known = _Known(entry)

    def make(text: str) -> list[Job]:
        ids, second = (_asked(known, query, text, instruction), 0) if graph.generates else pair_ids(known, query, text)
        typed = second if has_second_type(graph) else 0
        return [Job(ids=tuple(ids), keep=(how.node,), pooling=how.pooling, deadline=until, second=typed)]

    def score(rows: list[tuple[Progress, float]]) -> float:
        pool = rows[0][0].pool
        assert pool is not None
        values = pool.row.tolist()
        if len(values) > 1 and yes is not None:  # against all other labels
            return 1 / sum(math.exp(value - values[yes]) for value in values)
        return _sigmoid(values[0])

    return _Scoring(make, score, probes=True)


def _by_question(entry: ServedModel, query: str, instruction: str, until: float) -> _Scoring:
    words = [entry.tokenizer.encode(word, add_special=False) for word in ("yes", "no")]
    if not entry.model.graph.generates or any(len(ids) != 1 for ids in words):
        raise ApiError(
            "unsupported",
            f"the model {entry.id} cannot rerank; serve a cross-encoder (pooling_type 4) or Qwen3-Reranker",
            "model",
        )
    # A sequence draws one token and reports its log-probability before any bias. The two share a prefix.
    known = _Known(entry)
    settings = [SamplerParams(temp=0.0, logit_bias=((ids[0], 1e4),)) for ids in words]

    def make(text: str) -> list[Job]:
        ids = tuple(_asked(known, query, text, instruction))
        return [Job(ids=ids, params=params, max_tokens=1, logprobs=0, deadline=until) for params in settings]

    def score(rows: list[tuple[Progress, float]]) -> float:
        (_, yes), (_, no) = rows
        return _sigmoid(yes - no)

    return _Scoring(make, score, probes=False)


class _Known:
    """The texts that all documents of a request share, each tokenized once: a query may be long."""

    def __init__(self, entry: ServedModel) -> None:
        self.entry = entry
        self._ids: dict[tuple[str, bool, bool], list[int]] = {}

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        key = text, add_special, parse_special
        if key not in self._ids:
            self._ids[key] = self.entry.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        return self._ids[key]


def _asked(known: _Known, query: str, text: str, instruction: str) -> list[int]:
    """The ids of the question whether a document answers a query."""
    entry = known.entry
    prompt = entry.file.get_str(TEMPLATE, None) or QWEN
    parts = {"{instruction}": instruction, "{query}": query}
    ids: list[int] = []
    for piece in filter(
        None, re.split(r"(\{instruction\}|\{query\}|\{document\})", prompt)
    ):  # the texts of a client contain no control tokens
        if piece == "{document}":
            ids += entry.tokenizer.encode(text, add_special=False, parse_special=False)
            continue
        ids += known.encode(
            parts.get(piece, piece), add_special=not ids and piece not in parts, parse_special=piece not in parts
        )
    return ids


def pair_ids(known: _Known, query: str, text: str) -> tuple[list[int], int]:
    """Query and document as an encoder reads them, and where the document begins.

    [CLS] query [SEP] document [SEP]; RoBERTa has two [SEP] in between."""
    tokenizer = known.entry.tokenizer
    first = known.encode(query, add_special=True, parse_special=False)
    second = tokenizer.encode(text, add_special=False, parse_special=False)
    end = first[-1:] if first and tokenizer.is_special(first[-1]) else []
    between = [] if tokenizer.is_word_piece else end
    before = [*first, *between]
    return [*before, *second, *end], len(before) if second or end else 0


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
