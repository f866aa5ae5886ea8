"""Grammars in llama.cpp's notation (GBNF), written so that llguidance's converter to Lark reads them right.

The converter refuses or misreads some of what llama.cpp reads. Here each is written another way with the same meaning:

    \\u00e9, \\U0001f600     the character itself
    [a&&b], [+--]          set operators of the target's regular expressions: signs as \\x26
    (x+)?                  a repeated repetition: (x+ "")?
    {,3}                   {0,3}
    start, ws and WS, 1a   rule names that clash, or are none, in Lark: name_N
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

_RULE = re.compile(r"^\s*[\w-]+[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"?) | (?P<set>\[(?:\\.|[^\]\\])*\]?) | (?P<comment>\#[^\r\n]*) | (?P<name>[\w-]+)
    | (?P<times>[*+?]|\{[\s\d,]*\}) | (?P<close>\)) | (?P<space>\s+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)"
_CHARACTER = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_RANGE = re.compile(rf"({_ESCAPE}|.)(?:-({_ESCAPE}|[^\]]))?", re.DOTALL)
_DIGITS = 9  # of a repetition
_NAMED = {"t": "\t", "r": "\r", "n": "\n"}
_SURROGATES = range(0xD800, 0xE000)


def to_lark(text: str) -> str:
    """A grammar in GBNF or Lark as Lark. An error is an exception of the converter."""
    if is_lark_syntax(text) and not _RULE.search(text):
        return text
    names = {"root": "root"}
    try:
        return str(gbnf_to_lark("".join(_rewritten(text, names))))
    except Exception as error:  # the converter knows the rules by their names in Lark
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        for name, in_lark in names.items():
            said = re.sub(rf"\b{in_lark}\b", name, said)
        raise ValueError(said) from None


def _rewritten(text: str, names: dict[str, str]) -> Iterator[str]:
    """The tokens as the converter reads them; `names` gets the name in Lark of every rule."""
    before = ""  # kind of the last token that is neither space nor comment
    for found in _TOKEN.finditer(text):
        kind, token = str(found.lastgroup), found[0]
        if kind in ("text", "set") and not _is_closed(kind, token):
            pass  # the converter refuses it
        elif kind == "text":
            token = f'"{_CHARACTER.sub(_in_text, token[1:-1])}"'
        elif kind == "set":
            negated = token.startswith("[^")
            token = f"[{'^' * negated}{_RANGE.sub(_in_set, token[1 + negated : -1])}]"
        elif kind == "comment":
            continue
        elif kind == "name":
            token = names.setdefault(token, f"{re.sub(r'[^a-zA-Z]+', '_', f'r{token}').lower()}_{len(names)}")
        elif kind == "times":
            if longest := re.search(rf"\d{{{_DIGITS + 1},}}", token):
                raise ValueError(f"a repetition has {len(longest[0])} digits (at most {_DIGITS})")
            token = re.sub(r"\{\s*,", "{0,", token)
        elif kind == "close" and before in ("times", "close"):
            token = ' "")'
        if kind != "space":
            before = kind
        yield token


def _is_closed(kind: str, token: str) -> bool:
    return len(token) > 1 and token[-1] == ('"' if kind == "text" else "]")


def _in_text(found: re.Match[str]) -> str:
    character = _value(found[0])
    return found[0] if character is None or not found[0].startswith(("\\u", "\\U")) else _written(character)


def _in_set(found: re.Match[str]) -> str:
    ends = [_value(end) for end in found.groups() if end is not None]
    return found[0] if None in ends else "-".join(_written(str(end)) for end in ends)


def _value(character: str) -> str | None:
    """The character that one of GBNF stands for; None if the converter has to refuse it."""
    if len(character) == 1:
        return character
    if character[1] in "xuU" and len(character) > 2:
        code = int(character[2:], 16)
        return chr(code) if code <= 0x10FFFF and code not in _SURROGATES else None
    return _NAMED.get(character[1], character[1]) if character[1] in '"\\[]nrt' else None


def _written(character: str) -> str:
    """A character that means itself in a text and in a set."""
    return character if character.isalnum() or ord(character) > 127 else f"\\x{ord(character):02x}"
