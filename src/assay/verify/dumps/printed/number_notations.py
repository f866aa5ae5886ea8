"""Rewrites numbers in other notations: hexadecimal floats of C's %a, hexdumps of float32, decimal commas.

A hexdump becomes a line `NAME: [values]`; the name is in the command above it, or in the file's name that it shows.
Commas are decimal where many numbers have one, apart by blanks, and next to none a point: `-0,00785  1,07424  1.536`.
Files that are numbered one by one, `a_01_x_8x40.f32`, `a_02_x_8x40.f32`, are of layers: `layer 0 x`, `layer 1 x`.
"""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

_HEX_FLOAT = re.compile(r"(?<![\w.])([-+]?)0[xX]([01])(?:\.([0-9a-fA-F]{1,14}))?[pP]([-+]?\d{1,4})\b")
# hexdump -C: "00000010  28 01 00 00 a2 01 00 00  49 … |…|"; xxd: "00000010: 2801 0000 a201 0000 …  (.......".
_DUMPED = re.compile(r"\s*[0-9a-fA-F]{7,16}:?\s+((?:[0-9a-fA-F]{2}[ \t]*){1,32}?)(?:\s{2,}.{0,80}|\s*\|.{0,80})?")
_LONGEST = 200  # characters of a line of a hexdump
_END = re.compile(r"\s*[0-9a-fA-F]{7,16}\s*")
_COMMAND = re.compile(r"(?:hexdump|xxd|od)\b(?:\s+-\S+(?:\s+\d+)?)*\s+(?:\S*/)?([\w.@+-]{1,120})")
_WITH_COMMA = re.compile(
    r"(?<![\d.,])(-?\d{1,6}|-?\d{1,3}(?:\.\d{3}){1,3}),(\d{1,12}(?:e[-+]?\d{1,3})?)(?![\d,]|\.\d)", re.IGNORECASE
)
_FEWEST_COMMAS = 12
_FEW_POINTS = 0.05  # of these numbers: the version of a program
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:\.\d{3}){1,3})(?![\d.,])")
_POINT = re.compile(r"\d\.\d")
_NUMBERED = re.compile(r"([A-Za-z_]*?)_?(\d{1,3})_([A-Za-z]\w{0,30})")
_SHAPE = re.compile(r"_\d{1,6}(?:x\d{1,6}){1,2}$")
_TYPE = re.compile(r"\.(?:f32|bin|raw|dat|f16|i32|u32|int32|tokens)$")


def in_decimal(text: str) -> str:
    """The text with hexadecimal floats as decimal numbers and hexdumps as lists."""
    if "0x" in text or "0X" in text:
        text = _HEX_FLOAT.sub(_decimal, text)
    if "hexdump" in text or "xxd" in text or re.search(r"^0{7,8}:? {1,2}[0-9a-f]{2}", text, re.MULTILINE):
        text = "\n".join(_undumped(text.splitlines()))
    if _commas_are_decimal(text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(".", ""), text)
        text = _WITH_COMMA.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)
    return text


def _commas_are_decimal(text: str) -> bool:
    """Whether many numbers have a comma and three digits behind it, and next to none a point."""
    if text.count(".") > text.count(","):
        return False
    long = sum(len(m[2]) > 2 for m in _WITH_COMMA.finditer(text))
    if long < _FEWEST_COMMAS:
        return False
    points = _POINT.findall(_WITH_COMMA.sub("", _THOUSANDS.sub("", text)))
    return len(points) <= _FEW_POINTS * long


def _decimal(m: re.Match[str]) -> str:
    try:
        return f"{float.fromhex(m[0]):.9g}"
    except OverflowError:
        return "-inf" if m[1] == "-" else "inf"


def _undumped(lines: list[str]) -> list[str]:
    found: list[str] = []
    named: dict[int, str] = {}  # names of lists, by their place in `found`
    name, data, kind = "", bytearray(), "<f4"

    def close() -> None:
        if data:
            values = np.frombuffer(bytes(data[: len(data) // 4 * 4]), kind)
            shown = ", ".join(str(int(v)) if kind == "<i4" else f"{float(v):.9g}" for v in values)
            if name:
                named[len(found)] = name
            found.append(f"[{shown}]")
            data.clear()

    for line in lines:
        m = _DUMPED.fullmatch(line) if len(line) < _LONGEST else None
        if m is not None:
            data += bytes.fromhex(m[1])
        elif not (data and _END.fullmatch(line)):
            close()
            said = _COMMAND.search(line) or (re.search(r"([\w.@-]{1,120}\.(?:f32|bin|raw|i32))\b", line))
            if said is None:
                found.append(line)
                continue
            name = _SHAPE.sub("", _TYPE.sub("", said[1]))
            kind = "<i4" if re.search(r"\.(?:i32|u32|int32)$|^(?:tokens?|ids)\b", said[1]) else "<f4"
            name = re.sub(r"[.@_](pos|tok|row)_?(\d)", r" \1 \2", name)
    close()
    for i, name in _with_layers(named).items():
        found[i] = f"{name}: {found[i]}"
    return found


def _with_layers(names: dict[int, str]) -> dict[int, str]:
    """The names; those that differ in a number that counts by one have it as their layer."""
    numbered = {i: m for i, name in names.items() if (m := _NUMBERED.fullmatch(name))}
    groups: dict[tuple[str, str], list[int]] = {}
    for i, m in numbered.items():
        groups.setdefault((m[1], m[3]), []).append(i)
    named = dict(names)
    for (_, what), places in groups.items():
        counts = [int(numbered[i][2]) for i in places]
        if len(counts) > 1 and all(b == a + 1 for a, b in pairwise(counts)):
            named |= {i: f"layer {count - counts[0]} {what}" for i, count in zip(places, counts, strict=True)}
    return named
