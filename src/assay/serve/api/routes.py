"""The routes as a table: what each takes, gives and does. The OpenAPI document is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from assay.serve.api import schemas
from assay.serve.api.chat import chat
from assay.serve.api.completions import completions
from assay.serve.api.state import Call
from assay.serve.api.texts import apply_template, detokenize, embeddings, models, replicas, tokenize
from assay.serve.api.trace import trace
from assay.serve.errors import ApiError
from assay.serve.http.exchange import Handler, Reply, json_reply


@dataclass(frozen=True)
class RouteSpec:
    """One route. `request` None means it has no body; `response` None that it gives no JSON."""

    method: str
    path: str
    handler: Handler
    summary: str
    request: type[BaseModel] | None = None
    response: type[BaseModel] | None = None
    streams: bool = False
    loads: bool = False  # it needs a model in memory, so it can be full or too late


async def health(call: Call, _: Any) -> Reply:
    return json_reply({"status": "ok"})


async def ready(call: Call, _: Any) -> Reply:
    state = call.state.models
    if state.closing:
        raise ApiError("shutting_down", "the server is shutting down")
    if not state.ready:
        raise ApiError("model_not_loaded", "the model is being loaded", headers={"Retry-After": "1"})
    return json_reply({"status": "ok"})


async def metrics(call: Call, _: Any) -> Reply:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return Reply(generate_latest(call.state.registry), CONTENT_TYPE_LATEST)


async def document(call: Call, _: Any) -> Reply:
    return json_reply(call.state.openapi)


ROUTES: tuple[RouteSpec, ...] = (
    RouteSpec("GET", "/v1/models", models, "the models there are", response=schemas.ModelList),
    RouteSpec("GET", "/v1/replicas", replicas, "who computes: the replicas of a cluster, or this process",
              response=schemas.ReplicaList),
    RouteSpec("POST", "/v1/chat/completions", chat, "answer a conversation",
              schemas.ChatRequest, schemas.ChatResponse, streams=True, loads=True),
    RouteSpec("POST", "/v1/completions", completions, "continue a text, or score it",
              schemas.CompletionRequest, schemas.CompletionResponse, streams=True, loads=True),
    RouteSpec("POST", "/v1/embeddings", embeddings, "one vector for each text",
              schemas.EmbeddingRequest, schemas.EmbeddingResponse, loads=True),
    RouteSpec("POST", "/v1/trace", trace, "the values of chosen nodes, and the logit lens",
              schemas.TraceRequest, schemas.TraceResponse, loads=True),
    RouteSpec("POST", "/tokenize", tokenize, "text to ids", schemas.TokenizeRequest, schemas.TokenizeResponse),
    RouteSpec("POST", "/detokenize", detokenize, "ids to text",
              schemas.DetokenizeRequest, schemas.DetokenizeResponse),
    RouteSpec("POST", "/apply-template", apply_template, "the rendered prompt and its ids",
              schemas.TemplateRequest, schemas.TemplateResponse),
    RouteSpec("GET", "/health", health, "whether the server lives; needs no key", response=schemas.Health),
    RouteSpec("GET", "/ready", ready, "whether a model is loaded; 503 until then", response=schemas.Health),
    RouteSpec("GET", "/metrics", metrics, "Prometheus metrics"),
    RouteSpec("GET", "/openapi.json", document, "this document"),
)  # fmt: skip
