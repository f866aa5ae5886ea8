"""Token ids of a request: messages are rendered by the template, texts are tokenized, off the event loop.

A prompt that does not fit the context is refused, with its length and the limit. A text that is certainly too long is
refused before it is tokenized. Large texts are tokenized one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from assay.errors import AssayError
from assay.serve.api.schemas import ChatMessage, Tool
from assay.serve.api.server_state import State
from assay.serve.api_errors import ApiError
from assay.serve.pool.models import ServedModel
from assay.text import encode_chat

LARGE = 64 << 10  # characters
PER_TOKEN = 32  # characters: real texts have about four


def check(ids: Sequence[int], entry: ServedModel, *, room: int = 1, param: str = "prompt") -> None:
    """Refuse a prompt that leaves less than `room` tokens for the answer, and name the limit."""
    n_vocab = entry.model.hparams.n_vocab
    if not ids:
        raise ApiError("invalid_value", f"{param}: has no tokens (this model adds none to an empty text)", param)
    wrong = next((token for token in ids if not 0 <= token < n_vocab), None)
    if wrong is not None:
        raise ApiError("invalid_value", f"{param}: token {wrong} is not in the vocabulary of {n_vocab}", param)
    most = entry.n_ctx - room
    if len(ids) > most:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {len(ids)} tokens, more than the {most} that the context of {entry.n_ctx} allows; "
            f"shorten it by {len(ids) - most}",
            param,
        )


def _check_length(n_chars: int, entry: ServedModel) -> None:
    if n_chars > PER_TOKEN * entry.n_ctx:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {n_chars} characters, more than the about {4 * entry.n_ctx} that the context of "
            f"{entry.n_ctx} tokens allows; shorten it",
            "messages",
        )


async def off_loop(state: State, n_chars: int, work: Callable[[], Any], kind: str = "text") -> Any:
    """Run work off the event loop. Large texts share a pool with one thread."""
    return await state.threads.run("large" if n_chars > LARGE else kind, work)


async def text_ids(state: State, entry: ServedModel, text: str, **options: bool) -> list[int]:
    """The ids of one text, checked against the context."""
    _check_length(len(text), entry)
    found: list[int] = await off_loop(state, len(text), lambda: entry.tokenizer.encode(text, **options))
    return found


async def prompt_ids(state: State, entry: ServedModel, prompt: Any) -> list[list[int]]:
    """The four forms of a prompt (text, texts, ids, lists of ids) as lists of ids."""
    if isinstance(prompt, str):
        prompt = [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return [await text_ids(state, entry, item) if isinstance(item, str) else item for item in prompt]


async def chat_ids(
    state: State,
    entry: ServedModel,
    messages: list[ChatMessage],
    tools: list[Tool] | None = None,
    variables: dict[str, Any] | None = None,
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The ids of a conversation rendered by the model's template."""
    template = entry.template
    if template is None:
        raise ApiError("unsupported", f"the model {entry.id} has no chat template; use /v1/completions", "messages")
    turns = [plain(message) for message in messages]
    n_chars = sum(len(turn["content"] or "") + len(turn.get("reasoning_content") or "") for turn in turns)
    _check_length(n_chars, entry)

    def work() -> list[int]:
        return encode_chat(
            entry.tokenizer, template, turns, add_generation_prompt=add_generation_prompt,
            tools=plain_tools(tools), timeout=state.limits.template_s, **(variables or {}),
        )  # fmt: skip

    found: list[int] = await _rendered(state, n_chars, work)
    return found


async def chat_text(
    state: State,
    entry: ServedModel,
    messages: list[ChatMessage],
    tools: list[Tool] | None,
    variables: dict[str, Any] | None,
    *,
    add_generation_prompt: bool,
) -> str:
    """A conversation rendered by the template."""
    assert entry.template
    render = entry.template.render
    turns = [plain(message) for message in messages]

    def work() -> str:
        return render(
            turns, add_generation_prompt=add_generation_prompt, tools=plain_tools(tools),
            timeout=state.limits.template_s, **(variables or {}),
        )  # fmt: skip

    found: str = await _rendered(state, 0, work)
    return found


async def _rendered(state: State, n_chars: int, work: Callable[[], Any]) -> Any:
    try:
        return await off_loop(state, n_chars, work, "template")
    except TypeError:
        raise ApiError("invalid_value", "chat_template_kwargs: a name is not allowed", "chat_template_kwargs") from None
    except AssayError as error:
        raise ApiError("invalid_prompt", str(error), "messages") from None


def plain_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    return [tool.model_dump(exclude_none=True) for tool in tools] if tools else None


def plain(message: ChatMessage) -> dict[str, Any]:
    """A message as templates expect it: content as one string or None, arguments of calls as objects."""
    found = message.model_dump(exclude_none=True)
    content = message.content
    if content is None:
        found["content"] = None if message.tool_calls else ""
    else:
        found["content"] = content if isinstance(content, str) else "".join(part.text for part in content)
    for item in found.get("tool_calls", ()):
        try:
            arguments = json.loads(item["function"]["arguments"])
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            item["function"]["arguments"] = arguments
    return found
