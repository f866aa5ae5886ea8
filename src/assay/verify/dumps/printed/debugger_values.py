"""Rewrites arrays that gdb printed: the row stands in the command, the values below it.

(gdb) p *&x[8*40]@3              x pos 8: [0.5, 0.25, 1.5]
$4 = {0.5, 0.25, 1.5}

The second factor must be the same in all commands for one variable: it is the length of a row.

Touch this module for the commands of another debugger.
"""

from __future__ import annotations

import re

_PRINTED = re.compile(
    r"^(?:\([a-z]{2,8}\) )?(?:p|print|output|parray)(?:/[a-z])? \*?&?\(?([A-Za-z_]\w{0,40})"
    r"(?:\[(\d{1,6})(?: ?\* ?(\d{1,6}))?\]| ?\+ ?(\d{1,6}) ?\* ?(\d{1,6}))?\)?@\d{1,6}\n"
    r"\$\d{1,6} = \{([^{}\n]{3,100000})\}$",
    re.MULTILINE,
)


def with_debugger_values(text: str) -> str:
    """The text with such arrays on one line each."""
    if "@" not in text:
        return text
    widths: dict[str, set[str]] = {}
    for m in _PRINTED.finditer(text):
        widths.setdefault(m[1], set()).update({m[3] or m[5]} - {None})
    return _PRINTED.sub(lambda m: _one_line(m) if len(widths[m[1]]) == 1 else m[0], text)


def _one_line(m: re.Match[str]) -> str:
    row = int(m[2] or m[4] or 0)
    at_row = m[3] or m[5] or not row  # x[40] is an element
    return f"{m[1]} pos {row}: [{m[6]}]" if at_row else m[0]
