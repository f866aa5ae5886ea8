"""Moves the token of a decode step from each of its lines into a heading above them.

phase=decode step=1 tok=64 layer=0 rms=1.25      --- decode step 1, token 64 ---
phase=decode step=1 tok=64 layer=1 rms=2.5       phase=decode layer=0 rms=1.25
                                                 phase=decode layer=1 rms=2.5

A line must say that it belongs to decoding and name the token, but no position: a position says more, and other rules
read it. A heading begins where the step or the token changes, or where the words of a line come again.

{"prompt": [5, 6, 7], "feed": [64, 9]}           the same where the ids are listed once, and each line has the number of
{"step": 0, "q": 0.5}                            its call: 0 is the prompt, or 1
{"step": 1, "q": 1.5}

Touch this module for another word for decoding.
"""

from __future__ import annotations

import re
from itertools import pairwise

from assay.verify.dumps.printed.decode_steps import step_heading

_STEMS = ("decod", "gen", "step", "fed", "feed", "_tokens")  # a text without them shows no steps, and is not searched
_LONGEST = 400  # characters, at the beginning of a line
_DECODING = re.compile(
    r"\b(?:call|phase|pass|mode|stage|forward|kind)[\"']?\s{0,2}[=:]\s{0,2}[\"']?(?:decod|gen|step)\w{0,10}", re.I
)
_STEP = re.compile(r"[\"']?\b(?:step|iter|call|i)[\"']?\s{0,2}[=:]\s{0,2}(\d{1,5})\b(?!\.\d)[,;]?\s{0,4}", re.I)
_TOKEN = re.compile(
    r"[\"']?\b(?:token(?:_?id)?|tok(?:_?id)?|id|fed|input(?:_?id)?)[\"']?\s{0,2}[=:]\s{0,2}(\d{1,7})\b(?!\.\d)[,;]?\s{0,4}",
    re.IGNORECASE,
)
_POSITION = re.compile(r"\b(?:n_?past|past|pos|position|p|row)\b[\"']?\s{0,2}[=:]", re.IGNORECASE)
_DECIMAL = re.compile(r"-?\d{1,9}\.\d")
_FED = re.compile(
    r"\b(?:feed|feeds|fed|decode|decoded|generated|gen|gen_ids|new_tokens|next_tokens)\b[\"']?\s{0,3}[=:]\s{0,3}"
    r"[\[(]\s{0,3}(\d{1,7}(?:\s{0,3},\s{0,3}\d{1,7}){0,400})\s{0,3}[\])]",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"[\"']?\b(?:step|call|pass|forward|iter)(?:_?(?:id|idx|no|index))?[\"']?\s{0,2}[=:]\s{0,2}(\d{1,4})\b(?!\.\d)[,;]?\s?",
    re.IGNORECASE,
)


def with_steps_headed(text: str) -> str:
    """The text with a heading above the lines of each decode step."""
    small = text.lower()
    if not any(stem in small for stem in _STEMS):
        return text
    fed = _FED.search(text)
    if fed and (numbered := _calls_headed(text.split("\n"), [int(n) for n in fed[1].split(",")])):
        return "\n".join(numbered)
    if _DECODING.search(text) is None:
        return text
    out = list[str]()
    now: tuple[str, int] | None = None
    names, count = set[str](), 0
    for line in text.split("\n"):
        found = _step_of(line)
        if found is None:
            out.append(line)
            continue
        step, token, rest = found
        name = _DECIMAL.split(rest, maxsplit=1)[0]
        if (step, token) != now or name in names:
            now, names, count = (step, token), set(), count + 1
            out.append(step_heading(count, token))
        names.add(name)
        out.append(rest)
    return "\n".join(out)


def _step_of(line: str) -> tuple[str, int, str] | None:
    """The step, the token, and the line without them."""
    head = line[:_LONGEST]
    if not _DECODING.search(head) or not _DECIMAL.search(head) or _POSITION.search(head):
        return None
    token = _TOKEN.search(head)
    if token is None:
        return None
    rest = head[: token.start()] + head[token.end() :]
    step = _STEP.search(rest)
    rest = rest if step is None else rest[: step.start()] + rest[step.end() :]
    return step[1] if step else "", int(token[1]), rest + line[_LONGEST:]


def _calls_headed(lines: list[str], fed: list[int]) -> list[str]:
    """The lines without the numbers of their calls, below a heading for each of the ids; none if they do not count."""
    found = {i: m for i, line in enumerate(lines) if (m := _CALL.search(line[:_LONGEST])) and _DECIMAL.search(line)}
    numbers = [int(m[1]) for m in found.values()]
    first = min(numbers, default=2)
    counted = first < 2 and numbers[0] == first and all(b in (a, a + 1) for a, b in pairwise(numbers))
    if not counted or numbers[-1] - first != len(fed):
        return []
    out, now = list[str](), first
    for i, line in enumerate(lines):
        m = found.get(i)
        if m is not None and int(m[1]) > now:
            now = int(m[1])
            out.append(step_heading(now - first, fed[now - first - 1]))
        out.append(line if m is None else line[: m.start()] + line[m.end() :])
    return out
