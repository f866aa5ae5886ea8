"""Parse a streamed answer into reasoning, content and tool calls.

Every family of models has its own marks. A family is one row of `FAMILIES`, recognised by texts in the source of the
template; a function of `assay.text.calls` parses its calls. Marks are found however the text is split into parts, so
text is held back only while it may belong to a mark or an incomplete call. A call that cannot be parsed becomes
content: no text of a model is lost, except white space between the parts, and a call that a limit cut off. A call that
is streamed (`call_stream.py`) stays a call, whatever follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from assay.text import calls as notation
from assay.text.call_stream import CallStream
from assay.text.calls import Reader, Tools
from assay.text.harmony import Harmony
from assay.text.marks import ReplyPiece, Scanner

Pair = tuple[str, str]
_BEGUN = 3  # characters of a mark at the end of an answer that was cut off: fewer may be text
TAIL = 32  # tokens at the end of a prompt that are searched for an opened reasoning block

# Start and end marks of reasoning. A family has the first pair whose end mark its template contains.
THINKING: tuple[Pair, ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<thought>", "</thought>"),
)
# Marks around the answer itself.
WRAPPING = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<response>", "</response>")


@dataclass(frozen=True)
class Family:
    """The notation of a family of models."""

    name: str
    mentions: tuple[str, ...]  # a template that contains one of these belongs to the family
    calls: tuple[Pair, ...]  # start and end marks of calls; an empty end mark is the end of the answer
    read: Reader
    form: Pair  # text around the arguments of a call, with NAME for the function: used to force a call
    bare: tuple[str, ...] = ()  # an answer that starts with this may be a call without a mark
    thinking: Pair | None = None
    wrapping: tuple[str, ...] = ()  # marks around the answer, which are removed

    @property
    def marked(self) -> bool:
        """Whether answers have marks even without tools."""
        return self.name == "harmony" or self.thinking is not None or bool(self.wrapping)


_HERMES = ('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>")
_OBJECT = '{"name": "NAME", "arguments": '

FAMILIES: tuple[Family, ...] = (
    Family(
        "harmony", ("<|channel|>",), (), notation.read_json,
        ("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", ""),
    ),
    Family(
        "deepseek", ("<｜tool▁calls▁begin｜>",), (("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
        notation.read_deepseek,
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
         "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ),
    Family(
        "dsml", ("｜DSML｜",),
        (("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"), ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
        lambda text, tools: notation.read_invocations(text, tools) or notation.read_json(text, tools),
        (f"<｜DSML｜function_calls>{_OBJECT}", "}</｜DSML｜function_calls>"),
    ),
    Family(
        "kimi", ("<|tool_calls_section_begin|>",), (("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),),
        notation.read_kimi,
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
         "<|tool_call_end|><|tool_calls_section_end|>"),
    ),
    Family(
        "gemma4", ("<|tool_call>",), (("<|tool_call>", "<tool_call|>"),), notation.read_gemma4,
        ("<|tool_call>call:NAME", "<tool_call|>"),
    ),
    Family(
        "minimax", ("<minimax:tool_call>",), (("<minimax:tool_call>", "</minimax:tool_call>"),),
        lambda text, tools: notation.read_invocations(text, tools) or notation.read_json(text, tools),
        (f"<minimax:tool_call>{_OBJECT}", "}</minimax:tool_call>"),
    ),
    Family(
        "seed", ("<seed:tool_call>",), (("<seed:tool_call>", "</seed:tool_call>"),), notation.read_function_tags,
        ("<seed:tool_call>\n<function=NAME>", "</function>\n</seed:tool_call>"),
    ),
    Family(
        "command", ("<|START_ACTION|>",), (("<|START_ACTION|>", "<|END_ACTION|>"),), notation.read_json,
        ('<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "NAME", "parameters": ', "}\n]<|END_ACTION|>"),
    ),
    Family(
        "command-r", ("Write 'Action:'", "Write \\'Action:\\'"),
        (("Action: ```json", "```"), ("Action:\n```json", "```"), ("Action:```json", "```")),
        notation.read_json, ('Action: ```json\n[{"tool_name": "NAME", "parameters": ', "}]\n```"),
    ),
    Family(
        "granite", ("<|tool_call|>", "<|tool|>", "functools", "<|function_call|>"),
        (("<|tool_call|>", ""), ("functools", ""), ("<|function_call|>", "")),
        lambda text, tools: notation.read_json(text.replace("<|/tool_call|>", ""), tools),
        (f"<|tool_call|>[{_OBJECT}", "}]"),
    ),
    Family(
        "nemotron", ("<TOOLCALL>",), (("<TOOLCALL>", "</TOOLCALL>"),), notation.read_json,
        (f"<TOOLCALL>[{_OBJECT}", "}]</TOOLCALL>"),
    ),
    Family(
        "lists", ("<tool_calls>",), (("<tool_calls>", "</tool_calls>"),), notation.read_json,
        (f"<tool_calls>[{_OBJECT}", "}]</tool_calls>"),
    ),
    Family(
        "lfm2", ("<|tool_call_start|>", "<|tool_list_start|>"), (("<|tool_call_start|>", "<|tool_call_end|>"),),
        lambda text, tools: notation.read_pythonic(text, tools) or notation.read_json(text, tools),
        (f"<|tool_call_start|>[{_OBJECT}", "}]<|tool_call_end|>"),
    ),
    Family(
        "apertus", ("<|tools_prefix|>",), (("<|tools_prefix|>", "<|tools_suffix|>"),), notation.read_keyed,
        ('<|tools_prefix|>[{"NAME": ', "}]<|tools_suffix|>"),
    ),
    Family(
        "mistral", ("[TOOL_CALLS]",), (("[TOOL_CALLS]", ""),), notation.read_mistral,
        (f"[TOOL_CALLS][{_OBJECT}", "}]"),
    ),
    Family(
        "hermes", ("<tool_call>", "xml_tools"), (("<tool_call>", "</tool_call>"),), notation.read_tagged, _HERMES,
    ),
    Family(
        "functionary", ("<function=",), (("<function=", "</function>"),),
        lambda text, tools: notation.read_function_tags(f"<function={text}</function>", tools),
        ("<function=NAME>", "</function>"),
    ),
    Family(
        "llama", (), (("<|python_tag|>", ""), ("<|python_start|>", "<|python_end|>")), notation.read_llama,
        ('{"name": "NAME", "parameters": ', "}"), bare=("{", "["),
    ),
)  # fmt: skip


@lru_cache(maxsize=32)
def family_of(template: str) -> Family:
    """The family of a template, by its source."""
    family = next(f for f in FAMILIES if not f.mentions or any(text in template for text in f.mentions))
    return replace(
        family,
        thinking=next((pair for pair in THINKING if pair[1] in template), None),
        wrapping=tuple(mark for mark in WRAPPING if mark in template),
    )


def takes_tools(template: str) -> bool:
    return re.search(r"\b(?:xml_)?tools\b", template) is not None


def opened(family: Family, prompt: str) -> bool:
    """Whether a prompt ends inside an opened reasoning block."""
    return family.thinking is not None and prompt.rstrip().endswith(family.thinking[0].rstrip())


def reasoning_marks(family: Family) -> tuple[str, str, str] | None:
    """The marks that begin and end reasoning, and the text that ends it and begins the answer."""
    if family.name == "harmony":
        return "<|channel|>analysis<|message|>", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    return (*family.thinking, f"{family.thinking[1]}\n\n") if family.thinking else None


def closing_of(template: str, prompt: str) -> str:
    """The text that closes the reasoning block that a prompt ends inside; empty if it ends outside."""
    family = family_of(template)
    marks = reasoning_marks(family)
    return marks[2] if marks and opened(family, prompt) else ""


def assistant_message(template: str, prompt: str, text: str) -> dict[str, str]:
    """A whole answer as a message for the template, with marked reasoning separate."""
    family = family_of(template)
    parser = ReplyParser(family, thinking=opened(family, prompt))
    pieces = [parser.push(text), parser.finish()]
    reasoning = "".join(piece.reasoning for piece in pieces)
    content = "".join(piece.content for piece in pieces)
    return {"role": "assistant", "content": content} | ({"reasoning_content": reasoning} if reasoning else {})


class ReplyParser:
    """Parses one answer. Push text as it arrives; each push returns the newly decided parts.

    `tools` are the offered functions; with None nothing is parsed as a call. `thinking` says that the prompt has
    opened a reasoning block. `apart=False` leaves reasoning in the content. `stream` passes calls on in parts, as they
    are written.
    """

    def __init__(
        self,
        family: Family,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        thinking: bool = False,
        apart: bool = True,
        stream: bool = False,
    ) -> None:
        offered = Tools.offered(tools) if tools else None
        self._machine: Harmony | _Marked
        if family.name == "harmony":
            self._machine = Harmony(offered, apart=apart, stream=stream)
        else:
            self._machine = _Marked(family, offered, thinking=thinking and apart, apart=apart, stream=stream)

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends inside a reasoning block."""
        return self._machine.in_reasoning

    def push(self, text: str) -> ReplyPiece:
        return self._machine.push(text)

    def finish(self, *, cut: bool = False) -> ReplyPiece:
        """The held-back text, at the end of the answer. `cut`: a limit ended it; a call that was begun is dropped."""
        return self._machine.finish(cut=cut)


