"""Messages and tools as chat templates take them.

All of it can be slow, because arguments and schemas may be large: call it off the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from assay.serve.api.schemas import ChatMessage, Tool
from assay.serve.http.json_counts import JsonCounts
from assay.text.reply import FAMILIES

TAUGHT = next(family for family in FAMILIES if family.name == "hermes")
ARGUMENTS = 64 << 10  # nodes and items of the arguments of a conversation's calls; further arguments stay text
_LESSON = (
    "You may call functions. They are:\n{tools}\n\n"
    "To call one, answer with nothing but\n"
    '<tool_call>\n{{"name": "the function\'s name", "arguments": {{…}}}}\n</tool_call>\n'
    "Where none is needed, answer in plain words."
)


def plain_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    return [tool.model_dump(exclude_none=True) for tool in tools] if tools else None


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates expect them: content as one string or None, arguments of calls as objects."""
    left = ARGUMENTS
    turns = []
    for message in messages:
        found = message.model_dump(exclude_none=True, exclude={"content"})
        found["content"] = content_of(message)
        for item in found.get("tool_calls", ()):
            size = _size(item["function"]["arguments"])
            if size <= left:
                left -= size
                item["function"]["arguments"] = _arguments(item["function"]["arguments"])
        turns.append(found)
    return turns


def content_of(message: ChatMessage) -> str | None:
    content = message.content
    if content is None:
        return None if message.tool_calls else ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _size(text: str) -> int:
    """Nodes and items of a JSON text."""
    counts = JsonCounts()
    counts.feed(text.encode("utf-8", "surrogatepass"))
    return counts.nodes + counts.items


def _arguments(text: str) -> dict[str, Any] | str:
    """The arguments of a call as an object; the text itself if it is no JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def with_tools_as_text(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The conversation for a template without tools: the system message describes them, and calls and results are
    written as ordinary messages."""
    listed = "\n".join(json.dumps(tool.model_dump(exclude_none=True)["function"]) for tool in tools)
    lesson = _LESSON.format(tools=listed)
    found = [_written(message) for message in messages]
    if found and found[0].role in ("system", "developer"):
        lesson = f"{content_of(found.pop(0))}\n\n{lesson}"
    return [_plain("system", lesson), *found]


def _written(message: ChatMessage) -> ChatMessage:
    """A message with its calls or result written in its text."""
    content = content_of(message) or ""
    if message.role == "tool":
        return _plain("user", f"<tool_response>\n{content}\n</tool_response>")
    if not message.tool_calls:
        return message
    before, after = TAUGHT.form
    calls = [before.replace("NAME", c.function.name) + c.function.arguments + after for c in message.tool_calls]
    return _plain(message.role, "\n".join([*([content] if content else []), *calls]))


def _plain(role: str, content: str) -> ChatMessage:
    return ChatMessage.model_construct(role=role, content=content)  # may be longer than a client's own message
