"""Chat templates: a list of messages to the text the model was trained on.

The template comes out of the file and is run in a process of its own (see `assay.text.sandbox`), which is
killed when it takes too long. The process is started once, serves every template and every thread one request
at a time, and ends with us.

A template sees what `transformers` would show it. Where it cannot take messages as OpenAI's clients write them, they
are written otherwise (see `_REWRITES`) until it can.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.text.builtin import TEMPLATES
from assay.text.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"
TIMEOUT_S = 10.0
MAX_TEMPLATE = 1 << 20

Message = Mapping[str, Any]
_OTHERWISE = "use --raw for none or --template NAME for another"
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "mask")
_OURS = frozenset({"messages", "tools", "add_generation_prompt", *(f"{role}_token" for role in _TOKENS)})
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names for one thing
_RESCUED = ("refused", "undefined", "template")  # faults that other messages may not have
_WHAT_HAPPENED = {
    "refused": "does not take these messages",
    "long": "its output is too long",
    "syntax": "is not valid Jinja",
    "security": "tries what a template may not",
    "undefined": "uses what it was not given",
    "memory": "takes too much memory",
    "recursion": "never ends",
    "template": "failed",
}


class _Sandbox:
    """The one process that renders. A lock serves one request at a time; they take milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """The running process; starting one returns before it is ready."""
        if self._process is None or self._process.poll() is not None:
            script = str(Path(__file__).with_name("sandbox.py"))
            path = os.pathsep.join(p for p in sys.path if p)
            self._process = subprocess.Popen(
                [sys.executable, "-P", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8:surrogatepass"},
                encoding="utf-8",
                errors="surrogatepass",
                start_new_session=True,  # Ctrl-C is for us
            )
        return self._process

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, str]:
        """The answer; `{"fault": "time"}` when there was none in time, `{"fault": "died"}` when the process died of
        it. A process that somebody else ended, unnoticed while it was idle, is replaced once."""
        line = json.dumps(request)
        with self._lock:
            answer = self._exchange(line, seconds)
            return self._exchange(line, seconds) if answer.get("fault") == "died" else answer

    def _exchange(self, line: str, seconds: float) -> dict[str, str]:
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        alarm = threading.Timer(seconds, process.kill)
        alarm.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except (BrokenPipeError, OSError):
            reply = ""
        finally:
            in_time = alarm.is_alive()
            alarm.cancel()
        if not reply.endswith("\n"):
            self.stop()
            return {"fault": "died" if in_time else "time"}
        answer: dict[str, str] = json.loads(reply)
        return answer


_sandbox = _Sandbox()
atexit.register(_sandbox.stop)


