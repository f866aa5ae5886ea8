"""Requests and responses as pydantic schemas. They validate requests and define the OpenAPI document.

Known fields are type-checked without coercion. Unknown fields are ignored, as OpenAI's clients expect, and named in a
header (`http/unknown_fields.py`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel
from pydantic_core import PydanticCustomError

from assay.runtime.params import SamplerParams
from assay.runtime.pictured_prompt import new_mark
from assay.serve.limits import ServerLimits

LIMITS = ServerLimits()  # the default limits, which the document states
_DEFAULT = SamplerParams()


class Schema(BaseModel):
    """Base of all schemas: types are not coerced, and numbers must be finite.

    A validator is built when its first request arrives: a server needs few of them, and to build all takes 0.1 s.

    `wire` is the name in the OpenAPI document where it differs from the class name.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True)

    def __init_subclass__(cls, wire: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if wire:
            cls.__name__ = cls.__qualname__ = wire


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=LIMITS.body)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Stop = Annotated[str, Field(min_length=1, max_length=LIMITS.stop_length)]


def _few_biases(value: Any) -> Any:
    """Refuse too many entries before each of them is checked: pydantic counts a dictionary last."""
    if isinstance(value, dict) and len(value) > LIMITS.bias:
        raise ValueError(f"too many entries (found {len(value)}, at most {LIMITS.bias})")
    return value


_BiasValue = Annotated[float, Field(ge=-100, le=100)] | Literal[False]
_BiasText = Annotated[str, Field(min_length=1, max_length=64)]
Bias = (
    Annotated[dict[_BiasText, _BiasValue], Field(max_length=LIMITS.bias), BeforeValidator(_few_biases)]
    | Annotated[
        list[Annotated[tuple[TokenId | _BiasText, _BiasValue], Field(strict=False)]],
        Field(max_length=LIMITS.bias, fail_fast=True),
    ]
)


# Parts of a message that are no text, under the names of each dialect.
_PICTURES = ("image", "image_url", "input_image")
_MEDIA = {
    **dict.fromkeys(_PICTURES, "images are"),
    **dict.fromkeys(("audio", "input_audio", "audio_url"), "audio is"),
    **dict.fromkeys(("file", "input_file", "document"), "files are"),
    **dict.fromkeys(("video", "video_url"), "videos are"),
}


def _no_media(value: Any) -> Any:
    """Refuse a part that is an image or another medium, by its name."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _MEDIA:
        raise PydanticCustomError("no_media", "{what} not supported by this model", {"what": _MEDIA[kind]})
    return value


def _only_pictures(value: Any) -> Any:
    """A part that is a picture in OpenAI's form, whichever dialect wrote it. Other media are refused by their name."""
    if not isinstance(value, dict) or value.get("type") not in _PICTURES:
        return _no_media(value)
    source, url = value.get("source"), value.get("image_url")
    if isinstance(source, dict) and isinstance(data := source.get("data"), str):
        kind = source.get("media_type")
        url = f"data:{kind if isinstance(kind, str) else ''};base64,{data}"
    elif isinstance(source, dict):
        url = source.get("url")
    elif isinstance(url, dict):
        url = url.get("url")
    return {"type": "image_url", "image_url": {"url": url if isinstance(url, str) else ""}}


NoMedia = BeforeValidator(_no_media)
OnlyPictures = BeforeValidator(_only_pictures)
Encoded = Annotated[str, Field(max_length=LIMITS.picture_body)]
Images = Annotated[list[Encoded], Field(max_length=LIMITS.pictures, fail_fast=True)]
MARK = new_mark()  # stands for a picture in a rendered conversation; no client knows it


# --- requests


class LoraScale(Schema):
    id: Annotated[int, Field(ge=0, lt=4096)]
    scale: Annotated[float, Field(ge=-1e4, le=1e4)]


LoraScales = Annotated[list[LoraScale], Field(max_length=64, fail_fast=True)]


class Sampling(Schema):
    """OpenAI's sampling settings, and the other samplers as extensions. Defaults are those of llama.cpp."""

    model: Name | None = Field(None, description="one of /v1/models; default: the first")
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description=f"default {_DEFAULT.temp}")
    top_p: Share | None = Field(None, description=f"default {_DEFAULT.top_p}")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Bias | None = Field(
        None, description="by token id, or by text for each of its tokens; also as pairs; false forbids a token"
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=LIMITS.stops, fail_fast=True)] | None = None
    n: Annotated[int, Field(ge=1, le=LIMITS.choices)] | None = None
    lora: LoraScales | None = Field(None, description="scales of adapters by number; those left out are not applied")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=4096)] | None = Field(None, description="accepted and ignored")

    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(None, description=f"default {_DEFAULT.top_k}; 0: all")
    min_p: Share | None = Field(None, description=f"default {_DEFAULT.min_p}")
    typical: Share | None = None
    top_n_sigma: Annotated[float, Field(ge=-1, le=100)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    ignore_eos: bool | None = Field(None, description="continue after the end-of-sequence token")
    grammar: Annotated[str, Field(max_length=LIMITS.schema)] | None = Field(None, description="GBNF or Lark")
    n_keep: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        None, description="first tokens that a context shift keeps, beside BOS; -1: the prompt; default --keep"
    )
    n_discard: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="tokens that a context shift drops at once; default 0: half"
    )
    timeout: Annotated[float, Field(ge=1, le=86400)] | None = Field(None, description="seconds until the deadline")


