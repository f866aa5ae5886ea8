"""Budgets for reasoning: how many tokens a request allows, and the tag that ends it."""

from __future__ import annotations

from assay.runtime.thinking_budget import ThinkingBudget
from assay.serve.api.schemas import ChatRequest
from assay.serve.pool.models import ServedModel
from assay.text.reply import Family, reasoning_marks

# Tokens of reasoning by effort, for templates that have no such variable; other efforts have no limit.
EFFORTS = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096}


def allowed_tokens(request: ChatRequest, entry: ServedModel, default: int | None) -> int | None:
    """The tokens of reasoning that a request allows; None: no limit. `default` is the server's."""
    if request.thinking_budget_tokens is not None:
        return request.thinking_budget_tokens if request.thinking_budget_tokens >= 0 else None
    effort = (request.reasoning_effort or "").lower()
    if effort and (effort == "none" or (entry.template and "reasoning_effort" not in entry.template.source)):
        return EFFORTS.get(effort)
    return default


def thinking_budget(tokens: int | None, entry: ServedModel, family: Family, *, opened: bool) -> ThinkingBudget | None:
    """The budget of one answer; None if it has no limit, or the model marks no reasoning."""
    marks = reasoning_marks(family)
    if tokens is None or marks is None:
        return None
    begins, ends, closing = marks
    ids = entry.tokenizer.encode(closing, add_special=False)
    return ThinkingBudget(tokens, begins, ends, tuple(ids), opened)
