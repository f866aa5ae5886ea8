"""Chat templates: render messages to the text format that the model was trained on.

The template comes from the file and runs in a sandboxed process (`assay.system.box`), by `assay.text.sandbox`. It gets
the same variables as in `transformers`. If it fails on OpenAI's form of messages, rewritten forms are tried
(`assay.text.rewrites`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.system.box import LIMITS, Box
from assay.system.terminal import printable
from assay.system.text_files import read_text
from assay.text.builtin import TEMPLATES
from assay.text.rewrites import DROPPED, dropped_system, rewritten, with_reasoning
from assay.text.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"
TIMEOUT_S = LIMITS["template"].seconds
MAX_TEMPLATE = 1 << 20

Message = Mapping[str, Any]
_OTHERWISE = "use --raw for none or --template NAME for another"
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "mask")
_OURS = frozenset({"messages", "tools", "add_generation_prompt", *(f"{role}_token" for role in _TOKENS)})
_RESCUED = ("refused", "undefined", "template")  # faults that rewritten messages may avoid
_WHAT_HAPPENED = {
    "refused": "rejects these messages",
    "long": "its output is too long",
    "syntax": "is not valid Jinja",
    "security": "does something that templates may not do",
    "undefined": "uses an undefined variable",
    "memory": "takes too much memory",
    "recursion": "recurses without end",
    "template": "failed",
}


_box = Box("template", Path(__file__).with_name("sandbox.py"))


class ChatTemplate:
    """A template with the texts of the vocabulary's special tokens."""

    def __init__(self, source: str, *, name: str, tool_source: str | None = None, **tokens: str) -> None:
        """`tokens`: bos, eos, unk, sep, pad, mask, as texts."""
        if (length := max(len(source), len(tool_source or ""))) > MAX_TEMPLATE:
            raise AssayError(f"{name}: the template is too long (found {length}, at most {MAX_TEMPLATE} characters)")
        self.source = source
        self.tool_source = tool_source or source  # some files have a second template for prompts with tools
        self.name = name
        self._variables: Mapping[str, Any] = {}
        self._tokens = {"bos_token": "", "eos_token": "", **{f"{role}_token": text for role, text in tokens.items()}}

    @classmethod
    def from_gguf(cls, file: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of the file, or None."""
        source = file.get_str(KEY, None)
        if source is None:
            return None
        return cls._for(tokenizer, source, f"{file.path.name}: {KEY}", file.get_str(f"{KEY}.tool_use", None))

    @classmethod
    def named(cls, name: str, tokenizer: Tokenizer) -> ChatTemplate:
        """A built-in template by name, or a template from a file."""
        if name in TEMPLATES:
            return cls._for(tokenizer, TEMPLATES[name], f"template {name}")
        path = Path(name)
        if not path.is_file():
            known = ", ".join(TEMPLATES)
            raise AssayError(f"--template {name}: no such template (expected {known}, or a file)")
        try:
            source = read_text(path, "a chat template; give a file of Jinja")
        except OSError as error:
            raise AssayError(f"--template {name}: cannot be read ({(error.strerror or str(error)).lower()})") from None
        return cls._for(tokenizer, source, str(path))

    @classmethod
    def choose(cls, file: GGUFFile, tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate:
        """The template `name` if given, else that of the file. Without either, an error explains the options."""
        if name is not None:
            return cls.named(name, tokenizer)
        template = cls.from_gguf(file, tokenizer)
        if template is None:
            raise AssayError(
                f"{file.path.name}: {KEY}: the file has no chat template; use --raw to send the text as it is, or "
                f"--template with one of {', '.join(TEMPLATES)}, or a file"
            )
        return template

    @classmethod
    def _for(cls, tokenizer: Tokenizer, source: str, name: str, tool_source: str | None = None) -> ChatTemplate:
        special, tokens = tokenizer.vocab.special, tokenizer.vocab.tokens
        texts = {role: tokens[special[role]] for role in _TOKENS if role in special}
        return cls(source, name=name, tool_source=tool_source, **texts)

    def with_variables(self, variables: Mapping[str, Any] | None) -> ChatTemplate:
        """The template with defaults for some of its variables."""
        _check_names(variables or {})
        other = copy(self)
        other._variables = {**self._variables, **(variables or {})}
        return other

    @staticmethod
    def warm() -> None:
        """Start the rendering process in advance, so that the first `render` does not wait for it."""
        _box.warm()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        timeout: float = TIMEOUT_S,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, each with `role` and `content`. `variables` are further
        variables of the template; they cannot replace the messages or the tokens.

        If the template refuses the messages, or leaves out a system message, they are rewritten until it does not. A
        system message for which it has no place comes in front of the first user message, with a newline between
        them, as in llama.cpp.
        """
        _check_names(variables)
        given = {
            "documents": None,
            **self._variables,
            **variables,
            **self._tokens,
            "messages": [with_reasoning(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        if tools and "xml_tools" in self.tool_source:  # SmolLM3's name for them
            given.setdefault("xml_tools", given["tools"])
        until = time.monotonic() + timeout
        answer = first = self._ask(given, timeout)

        def attempt(other: dict[str, Any]) -> str:
            """The defect of the prompt of a rewritten conversation; empty if it is right."""
            nonlocal answer
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError
            answer = self._ask(other, left)
            return wrong(answer)

        def wrong(answer: dict[str, str]) -> str:
            if "text" in answer:
                return DROPPED if dropped_system(given["messages"], answer["text"]) else ""
            return answer.get("message") or answer["fault"]

        if "text" in first or first["fault"] in _RESCUED:
            try:
                found = not (complaint := wrong(first)) or rewritten(given, complaint, attempt)
            except TimeoutError:
                found = None
            answer = answer if found else first
        if "text" in answer:
            return answer["text"]
        raise AssayError(f"{self.name}: {self._complaint(answer, timeout)}; {_OTHERWISE}")

    def _ask(self, variables: dict[str, Any], timeout: float) -> dict[str, str]:
        try:
            source = self.tool_source if variables["tools"] else self.source
            return _box.ask({"template": source, "variables": variables}, timeout)
        except (TypeError, ValueError, RecursionError) as error:
            raise AssayError(f"chat template: arguments must be plain data ({error})") from None

    @staticmethod
    def _complaint(answer: dict[str, str], timeout: float) -> str:
        fault = answer["fault"]
        if fault == "time":
            return f"gave no result within {timeout:g} s"
        if fault == "busy":
            return "no rendering process was free; too many requests wait"
        if fault == "died":
            return "crashed the rendering process"
        return f"{_WHAT_HAPPENED[fault]} ({printable(' '.join(answer['message'].split()), 300)})"


def _check_names(variables: Mapping[str, Any]) -> None:
    if taken := _OURS & variables.keys():
        raise AssayError(f"chat template: {', '.join(sorted(taken))}: cannot be set as a template argument")


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    timeout: float = TIMEOUT_S,
    **variables: Any,
) -> list[int]:
    """Render and tokenize. BOS is added once, if the template writes it or the file requires it. EOS is never added,
    because the answer follows."""
    text = template.render(
        messages, add_generation_prompt=add_generation_prompt, tools=tools, timeout=timeout, **variables
    )
    return encode_rendered(tokenizer, text)


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a rendered conversation, as `encode_chat` gives them."""
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    bos = tokenizer.bos
    if bos is None:
        return ids
    start = next((i for i, token in enumerate(ids) if token != bos), len(ids))
    return [bos] * (start > 0 or tokenizer.add_bos) + ids[start:]
