"""Token ids of a request: messages are rendered by the template, texts are tokenized, off the event loop.

A prompt that does not fit the context is refused, with its length and the limit. A text that is certainly too long is
refused before it is tokenized. Large texts are tokenized one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.errors import AssayError
from assay.runtime.image_places import Images, without_rows
from assay.serve.api.request_pictures import urls_of, with_pictures
from assay.serve.api.schemas import ChatMessage, Tool
from assay.serve.api.server_state import State
from assay.serve.api.turns import content_of, plain_messages, plain_tools, with_tools_as_text
from assay.serve.api_errors import ApiError
from assay.serve.pool.models import ServedModel
from assay.text.reply import closing_of
from assay.text.template import encode_rendered

LARGE = 64 << 10  # characters
PER_TOKEN = 32  # characters: real texts have about four


def check(ids: Sequence[int], entry: ServedModel, *, room: int = 1, param: str = "prompt", images: Images = ()) -> None:
    """Refuse a prompt that leaves less than `room` tokens for the answer, and name the limit.

    The message has the words and numbers of Anthropic's API and those of OpenAI's and vLLM's: a client that finds
    them there shortens its conversation.
    """
    n_vocab = entry.model.hparams.n_vocab
    if not ids:
        raise ApiError("invalid_value", f"{param}: has no tokens (this model adds none to an empty text)", param)
    most = entry.n_ctx - room
    if len(ids) > most:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt is too long: {len(ids)} tokens > {most} maximum; this model's maximum context length is "
            f"{entry.n_ctx} tokens; shorten the prompt by {len(ids) - most}",
            param,
        )
    if images:
        ids = [0, *without_rows(ids, images)]
    wrong = max(ids) if min(ids) >= 0 else min(ids)
    if not 0 <= wrong < n_vocab:
        raise ApiError("invalid_value", f"{param}: token {wrong} is not in the vocabulary of {n_vocab}", param)


def check_length(n_chars: int, entry: ServedModel, param: str = "messages") -> None:
    """Refuse a text that is certainly too long, before it is tokenized."""
    if n_chars > PER_TOKEN * entry.n_ctx:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt is too long: {n_chars} characters; this model's maximum context length is {entry.n_ctx} "
            f"tokens, about {4 * entry.n_ctx} characters; shorten the prompt",
            param,
        )


async def off_loop(state: State, n_chars: int, work: Callable[[], Any]) -> Any:
    """Run work off the event loop. Large texts share a pool with one thread."""
    return await state.threads.run("large" if n_chars > LARGE else "text", work)


async def text_ids(state: State, entry: ServedModel, text: str, **options: bool) -> list[int]:
    """The ids of one text, checked against the context."""
    check_length(len(text), entry)
    found: list[int] = await off_loop(state, len(text), lambda: entry.tokenizer.encode(text, **options))
    return found


async def prompt_ids(state: State, entry: ServedModel, prompt: Any) -> list[list[int]]:
    """The four forms of a prompt (text, texts, ids, lists of ids) as lists of ids."""
    if isinstance(prompt, str):
        prompt = [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    texts = [item for item in prompt if isinstance(item, str)]
    if not texts:
        return list(prompt)
    for text in texts:
        check_length(len(text), entry)
    found: list[list[int]] = await off_loop(
        state, sum(map(len, texts)), lambda: [entry.tokenizer.encode(text) for text in texts]
    )
    return found


def cut_text(text: str, entry: ServedModel) -> str:
    """The start of a text that is certainly too long for the context; it has as many tokens, or more."""
    return text[: PER_TOKEN * entry.n_ctx]


def cut_ids(ids: list[int], entry: ServedModel) -> list[int]:
    """As many ids as the context has. The token that the vocabulary puts at the end of every text stays."""
    if len(ids) <= entry.n_ctx:
        return ids
    end = [] if entry.tokenizer.closing is None else [entry.tokenizer.closing]
    return ids[: entry.n_ctx - len(end)] + end


async def mixed_ids(state: State, entry: ServedModel, parts: Sequence[str | int]) -> list[int]:
    """The ids of a mixture of texts and ids. Only a text at the start gets BOS."""
    n_chars = sum(len(part) for part in parts if isinstance(part, str))
    check_length(n_chars + sum(isinstance(part, int) for part in parts), entry)

    def work() -> list[int]:
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else entry.tokenizer.encode(part, add_special=not ids)
        return ids

    found: list[int] = await off_loop(state, n_chars + len(parts), work)
    return found


@dataclass(frozen=True)
class RenderInput:
    """A conversation as the template takes it."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool] | None = None  # that the template is given
    described: Sequence[Tool] | None = None  # that the system message describes, for a template that knows no tools
    variables: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continued: bool = False  # the answer goes on where the last message ends, if that is the assistant's


async def chat_ids(state: State, entry: ServedModel, chat: RenderInput) -> list[int]:
    """The ids of a conversation rendered by the model's template."""
    return await rendered_ids(state, entry, await chat_text(state, entry, chat))


async def chat_prompt(
    state: State, entry: ServedModel, chat: RenderInput, *, counted: bool = False
) -> tuple[Sequence[int], Images]:
    """The ids of a conversation and the places of its pictures. `counted`: without the values of their rows."""
    urls = urls_of(chat.messages)
    if not urls:
        return await chat_ids(state, entry, chat), ()
    text = await chat_text(state, entry, chat)
    check_length(len(text), entry)
    return await with_pictures(state, entry, text, urls, counted=counted)


async def rendered_ids(state: State, entry: ServedModel, text: str) -> list[int]:
    """The ids of a rendered conversation."""
    check_length(len(text), entry)
    found: list[int] = await off_loop(state, len(text), lambda: encode_rendered(entry.tokenizer, text))
    return found


async def chat_text(state: State, entry: ServedModel, chat: RenderInput) -> str:
    """A conversation rendered by the template."""
    template = entry.template
    if template is None:
        raise ApiError("unsupported", f"the model {entry.id} has no chat template; use /v1/completions", "messages")
    if entry.system and (not chat.messages or chat.messages[0].role not in ("system", "developer")):
        said = ChatMessage.model_construct(role="system", content=entry.system)
        chat = replace(chat, messages=[said, *chat.messages])
    check_length(sum(map(_length, chat.messages)), entry)

    begun = _begun(chat)

    def work() -> str:
        turns = _turns(chat)
        text = template.render(
            turns[:-1] if begun else turns, add_generation_prompt=chat.add_generation_prompt,
            tools=plain_tools(chat.tools), timeout=state.limits.template_s, **chat.variables,
        )  # fmt: skip
        return text + closing_of(template.source, text) + begun if begun else text

    try:
        return await state.threads.run("template", work)
    except TypeError:
        raise ApiError("invalid_value", "chat_template_kwargs: a name is not allowed", "chat_template_kwargs") from None
    except AssayError as error:
        raise ApiError("invalid_prompt", str(error), "messages") from None


def _begun(chat: RenderInput) -> str:
    """The text of an answer that was begun; empty for a new answer."""
    last = chat.messages[-1]
    if not chat.continued or last.role != "assistant" or last.tool_calls or len(chat.messages) < 2:
        return ""
    return content_of(last) or ""


def _length(message: ChatMessage) -> int:
    """Characters of a message's texts."""
    content = message.content or ""
    n = len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
    return n + len(message.reasoning_content or "")


def _turns(chat: RenderInput) -> list[dict[str, Any]]:
    """The messages as templates take them. Slow if they are long: do not call it on the event loop."""
    messages = with_tools_as_text(chat.messages, chat.described) if chat.described else chat.messages
    return plain_messages(messages)
