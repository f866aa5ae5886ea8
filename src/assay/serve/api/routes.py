"""The route table: path, request, response and handler of each route. The OpenAPI document is generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from assay.serve.api import llama_server, manage, messages, ollama, router, schemas, slot_files
from assay.serve.api.chat_completions import chat
from assay.serve.api.completions import completions
from assay.serve.api.diagnose_route import DiagnoseRequest, DiagnoseResponse, diagnose
from assay.serve.api.fim import FimRequest, fim
from assay.serve.api.rerank import RerankReply, RerankRequest, cohere_rerank, rerank
from assay.serve.api.responses import InputTokens, ResponsesRequest, input_tokens, responses
from assay.serve.api.server_state import HttpCall
from assay.serve.api.status import Status, status
from assay.serve.api.texts import apply_template, detokenize, embeddings, model, models, replicas, tokenize
from assay.serve.api.trace_route import trace
from assay.serve.api_errors import ApiError
from assay.serve.http.exchange import Handler, HttpReply, json_reply

SSE, NDJSON = "text/event-stream", "application/x-ndjson"


@dataclass(frozen=True)
class RouteSpec:
    """One route. A route without a body has no `request`; one whose JSON another program defines has no `response`."""

    method: str
    path: str
    handler: Handler
    summary: str
    request: type[BaseModel] | None = None
    response: type[BaseModel] | None = None
    streams: str = ""  # the media type of a streamed answer
    uploads: bool = False  # takes a file, as in `http/upload.py`
    loads: bool = False  # needs a loaded model, so it can fail for lack of memory or time


async def health(call: HttpCall, _: Any) -> HttpReply:
    return json_reply({"status": "ok"})


async def ready(call: HttpCall, _: Any) -> HttpReply:
    state = call.state.models
    if state.closing:
        raise ApiError("shutting_down", "the server is shutting down")
    if not state.ready:
        raise ApiError("model_not_loaded", "the model is being loaded", headers={"Retry-After": "1"})
    return json_reply({"status": "ok"})


async def metrics(call: HttpCall, _: Any) -> HttpReply:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return HttpReply(generate_latest(call.state.registry), CONTENT_TYPE_LATEST)


async def document(call: HttpCall, _: Any) -> HttpReply:
    return HttpReply(await call.state.threads.run("text", call.state.openapi))  # the first time it is generated


ROUTES: tuple[RouteSpec, ...] = (
    RouteSpec("GET", "/v1/models", models, "list the models", response=schemas.ModelList),
    RouteSpec("GET", "/v1/models/{model}", model, "one model", response=schemas.ModelCard),
    RouteSpec("GET", "/v1/replicas", replicas, "list the replicas of a cluster, or this process",
              response=schemas.ReplicaList),
    RouteSpec("POST", "/v1/chat/completions", chat, "answer a conversation",
              schemas.ChatRequest, schemas.ChatResponse, streams=SSE, loads=True),
    RouteSpec("POST", "/v1/responses", responses, "answer a conversation of items, OpenAI's newer API",
              ResponsesRequest, streams=SSE, loads=True),
    RouteSpec("POST", "/v1/responses/input_tokens", input_tokens, "count the tokens of a conversation of items",
              ResponsesRequest, InputTokens),
    RouteSpec("POST", "/v1/messages", messages.messages, "answer a conversation, Anthropic's API",
              messages.MessagesRequest, streams=SSE, loads=True),
    RouteSpec("POST", "/v1/messages/count_tokens", messages.count_tokens, "count the tokens of a conversation",
              messages.CountRequest, messages.TokenCount),
    RouteSpec("POST", "/v1/completions", completions, "continue a text, or score it",
              schemas.CompletionRequest, schemas.CompletionResponse, streams=SSE, loads=True),
    RouteSpec("POST", "/v1/fim/completions", fim, "Mistral: fill in between two texts",
              FimRequest, streams=SSE, loads=True),
    RouteSpec("POST", "/v1/embeddings", embeddings, "embed texts",
              schemas.EmbeddingRequest, schemas.EmbeddingResponse, loads=True),
    RouteSpec("POST", "/v1/rerank", rerank, "score documents by how well they answer a query",
              RerankRequest, RerankReply, loads=True),
    RouteSpec("POST", "/v2/rerank", cohere_rerank, "the same, where Cohere's client asks",
              RerankRequest, RerankReply, loads=True),
    RouteSpec("POST", "/v1/trace", trace, "trace the values of nodes; logit lens",
              schemas.TraceRequest, schemas.TraceResponse, loads=True),
    RouteSpec("POST", "/v1/diagnose", diagnose, "diagnose the dump of an engine",
              DiagnoseRequest, DiagnoseResponse, streams=SSE, uploads=True),
    RouteSpec("POST", "/tokenize", tokenize, "tokenize a text", schemas.TokenizeRequest, schemas.TokenizeResponse),
    RouteSpec("POST", "/detokenize", detokenize, "detokenize ids",
              schemas.DetokenizeRequest, schemas.DetokenizeResponse),
    RouteSpec("POST", "/apply-template", apply_template, "render the chat template",
              schemas.TemplateRequest, schemas.TemplateResponse),
    RouteSpec("POST", "/completion", llama_server.completion, "llama-server: continue a text",
              llama_server.LlamaCompletionRequest, streams=SSE, loads=True),
    RouteSpec("POST", "/infill", llama_server.infill, "llama-server: fill in between two texts",
              llama_server.InfillRequest, streams=SSE, loads=True),
    RouteSpec("POST", "/embedding", llama_server.embedding, "llama-server: embed texts",
              llama_server.LlamaEmbeddingRequest, schemas.EmbeddedRows, loads=True),
    RouteSpec("GET", "/props", llama_server.props, "llama-server: properties and defaults of the first model"),
    RouteSpec("GET", "/slots", llama_server.slots, "llama-server: the running sequences", response=schemas.Slots),
    RouteSpec("GET", "/lora-adapters", llama_server.lora_adapters, "llama-server: the adapters of the first model",
              response=schemas.LoraAdapters),
    RouteSpec("POST", "/lora-adapters", llama_server.set_lora_adapters, "llama-server: set the scales of adapters",
              llama_server.LoraAdaptersRequest),
    RouteSpec("POST", "/slots/{slot}", slot_files.slot_action,
              "llama-server: save, restore or erase the tokens of a slot, ?action=", slot_files.SlotRequest),
    RouteSpec("POST", "/api/chat", ollama.ollama_chat, "Ollama: answer a conversation",
              ollama.OllamaChatRequest, streams=NDJSON, loads=True),
    RouteSpec("POST", "/api/generate", ollama.generate, "Ollama: answer a prompt",
              ollama.OllamaGenerateRequest, streams=NDJSON, loads=True),
    RouteSpec("POST", "/api/embed", ollama.embed, "Ollama: embed texts",
              ollama.OllamaEmbedRequest, loads=True),
    RouteSpec("GET", "/api/tags", ollama.tags, "Ollama: list the models"),
    RouteSpec("POST", "/api/show", ollama.show, "Ollama: describe a model", ollama.OllamaShowRequest),
    RouteSpec("GET", "/api/ps", ollama.ollama_ps, "Ollama: list the loaded models"),
    RouteSpec("GET", "/api/version", ollama.ollama_version, "Ollama: the version"),
    RouteSpec("POST", "/api/embeddings", ollama.old_embeddings, "Ollama: embed one text, the older route",
              ollama.OllamaOldEmbedRequest, loads=True),
    RouteSpec("POST", "/api/pull", manage.pull, "Ollama: download a model", manage.PullRequest, streams=NDJSON),
    RouteSpec("POST", "/api/create", manage.create, "Ollama: make a preset of a model", manage.CreateRequest,
              streams=NDJSON),
    RouteSpec("POST", "/api/copy", manage.copy, "Ollama: offer a model under another name", manage.CopyRequest),
    RouteSpec("DELETE", "/api/delete", manage.delete, "Ollama: delete a model or a preset", manage.DeleteRequest),
    RouteSpec("GET", "/models", router.router_models, "llama-server: the models, and which are loaded"),
    RouteSpec("POST", "/models/load", router.load_model, "llama-server: load a model", router.LoadRequest,
              streams=SSE, loads=True),
    RouteSpec("POST", "/models/unload", router.unload_model, "llama-server: unload a model", router.UnloadRequest),
    RouteSpec("GET", "/v1/status", status, "current streams, queue depth, cache use and speed", response=Status),
    RouteSpec("GET", "/health", health, "liveness of the server; needs no key", response=schemas.Health),
    RouteSpec("GET", "/ready", ready, "whether a model is loaded; 503 until then", response=schemas.Health),
    RouteSpec("GET", "/metrics", metrics, "Prometheus metrics"),
    RouteSpec("GET", "/openapi.json", document, "this document"),
)  # fmt: skip

# Further paths, of llama-server and of clients without `/v1` in their address, each for one of the paths above.
# They are not in the OpenAPI document.
ALIASES: dict[str, str] = {
    "/chat/completions": "/v1/chat/completions",
    "/responses": "/v1/responses",
    "/responses/input_tokens": "/v1/responses/input_tokens",
    "/fim/completions": "/v1/fim/completions",
    "/completions": "/completion",
    "/embeddings": "/embedding",
    "/rerank": "/v1/rerank",
    "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank",
    "/v1/health": "/health",
}
