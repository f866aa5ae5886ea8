"""Tool calls: the grammar of a required call, and tools for models whose template does not support them.

A model without tool support is told in the system message how to call, in the form of Hermes models. A grammar
enforces it: a call that was begun can only name an offered function with arguments that match its schema.
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
    """A Lark grammar: exactly one call of one of these functions, with arguments that match its schema.

    If the prompt has opened a reasoning block, the grammar closes it first.
    """
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
    """A Lark grammar: one call as in `required_rule`, or any text that does not start like a call."""
    calls = required_rule(family, tools, tokenizer, thinking=False)
    begins = family.form[0].partition("NAME")[0].lstrip()[:2]
    text = f"/([^{begins[0]}]|{begins[0]}[^{begins[1]}])(.|\\n)*/"
    return calls.replace("start: ", "start: TEXT | ", 1) + f"\nTEXT: {text}"


def with_tools_as_text(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The conversation for a template without tools: the system message describes them, and calls and results are
    written as ordinary messages."""
    listed = "\n".join(json.dumps(tool.model_dump(exclude_none=True)["function"]) for tool in tools)
    lesson = _LESSON.format(tools=listed)
    found = [_written(message) for message in messages]
    if found and found[0].role in ("system", "developer"):
        first = found.pop(0)
        lesson = f"{request_tokens.plain(first)['content']}\n\n{lesson}"
    return [_plain("system", lesson), *found]


def _written(message: ChatMessage) -> ChatMessage:
    """A message with its calls or result written in its text."""
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
    """A text as Lark terminals: special tokens by name, the rest as literals."""
    parts = tokenizer.fragments(text)
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)
