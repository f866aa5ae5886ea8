"""The routes of other servers, translated to and from OpenAI's completions and chat completions.

The client speaks the two OpenAI routes. A dialect stands in for one of them: it says the same request in the words of
another route, and gives the answer back in OpenAI's form. Touch this module to add a dialect: a row of `DIALECTS`.

    completions        text in, text out; log-probabilities
    generate           Text Generation Inference; log-probabilities of up to 5 tokens by default
    chat completions   messages in, a message out; log-probabilities
    responses          OpenAI's responses; log-probabilities
    messages           Anthropic's messages; text alone

Answers are a stranger's: what is not of the expected type counts as not said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Body = Mapping[str, Any]
Translation = Callable[[Body], dict[str, Any]]
LEAST_OUTPUT = 16  # tokens: OpenAI's responses refuse to generate fewer
# Settings beyond OpenAI's that switch off what some servers do unless told otherwise; others refuse them.
NO_FILTER: Mapping[str, float] = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
# Rules that pass over the best token, switched off. llama-cpp-python's server has a penalty by default.
NO_RULES: Mapping[str, float] = {
    "repeat_penalty": 1.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "dry_multiplier": 0.0, "xtc_probability": 0.0, "typical_p": 1.0, "dynatemp_range": 0.0, "mirostat": 0,
}  # fmt: skip
FILTERS_STAY = f"the server takes no {', '.join(NO_FILTER)}: filters of its own are not judged"
ENDED = ("stop", "eos_token", "end_turn", "stop_sequence", "completed")


@dataclass(frozen=True)
class Dialect:
    """A route in the place of an OpenAI route."""

    name: str
    stands_for: str  # COMPLETIONS or CHAT
    path: str
    request: Translation = dict  # OpenAI's body to the route's
    answer: Translation = dict  # the route's answer to OpenAI's
    headers: Callable[[str], dict[str, str]] = lambda key: {"Authorization": f"Bearer {key}"} if key else {}


def _given(body: Body, names: Mapping[str, str]) -> dict[str, Any]:
    """Those settings of a body that another route has, under its names."""
    return {theirs: body[ours] for ours, theirs in names.items() if ours in body}


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _finish(reason: Any) -> str:
    return "stop" if reason in ENDED else "length"


def _joined(parts: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


# --- Text Generation Inference


def _to_generate(body: Body) -> dict[str, Any]:
    """A temperature of 0 means greedy, which has a switch of its own; filters that do nothing are refused there."""
    parameters: dict[str, Any] = {"max_new_tokens": body["max_tokens"], "details": True}
    if body.get("logprobs"):
        parameters["top_n_tokens"] = body["logprobs"]
    if body.get("temperature"):
        kept = {k: v for k, v in body.items() if not (k == "top_p" and v >= 1) and not (k == "top_k" and v <= 0)}
        names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "seed": "seed",
                 "repeat_penalty": "repetition_penalty"}  # fmt: skip
        parameters |= {"do_sample": True, **_given(kept, names)}
    return {"inputs": body["prompt"], "parameters": parameters}


def _from_generate(found: Body) -> dict[str, Any]:
    details = _object(found.get("details"))
    tokens, tops = _items(details.get("tokens")), details.get("top_tokens")
    lists = tops if isinstance(tops, list) and len(tops) == len(tokens) else [None] * len(tokens)
    content = [
        {"id": t.get("id"), "token": t.get("text"), "logprob": t.get("logprob"), "top_logprobs": _renamed(top)}
        for t, top in zip(tokens, lists, strict=True)
    ]
    choice: dict[str, Any] = {
        "text": found.get("generated_text"), "finish_reason": _finish(details.get("finish_reason")),
    }  # fmt: skip
    if content:
        choice["logprobs"] = {"content": content}
    said = isinstance(found.get("generated_text"), str)
    return {"choices": [choice] if said else [], "usage": {"completion_tokens": details.get("generated_tokens")}}


def _renamed(top: Any) -> list[dict[str, Any]]:
    return [{"id": t.get("id"), "token": t.get("text"), "logprob": t.get("logprob")} for t in _items(top)]


# --- OpenAI's responses


def _to_responses(body: Body) -> dict[str, Any]:
    made = {"input": body["messages"], "max_output_tokens": max(LEAST_OUTPUT, body["max_tokens"]), "store": False}
    if body.get("logprobs"):
        made |= {"top_logprobs": body["top_logprobs"], "include": ["message.output_text.logprobs"]}
    names = {"model": "model", "temperature": "temperature", "top_p": "top_p"}
    return made | _given(body, names)


def _from_responses(found: Body) -> dict[str, Any]:
    messages = [item for item in _items(found.get("output")) if item.get("type") == "message"]
    parts = [part for item in messages for part in _items(item.get("content")) if part.get("type") == "output_text"]
    scored = [step for part in parts for step in _items(part.get("logprobs"))]
    choice: dict[str, Any] = {
        "message": {"content": _joined(parts)}, "finish_reason": _finish(found.get("status")),
    }  # fmt: skip
    if scored:
        choice["logprobs"] = {"content": scored}
    usage = _object(found.get("usage"))
    counts = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
    return {"choices": [choice] if messages else [], "usage": counts}


# --- Anthropic's messages


def _to_messages(body: Body) -> dict[str, Any]:
    system = [m["content"] for m in body["messages"] if m["role"] == "system"]
    made: dict[str, Any] = {"messages": [m for m in body["messages"] if m["role"] != "system"]}
    names = {"model": "model", "max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p"}
    return made | ({"system": "\n".join(system)} if system else {}) | _given(body, names)


def _from_messages(found: Body) -> dict[str, Any]:
    parts = [part for part in _items(found.get("content")) if part.get("type") == "text"]
    choice = {"message": {"content": _joined(parts)}, "finish_reason": _finish(found.get("stop_reason"))}
    usage = _object(found.get("usage"))
    counts = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
    return {"choices": [choice] if isinstance(found.get("content"), list) else [], "usage": counts}


def _anthropic(key: str) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}


# In the order in which an unknown server is asked: what shows most comes first.
DIALECTS = (
    Dialect("completions", COMPLETIONS, COMPLETIONS),
    Dialect("generate", COMPLETIONS, "/generate", _to_generate, _from_generate),
    Dialect("chat completions", CHAT, CHAT),
    Dialect("responses", CHAT, "/v1/responses", _to_responses, _from_responses),
    Dialect("messages", CHAT, "/v1/messages", _to_messages, _from_messages, _anthropic),
)
