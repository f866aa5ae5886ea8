"""Prompts as token ids and the statistics line: what `run`, `run --batch` and `chat` have in common."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.runtime.generate import Result
    from assay.runtime.opening import Opened


NEEDED = "give one with -p TEXT, -f FILE or on standard input"


def start_template_process(args: argparse.Namespace, text: str | None = "") -> None:
    """Start the process that renders chat templates, so that it starts while the model is opened."""
    if text is not None and not args.raw:
        from assay.text import ChatTemplate

        ChatTemplate.warm()


def encode_prompt(args: argparse.Namespace, text: str, opened: Opened) -> list[int]:
    """The ids of a prompt, rendered by the chat template of the file unless --raw is given.

    A template turns an empty prompt into a whole message, and the model would answer something it was never asked.
    """
    template = None if args.raw else opened.template
    if template is None:
        if args.system is not None:
            why = "--raw leaves it out" if args.raw else "this file has none"
            raise AssayError(f"--system: needs a chat template, and {why}")
        return opened.tokenizer.encode(text)
    if not text.strip():
        raise AssayError(f"run: the prompt is empty; {NEEDED}, or add --raw to continue from nothing")
    from assay.library.language_model import conversation
    from assay.text import encode_chat

    return encode_chat(opened.tokenizer, template, conversation(text, args.system))


def prompt_for(args: argparse.Namespace, text: str, opened: Opened) -> list[int] | str | list[Any]:
    """The ids of a prompt. With pictures, its text or messages: the library puts the pictures in."""
    if not args.image:
        return encode_prompt(args, text, opened)
    if args.raw or opened.template is None:
        if args.system is not None:
            raise AssayError("--system: needs a chat template")
        return text
    from assay.library.language_model import conversation
    from assay.runtime.pictured_prompt import MEDIA, marked_text

    *turns, asked = [dict[str, Any](message) for message in conversation(text, args.system)]
    first, *rest = marked_text(text, len(args.image)).split(MEDIA)
    parts = [{"type": "text", "text": first}]
    for part in rest:
        parts += [{"type": "image"}, {"type": "text", "text": part}]
    return [*turns, asked | {"content": parts}]


def speed_line(result: Result, load_seconds: float) -> str:
    """The statistics of an answer in one line: token counts, tokens per second, and why the answer ended."""
    timing = result.timing
    cached = f", {timing.cached_tokens} of them cached" if timing.cached_tokens else ""
    rate = f", {timing.rate:.1f}/s" if timing.tokens > 1 else ""
    return (
        f"prompt {timing.prompt_tokens} tokens{cached}, {timing.prompt_rate:.1f}/s; "
        f"answer {timing.tokens} tokens{rate}; loaded in {load_seconds:.2f} s; "
        f"ended by {result.finish_reason}"
    )