class StreamOptions(Schema):
    include_usage: bool | None = None


class TextPart(Schema):
    type: Literal["text"]
    text: Text


class ImageUrl(Schema):
    url: Encoded = Field(description="a data URL; http and https only with --allow-media-urls")


class ImagePart(Schema):
    type: Literal["image_url"]
    image_url: ImageUrl

    @property
    def text(self) -> str:
        """The marker of this part in the text of the message."""
        return MARK


class FunctionCall(Schema):
    name: Name
    arguments: Text = Field(description="a JSON object, as text")


class ToolCall(Schema):
    id: Name
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Schema, wire="Message"):
    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: (
        Text
        | Annotated[list[Annotated[TextPart | ImagePart, OnlyPictures]], Field(max_length=256, fail_fast=True)]
        | None
    ) = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=LIMITS.tools, fail_fast=True)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: Text | None = Field(None, description="the assistant's reasoning, for templates that include it")


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class Function(Schema):
    name: FunctionName
    description: Annotated[str, Field(max_length=65536)] | None = None
    parameters: dict[str, Any] | None = Field(None, description="a JSON schema")
    strict: bool | None = None


class Tool(Schema):
    type: Literal["function"]
    function: Function


class NamedFunction(Schema):
    name: Name


class NamedTool(Schema):
    type: Literal["function"]
    function: NamedFunction


class AllowedNames(Schema):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=LIMITS.tools, fail_fast=True)]


class AllowedTools(Schema):
    """A choice of some tools: the model is told of all, and may call these."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


class JsonSchema(Schema):
    name: Name | None = None
    description: Annotated[str, Field(max_length=65536)] | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class PlainFormat(Schema):
    type: Literal["text", "json_object"]


class SchemaFormat(Schema):
    type: Literal["json_schema"]
    json_schema: JsonSchema


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=LIMITS.messages, fail_fast=True)]
Tools = Annotated[list[Tool], Field(max_length=LIMITS.tools, fail_fast=True)]


class ChatRequest(Sampling):
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="default: as many as fit the context"
    )
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="newer name of max_tokens"
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LIMITS.logprobs)] | None = None
    response_format: PlainFormat | SchemaFormat | None = None
    tools: Tools | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedTools, Field(discriminator="type")] | None
    ) = None
    parallel_tool_calls: bool | None = Field(None, description="false: an answer has one call at most")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables of the chat template")
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = Field(
        None,
        description="a variable of the chat template (gpt-oss has low, medium and high); where the template has "
        "no such variable, none, minimal, low and medium allow 0, 256, 1024 and 4096 tokens of reasoning",
    )
    reasoning_format: Literal["auto", "deepseek", "none"] | None = Field(
        None, description="none leaves reasoning in the content; default: separate, in reasoning_content"
    )
    thinking_budget_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        None, description="tokens of reasoning, after which the server closes it; -1: no limit"
    )
    continue_final_message: bool | None = Field(
        None, description="the last message is the assistant's and is continued; default: a new one begins"
    )


Prompt = (
    Text
    | Annotated[list[TokenId], Field(min_length=1, max_length=LIMITS.body, fail_fast=True)]
    | Annotated[list[Text], Field(min_length=1, max_length=LIMITS.prompts, fail_fast=True)]
    | Annotated[
        list[Annotated[list[TokenId], Field(min_length=1, max_length=LIMITS.body, fail_fast=True)]],
        Field(min_length=1, max_length=LIMITS.prompts, fail_fast=True),
    ]
)


class CompletionRequest(Sampling):
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(None, description="default 16")
    echo: bool | None = Field(None, description="return the prompt, too; with logprobs and max_tokens 0 it is scored")
    logprobs: Annotated[int, Field(ge=0, le=LIMITS.logprobs)] | None = None
    best_of: Annotated[int, Field(ge=1, le=LIMITS.choices)] | None = Field(None, description="must equal n")
    suffix: Text | None = Field(
        None, description="text after the gap, for models that fill in; needs one text as prompt"
    )
    receipt: bool | None = Field(
        None, description="send hashes of the logits of every token, if the server has --browser (default: --receipts)"
    )


class EmbeddingRequest(Schema):
    model: Name | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="keep the first values and normalise again"
    )
    pooling: Literal["mean", "first", "last"] | None = Field(
        None, description="pooling over tokens; default: that of the file, else mean"
    )
    user: Annotated[str, Field(max_length=4096)] | None = None


class TokenizeRequest(Schema):
    model: Name | None = None
    content: Text
    add_special: bool | None = Field(None, description="add BOS and EOS as the model requires; default false")
    parse_special: bool | None = Field(None, description="recognise control tokens in the text; default true")
    with_pieces: bool | None = None


class DetokenizeRequest(Schema):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=LIMITS.body, fail_fast=True)]


class TemplateRequest(Schema):
    model: Name | None = None
    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TraceRequest(Schema):
    """Exactly one of prompt, messages and tokens."""

    model: Name | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    tokens: Annotated[list[TokenId], Field(min_length=1, max_length=LIMITS.trace_tokens, fail_fast=True)] | None = None
    nodes: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=256, fail_fast=True)] | None = Field(
        None, description="node names with wildcards * and ?; default: none with `lens`, else l_out-* and results"
    )
    first: Annotated[int, Field(ge=0, le=64)] | None = Field(None, description="first values of each node; default 10")
    lens: bool | None = Field(None, description="logit lens: the tokens that each layer's output predicts")
    top: Annotated[int, Field(ge=1, le=10)] | None = Field(
        None, description="tokens per position of the lens; default 3"
    )


# --- responses


class ErrorDetail(Schema):
    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(Schema):
    error: ErrorDetail


class PlainError(Schema):
    """An error in Ollama's form."""

    error: str


