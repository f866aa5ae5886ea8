"""gpt-oss's harmony format: an answer is a list of messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

`analysis` is reasoning, `commentary` to a function is a call, and the rest is content. The prompt ends with
`<|start|>assistant`, so an answer starts inside a heading. An answer without a heading is content.
"""

from __future__ import annotations

import json
import re

from assay.text.call_stream import CallStream
from assay.text.calls import Call, Tools
from assay.text.marks import Scanner

_HEADING = ("<|channel|>", "<|start|>", "<|message|>", "to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_CONTENT, _REASONING, _CALL = range(3)


class Harmony(Scanner):
    def __init__(self, tools: Tools | None, *, apart: bool, stream: bool = False) -> None:
        super().__init__()
        self._streams = stream
        self._stream: CallStream | None = None  # of the current call
        self._tools, self._apart = tools, apart
        self._heading: str | None = None  # heading of the current message, with marks; None between messages
        self._kind: int | None = None  # None until the heading is complete
        self._name = ""
        self._body = ""

    @property
    def in_reasoning(self) -> bool:
        return self._kind == _REASONING

    def _step(self, final: bool) -> bool:
        if self._heading is None:
            return self._begin(final)
        return self._head(final) if self._kind is None else self._message(final)

    def _begin(self, final: bool) -> bool:
        text = self.held.lstrip()
        if text.startswith(_HEADING):
            self._heading = ""
            return True
        if not final and any(mark.startswith(text) for mark in _HEADING):
            return False
        if text:
            self._heading, self._kind = "", _CONTENT
        return bool(text)

    def _head(self, final: bool) -> bool:
        at = self.held.find("<|message|>")
        if at < 0:
            if final:
                if self.cut:
                    self.out.cut = True
                else:
                    self.say(self.held, final=True)
                self.held = ""
            return False
        heading, self.held = self.held[:at], self.held[at + len("<|message|>") :]
        channel = re.search(r"<\|channel\|>\s*(\w+)", heading)
        to = re.search(r"to=(?:functions\.)?([^\s<]+)", heading)
        self._heading, self._body, self._name = heading + "<|message|>", "", to[1] if to else ""
        called = to is not None and self._tools is not None
        known = called and ("to=functions." in heading or self._name in (self._tools.arguments if self._tools else ()))
        analysis = channel is not None and channel[1] == "analysis"
        self._kind = _CALL if known else _REASONING if analysis and self._apart else _CONTENT
        offered = self._tools is not None and self._name in self._tools.arguments
        self._stream = None
        if self._streams and self._kind == _CALL and offered and self._tools:
            self._stream = CallStream("harmony", self._tools, self._name)
        return True

    def _message(self, final: bool) -> bool:
        text, mark = self.until(_ENDS, final)
        if self._kind == _REASONING:
            self.reason(text)
        elif self._kind == _CONTENT:
            self.say(text, final=final or mark is not None)
        else:
            self._body += text
            if self._stream:
                self.out.parts += self._stream.feed(text, end=final or mark is not None)
        if mark is None and not final:
            return False
        if self._kind == _CALL:
            self._end_call()
        self.turn(trim=False)
        self._heading = self._kind = None
        if mark in ("<|start|>", "<|channel|>"):
            self.held = mark + self.held
        return mark is not None

    def _end_call(self) -> None:
        try:
            readable = isinstance(json.loads(self._body), dict)
        except (ValueError, RecursionError):
            readable = False
        begun = self._stream is not None and self._stream.begun > 0
        if readable and not begun:
            self.out.calls.append(Call(self._name, self._body.strip()))
        elif self.cut and not readable:
            self.out.cut = True
        elif begun:
            return
        else:
            self.say(f"{self._heading}{self._body}", final=True)
