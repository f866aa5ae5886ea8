"""Calls of functions: the grammar of one that a model must make, and tools for models whose template knows none.

A model that was not trained to call is told how in the system message, as Hermes' models are, and held to it: once it
begins a call, only a call of an offered function with arguments that fit its schema can come of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from assay.runtime.grammar import json_rule
from assay.serve.api import request_tokens
from assay.serve.api.schemas import ChatMessage, Function, Tool
from assay.text import Tokenizer
from assay.text.reply import FAMILIES, Family

TAUGHT = next(family for family in FAMILIES if family.name == "hermes")
_LESSON = (
    "You may call functions. They are:\n{tools}\n\n"
    "To call one, answer with nothing but\n"
    '<tool_call>\n{{"name": "the function\'s name", "arguments": {{…}}}}\n</tool_call>\n'
    "Where none is needed, answer in plain words."
)


def required_rule(family: Family, tools: Sequence[Function], tokenizer: Tokenizer, *, thinking: bool) -> str:
    """A Lark grammar: exactly one call, of one of these functions, with arguments that fit its schema. Reasoning that
    the prompt has opened is closed first."""
    closing = f"\n{family.thinking[1]}\n\n" if thinking and family.thinking else ""
    before, after = family.form
    rules = []
    for i, tool in enumerate(tools):
        opening = _literals(closing + before.replace("NAME", tool.name), tokenizer)
        arguments = json_rule(tool.parameters or {"type": "object"})
        rules.append(f"call{i}: {opening} arguments{i} {_literals(after, tokenizer)}\narguments{i}: {arguments}")
    one = " | ".join(f"call{i}" for i in range(len(tools)))
    return "\n".join([f"start: {one}", *rules])


def offered_rule(family: Family, tools: Sequence[Function], tokenizer: Tokenizer) -> str:
    """A Lark grammar: one call as above, or any text that does not begin like one."""
    calls = required_rule(family, tools, tokenizer, thinking=False)
    begins = family.form[0].partition("NAME")[0].lstrip()[:2]
    text = f"/([^{begins[0]}]|{begins[0]}[^{begins[1]}])(.|\\n)*/"
    return calls.replace("start: ", "start: TEXT | ", 1) + f"\nTEXT: {text}"


def taught(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The conversation for a template that knows no tools: they stand in the system message, calls and results in
    ordinary ones."""
    listed = "\n".join(json.dumps(tool.model_dump(exclude_none=True)["function"]) for tool in tools)
    lesson = _LESSON.format(tools=listed)
    found = [_written(message) for message in messages]
    if found and found[0].role in ("system", "developer"):
        first = found.pop(0)
        lesson = f"{request_tokens.plain(first)['content']}\n\n{lesson}"
    return [_plain("system", lesson), *found]


def _written(message: ChatMessage) -> ChatMessage:
    """A message whose calls or result stand in its text."""
    content = request_tokens.plain(message)["content"] or ""
    if message.role == "tool":
        return _plain("user", f"<tool_response>\n{content}\n</tool_response>")
    if not message.tool_calls:
        return message
    before, after = TAUGHT.form
    calls = [before.replace("NAME", c.function.name) + c.function.arguments + after for c in message.tool_calls]
    return _plain(message.role, "\n".join([*([content] if content else []), *calls]))


def _plain(role: str, content: str) -> ChatMessage:
    return ChatMessage.model_validate({"role": role, "content": content})


def _literals(text: str, tokenizer: Tokenizer) -> str:
    """A text as Lark terminals: tokens where they are special ones, the rest as it is."""
    parts = tokenizer.fragments(text)
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)
