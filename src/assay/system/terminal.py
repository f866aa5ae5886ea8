"""Untrusted text for a terminal: control sequences are shown, not executed.

Tensor names, template errors, server responses and model answers are data. A terminal would execute control sequences
in them, so these are replaced by visible characters.
"""

from __future__ import annotations

_KEPT = {ord("\n"): "\n", ord("\t"): "\t"}
_OBEYED = (
    {code: chr(0x2400 + code) for code in range(32)}  # Unicode control pictures: ESC becomes ␛
    | {0x7F: "␡"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))}
    | _KEPT
)


def printable(text: str, longest: int = 400) -> str:
    """A name or a message as one line. Unprintable characters are escaped; the middle of a long one is left out."""
    short = text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in short)


def harmless(text: str) -> str:
    """Text with its lines and tabs. Control characters and bidirectional overrides become visible pictures."""
    return text.translate(_OBEYED)
