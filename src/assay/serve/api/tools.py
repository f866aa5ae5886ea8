"""A call that a model must make: a grammar for how its family writes one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from assay.runtime.grammar import json_rule
from assay.serve.api.schemas import Function
from assay.text import Tokenizer
from assay.text.reply import Family


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


def _literals(text: str, tokenizer: Tokenizer) -> str:
    """A text as Lark terminals: tokens where they are special ones, the rest as it is."""
    parts = tokenizer.fragments(text)
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)