class TypedDetail(Schema):
    type: str
    message: str


class TypedError(Schema):
    """An error in Anthropic's form."""

    type: Literal["error"]
    error: TypedDetail


class LoadStatus(Schema):
    value: Literal["loaded", "loading", "unloaded"]


class ModelCard(Schema):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"] = Field(description="this and the next two are Anthropic's")
    display_name: str
    created_at: str
    loaded: bool
    status: LoadStatus = Field(description="as llama-server's router says it")
    context_length: int | None = Field(None, description="absent until the model is first used, as the next fields are")
    max_input_tokens: int | None = Field(None, description="the context, as Anthropic names it")
    max_model_len: int | None = Field(None, description="the context, as vLLM names it")
    max_tokens: int | None = Field(None, description="the most tokens of an answer: the context")
    n_params: int | None = None
    size: int
    template: bool | None = None
    browser: bool | None = Field(None, description="whether /browser/MODEL/ runs it in a client's browser")


class ModelList(Schema):
    object: Literal["list"]
    data: list[ModelCard]
    has_more: bool = Field(description="this and the next two are Anthropic's")
    first_id: str | None
    last_id: str | None


class ReplicaRow(Schema):
    model: str
    replica: str
    node: str
    state: str
    engine: str | None = None
    isa: str | None = None
    fingerprint: str | None = None
    running: int = 0
    waiting: int = 0
    streams: int = 0
    tokens: int = 0
    pages: int | None = None
    pages_available: int = 0
    state_slots: int = 0
    state_running: int = 0
    state_snapshots: int = 0
    state_bytes: int = 0
    lost: int = 0
    suspect: str = ""


class ReplicaList(Schema):
    object: Literal["list"]
    data: list[ReplicaRow]


class PromptDetails(Schema):
    cached_tokens: int


class CompletionDetails(Schema):
    reasoning_tokens: int


class Usage(Schema):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = Field(None, description="of chat completions")


class TopLogprob(Schema):
    token: str
    id: int
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Schema):
    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(Schema, wire="Answer"):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Schema):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class Timings(Schema):
    """An extension: durations of the request."""

    queued_s: float
    first_token_s: float
    tokens_per_second: float


class ChatResponse(Schema):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class CompletionLogprobs(Schema):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    ids: list[int]


class CompletionChoice(Schema):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionResponse(Schema):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings


class EmbeddingRow(Schema, wire="Embedding"):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Schema):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(Schema):
    object: Literal["list"]
    data: list[EmbeddingRow]
    model: str
    usage: EmbeddingUsage


class TokenPiece(Schema, wire="Piece"):
    id: int
    piece: str
    bytes: list[int]
    special: bool


class TokenizeResponse(Schema):
    tokens: list[int]
    pieces: list[TokenPiece] | None = None


class DetokenizeResponse(Schema):
    content: str


class TemplateResponse(Schema):
    prompt: str
    tokens: list[int]
    pieces: list[TokenPiece]


class NodeSummary(Schema):
    name: str
    op: str
    shape: list[int]
    first: list[float]
    rms: float
    mean: float
    min: float
    max: float
    sum: float
    top: list[list[float]] | None = Field(None, description="for logits: the best five, id and value")


class Guess(Schema):
    id: int
    piece: str
    p: float


class Lens(Schema):
    layers: list[str]
    positions: list[int]
    grid: list[list[list[Guess]]] = Field(description="layers × positions × guesses, the best first")


class TraceResponse(Schema):
    model: str
    tokens: list[int]
    pieces: list[TokenPiece]
    nodes: list[NodeSummary]
    lens: Lens | None = None


class Slots(RootModel[list[dict[str, Any]]]):
    """One row per possible sequence."""


class LoraAdapters(RootModel[list[dict[str, Any]]]):
    """The number, file and scale of each adapter."""


class EmbeddedRows(RootModel[list[dict[str, Any]] | EmbeddingResponse]):
    """The number of each text and its vectors; for a request with `input`, OpenAI's answer."""


class Health(Schema):
    status: Literal["ok", "loading", "shutting_down"]


Sampling.model_rebuild()
