"""Text from strangers on its way to a terminal: names, messages and answers that must not move its cursor.

A terminal obeys what it is sent. A file's name for a tensor, a template's complaint, a server's reply and a model's
answer are data, so whatever a terminal would obey is shown instead.
"""

from __future__ import annotations

_KEPT = {ord("\n"): "\n", ord("\t"): "\t"}
_OBEYED = (
    {code: chr(0x2400 + code) for code in range(32)}  # the pictures that Unicode has for them: ESC is ␛
    | {0x7F: "␡"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
    | _KEPT
)


def printable(text: str, longest: int = 400) -> str:
    """A name or a message as one line: what is not printable is escaped, the middle of a long one left out."""
    short = text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in short)


def harmless(text: str) -> str:
    """Running text with its lines, tabs and every letter, and pictures in place of controls and turns of direction."""
    return text.translate(_OBEYED)