class _Marked(Scanner):
    """Content, with reasoning and calls between marks."""

    def __init__(self, family: Family, tools: Tools | None, *, thinking: bool, apart: bool, stream: bool) -> None:
        super().__init__()
        self._family, self._tools = family, tools
        self._streams = stream
        self._stream: CallStream | None = None  # of the current call
        self._fed = 0  # characters of `held` that it was given
        pair = family.thinking if apart else None
        self._closing = pair[1] if pair else ""
        ends = dict(family.calls) if tools else {}
        self._opening = pair[0] if pair else None
        self._ends = ends
        self._inner = tuple(mark for mark, end in ends.items() if end)  # marks of calls that reasoning may have in it
        self._marks = tuple(mark for mark in (self._opening, *ends, *family.wrapping) if mark)
        self._call = ""  # the start mark of the current call
        self._reasoning = thinking
        self._bare = bool(tools and family.bare and not thinking)
        self.trim = pair is not None

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning

    def _step(self, final: bool) -> bool:
        if self._bare:
            return self._maybe_bare(final)
        if self._call:
            return self._in_call(final)
        return self._in_reasoning(final) if self._reasoning else self._in_content(final)

    def _maybe_bare(self, final: bool) -> bool:
        """Hold back the whole answer if it may be a call without marks."""
        text = self.held.lstrip()
        if not text and not final:
            return False
        if not text.startswith(self._family.bare):
            self._bare = False
            return True
        begun = self._feed(len(self.held), end=final)
        if not final:
            return False
        assert self._tools is not None
        found = notation.read_bare(text, self._tools)
        self.out.calls += found[begun:]
        if begun:
            self.held, self.out.cut = "", self.cut and not found
            return False
        if not found and self.cut and notation.begins_bare(text, self._tools):
            self._drop()
            return False
        if not found:
            self._bare = False
            return True
        self.held = ""
        return False

    def _in_reasoning(self, final: bool) -> bool:
        """Reasoning up to its end mark. It may have calls in it; a mark that begins no call is part of the text."""
        text, mark = self.until((self._closing, *self._inner), final)
        self.reason(text)
        if mark is None:
            return False
        if mark != self._closing:
            self._call = mark
            return True
        self.turn(trim=True)
        self._reasoning = False
        return True

    def _drop(self) -> None:
        self.held, self.out.cut = "", True

    def _in_content(self, final: bool) -> bool:
        if final and self.cut and not any(mark in self.held for mark in self._marks):
            begun = self._beginning(tuple(self._ends))
            if begun >= _BEGUN:
                self.held, self.out.cut = self.held[:-begun], True
        text, mark = self.until(self._marks, final)
        self.say(text, final=final and mark is None)
        if mark is None:
            return False
        if mark == self._opening:
            self._reasoning = True
        elif mark in self._ends:
            self._call = mark
        if mark not in self._family.wrapping:
            self.turn(trim=self.trim)
        return True

    def _in_call(self, final: bool) -> bool:
        end = self._ends[self._call]
        at = _end_of_call(self.held, end) if end else -1
        closed = _end_of_call(self.held, self._closing) if self._reasoning else -1
        if closed >= 0 and (at < 0 or closed < at):  # the reasoning ends first
            if not self._offered(self.held[:closed]):
                self.reason(self._call)  # it only mentions the mark
                self._call = ""
                return True
            at, end = closed, ""
        begun = 0
        if not self._reasoning:  # reasoning may only mention a call
            ready = len(self.held) - (0 if final or not end else self._beginning((end,)))
            begun = self._feed(ready if at < 0 else at, end=final or at >= 0)
        if at < 0 and not final:
            return False
        self._stream, self._fed = None, 0
        body = self.held if at < 0 else self.held[:at]
        whole = self._call + body + (end if at >= 0 else "")
        if self._reasoning:
            found = self._offered(body) if at >= 0 else []
        else:
            found = self._family.read(body, self._known)
            if at < 0 and self.cut and (end or not found):
                self._drop()
                return False
        self.held = self.held[len(whole) - len(self._call) :]
        self.out.calls += found[begun:]
        if found or begun:
            self.turn(trim=True)
        elif self._reasoning:
            self.reason(whole)
        else:
            self.say(whole, final=True)
        self._call = ""
        return bool(self.held)

    def _feed(self, n: int, *, end: bool) -> int:
        """Pass the first n characters of a call on, if calls are streamed. Gives how many calls were begun so far."""
        if not self._streams:
            return 0
        if self._stream is None:
            self._stream = CallStream(self._family.name, self._known)
            if self._family.name == "functionary":  # its mark is part of the notation
                self._stream.feed(self._call)
        self.out.parts += self._stream.feed(self.held[self._fed : n], end=end)
        self._fed = max(n, self._fed)
        return self._stream.begun

    def _offered(self, body: str) -> list[notation.Call]:
        """The calls of offered functions: reasoning may mention others."""
        found = self._family.read(body, self._known)
        return found if all(call.name in self._known.arguments for call in found) else []

    @property
    def _known(self) -> Tools:
        assert self._tools is not None  # otherwise no mark begins a call
        return self._tools


def _end_of_call(text: str, end: str) -> int:
    """The position of a call's end mark, -1 if absent. A mark inside a JSON string is text."""
    at = text.find(end)
    if at < 0 or not text.lstrip().startswith(("{", "[")):
        return at
    for found in re.finditer(rf'"(?:[^"\\]|\\.)*"|"|{re.escape(end)}', text, re.DOTALL):
        if found[0] == '"':
            return -1  # an unterminated string
        if found[0] == end:
            return found.start()
    return -1