class ChatTemplate:
    """A template with the texts of the vocabulary's own tokens."""

    def __init__(self, source: str, *, name: str, tool_source: str | None = None, **tokens: str) -> None:
        """`tokens`: bos, eos, unk, sep, pad, mask, as texts."""
        if (length := max(len(source), len(tool_source or ""))) > MAX_TEMPLATE:
            raise AssayError(f"{name}: the template is too long (found {length}, at most {MAX_TEMPLATE} characters)")
        self.source = source
        self.tool_source = tool_source or source  # some files have a second one for prompts with tools
        self.name = name
        self._tokens = {"bos_token": "", "eos_token": "", **{f"{role}_token": text for role, text in tokens.items()}}

    @classmethod
    def from_gguf(cls, file: GGUFFile, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The file's own template; None where it has none."""
        source = file.get_str(KEY, None)
        if source is None:
            return None
        return cls._for(tokenizer, source, f"{file.path.name}: {KEY}", file.get_str(f"{KEY}.tool_use", None))

    @classmethod
    def named(cls, name: str, tokenizer: Tokenizer) -> ChatTemplate:
        """A built-in template by name, or the one in a file."""
        if name in TEMPLATES:
            return cls._for(tokenizer, TEMPLATES[name], f"template {name}")
        path = Path(name)
        if not path.is_file():
            known = ", ".join(TEMPLATES)
            raise AssayError(f"--template {name}: no such template (expected {known}, or a file)")
        try:
            return cls._for(tokenizer, path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise AssayError(f"--template {name}: cannot be read as text ({error})") from None

    @classmethod
    def choose(cls, file: GGUFFile, tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate:
        """`name` where one is given, else the file's own; an error that says what to do where there is neither."""
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

    @staticmethod
    def warm() -> None:
        """Start the rendering process now, so that the first `render` need not wait for it."""
        _sandbox.start()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        timeout: float = TIMEOUT_S,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, each with `role` and `content`. `variables` are the template's own extras;
        they cannot replace the messages or the tokens.

        A system message that the template refuses or drops is put in front of the first user message, with a
        newline between them, as llama.cpp does.
        """
        taken = _OURS & variables.keys()
        if taken:
            raise AssayError(f"chat template: {', '.join(sorted(taken))}: cannot be set as a template argument")
        given = {
            "documents": None,
            **variables,
            **self._tokens,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        until = time.monotonic() + timeout
        answer = self._ask(given, timeout)
        dropped = _dropped(given["messages"], answer.get("text"))
        if dropped or answer.get("fault") in _RESCUED:
            for other in [_fold_system(given)] if dropped else _rewritten(given):
                left = until - time.monotonic()
                second = self._ask(other, left) if other and left > 0 else {}
                if "text" in second and not _dropped(given["messages"], second["text"]):
                    answer = second
                    break
        if "text" in answer:
            return answer["text"]
        raise AssayError(f"{self.name}: {self._complaint(answer, timeout)}; {_OTHERWISE}")

    def _ask(self, variables: dict[str, Any], timeout: float) -> dict[str, str]:
        try:
            source = self.tool_source if variables["tools"] else self.source
            return _sandbox.ask({"template": source, "variables": variables}, timeout)
        except (TypeError, ValueError, RecursionError) as error:
            raise AssayError(f"chat template: arguments must be plain data ({error})") from None

    @staticmethod
    def _complaint(answer: dict[str, str], timeout: float) -> str:
        fault = answer["fault"]
        if fault == "time":
            return f"gave no result within {timeout:g} s"
        if fault == "died":
            return "brought its process down"
        return f"{_WHAT_HAPPENED[fault]} ({' '.join(answer['message'].split()):.300})"


def _with_reasoning(message: Message) -> dict[str, Any]:
    """A message whose reasoning has every name that templates ask for."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


# --- the same conversation, written otherwise: each returns None where it changes nothing

_Rewrite = Callable[[dict[str, Any]], dict[str, Any] | None]


def _each(given: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any] | None:
    messages = [change(message) for message in given["messages"]]
    return None if messages == given["messages"] else {**given, "messages": messages}


def _arguments_as_text(given: dict[str, Any]) -> dict[str, Any] | None:
    """DeepSeek's templates join the arguments of a call to a text."""

    def call(item: Any) -> Any:
        function = item.get("function") if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping) or isinstance(function.get("arguments"), str | None):
            return item
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**item, "function": {**function, "arguments": text}}

    def change(message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        return {**message, "tool_calls": [call(item) for item in calls]} if isinstance(calls, list) else message

    return _each(given, change)


def _no_null(given: dict[str, Any]) -> dict[str, Any] | None:
    """OpenAI's content beside calls is null; many templates expect a text."""
    return _each(given, lambda message: {**message, "content": ""} if message.get("content") is None else message)


def _developer_as_system(given: dict[str, Any]) -> dict[str, Any] | None:
    return _each(given, lambda m: {**m, "role": "system"} if m.get("role") == "developer" else m)


def _empty_tools(given: dict[str, Any]) -> dict[str, Any] | None:
    return {**given, "tools": []} if given["tools"] is None else None


def _fold_system(given: dict[str, Any]) -> dict[str, Any] | None:
    """The system message inside the first user message."""
    messages = given["messages"]
    if len(messages) < 2 or messages[0].get("role") != "system" or messages[1].get("role") != "user":
        return None
    texts = [message.get("content") for message in messages[:2]]
    if not all(isinstance(text, str) for text in texts):
        return None
    return {**given, "messages": [{**messages[1], "content": f"{texts[0]}\n{texts[1]}"}, *messages[2:]]}


_REWRITES: tuple[_Rewrite, ...] = (_arguments_as_text, _no_null, _empty_tools, _developer_as_system, _fold_system)


def _rewritten(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The conversation with one thing written otherwise, then with two, and so on."""
    for size in range(1, len(_REWRITES) + 1):
        for chosen in combinations(_REWRITES, size):
            other: dict[str, Any] | None = given
            for rewrite in chosen:
                other = rewrite(other) if other is not None else None
            if other is not None:
                yield other


def _dropped(messages: list[dict[str, Any]], text: str | None) -> bool:
    """Whether the system message is missing from the prompt."""
    first = messages[0] if messages else {}
    said = first.get("content")
    return text is not None and first.get("role") == "system" and isinstance(said, str) and said.strip() not in text


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
    """Render and tokenize. BOS stands at the front once if the template writes it or the file wants it; EOS is
    never added, for the answer is still to come."""
    text = template.render(
        messages, add_generation_prompt=add_generation_prompt, tools=tools, timeout=timeout, **variables
    )
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    bos = tokenizer.bos
    if bos is None:
        return ids
    start = next((i for i, token in enumerate(ids) if token != bos), len(ids))
    return [bos] * (start > 0 or tokenizer.add_bos) + ids[start:]
