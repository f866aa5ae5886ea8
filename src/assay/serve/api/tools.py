"""Tool calls: the grammars of a required and of an offered call.

A model without tool support is told in the system message how to call, in the form of Hermes models (`turns.py`). A
grammar enforces it: a call that was begun can only name an offered function with arguments that match its schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from assay.runtime.grammar import json_rule
from assay.serve.api.schemas import AllowedTools, ChatRequest, Function, NamedTool, Tool
from assay.serve.api_errors import ApiError
from assay.text import Tokenizer
from assay.text.reply import Family


def callable_tools(request: ChatRequest) -> list[Tool] | None:
    """The tools that an answer may call, which `tool_choice` may restrict; None if it may call none."""
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(
                "invalid_value", "tool_choice: the request has no tools; send them as `tools`", "tool_choice"
            )
        return None
    if isinstance(choice, NamedTool):
        names = [choice.function.name]
    elif isinstance(choice, AllowedTools):
        names = [tool.function.name for tool in choice.allowed_tools.tools]
    else:
        return None if choice == "none" else request.tools
    known = {tool.function.name for tool in request.tools}
    for name in names:
        if name not in known:
            raise ApiError("invalid_value", f"tool_choice: there is no tool {name!r:.80}", "tool_choice")
    return [tool for tool in request.tools if tool.function.name in names]


def requires_call(request: ChatRequest) -> bool:
    choice = request.tool_choice
    allowed = isinstance(choice, AllowedTools) and choice.allowed_tools.mode == "required"
    return choice == "required" or isinstance(choice, NamedTool) or allowed


def required_rule(family: Family, tools: Sequence[Function], tokenizer: Tokenizer, *, thinking: bool) -> str:
    """A Lark grammar: exactly one call of one of these functions, with arguments that match its schema.

    If the prompt has opened a reasoning block, the grammar closes it first.
    """
    closing = f"\n{family.thinking[1]}\n\n" if thinking and family.thinking else ""
    before, after = family.form
    rules = []
    for i, tool in enumerate(tools):
        opening = _literals(closing + before.replace("NAME", tool.name), tokenizer)
        arguments = json_rule(tool.parameters or {"type": "object"}, "tools")
        rules.append(f"call{i}: {opening} arguments{i} {_literals(after, tokenizer)}\narguments{i}: {arguments}")
    one = " | ".join(f"call{i}" for i in range(len(tools)))
    return "\n".join([f"start: {one}", *rules])


def offered_rule(family: Family, tools: Sequence[Function], tokenizer: Tokenizer) -> str:
    """A Lark grammar: one call as in `required_rule`, or any text that does not start like a call."""
    calls = required_rule(family, tools, tokenizer, thinking=False)
    begins = family.form[0].partition("NAME")[0].lstrip()[:2]
    text = f"/([^{begins[0]}]|{begins[0]}[^{begins[1]}])(.|\\n)*/"
    return calls.replace("start: ", "start: TEXT | ", 1) + f"\nTEXT: {text}"


def _literals(text: str, tokenizer: Tokenizer) -> str:
    """A text as Lark terminals: special tokens by name, the rest as literals."""
    parts = tokenizer.fragments(text)
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)
