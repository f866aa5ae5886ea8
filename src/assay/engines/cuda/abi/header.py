"""native/cuda/abi.h, written from the tables of this package."""

from __future__ import annotations

import ctypes
import inspect
import re
from enum import IntEnum, IntFlag
from pathlib import Path
from textwrap import wrap
from typing import Any

from assay.engines.cuda.abi.arguments import CLASSES, STRUCTS, FieldRow, Struct
from assay.engines.cuda.abi.enumerations import CONSTANTS, ENUMS, FORMAT_ROWS, cpp_name
from assay.engines.cuda.abi.shared_memory import FORMULAS, Formula

PATH = Path(__file__).resolve().parents[5] / "native" / "cuda" / "abi.h"
_WIDTH = 120
_HEAD = """\
// The binary interface between kernels and the compiler in Python: enums, constants, structs, bytes of shared memory.
//
// Generated from src/assay/engines/cuda/abi; do not edit. `python -m assay.engines.cuda.abi` writes it anew.
#pragma once
#include "platform.h"

namespace assay {
"""


def _comment(text: str, indent: str = "") -> list[str]:
    return wrap(" ".join(text.split()), _WIDTH, initial_indent=f"{indent}// ", subsequent_indent=f"{indent}// ")


def _constants() -> list[str]:
    return [f"constexpr int {cpp_name(name)} = {value};  // {note}" for name, (value, note) in CONSTANTS.items()]


def _enum(kind: type[IntEnum] | type[IntFlag]) -> list[str]:
    members = ", ".join(f"{member.name}~=~{int(member)}" for member in kind)  # ~: no line break here
    lines = [line.replace("~", " ") for line in wrap(members, _WIDTH - 4, break_long_words=False)]
    return [*_comment(inspect.getdoc(kind) or ""), f"enum {kind.__name__} {{", *(f"    {line}" for line in lines), "};"]


def _declared(row: FieldRow) -> str:
    names = [f"{name}[{count}]" if count else name for name, count in row.names]
    if row.type.endswith("*") and len(names) == 1:
        return f"{row.type} {names[0]};"
    if row.type.endswith("*"):
        return f"{row.type[:-1]} {', '.join(f'*{name}' for name in names)};"
    return f"{row.type} {', '.join(names)};"


def _row(row: FieldRow, indent: str = "    ") -> list[str]:
    union = next((s for s in STRUCTS if s.union and s.name == row.type), None)
    if union:
        return [f"{indent}union {{", *(line for r in union.rows for line in _row(r, indent + "    ")), f"{indent}}};"]
    line = f"{indent}{_declared(row)}"
    if not row.note:
        return [line]
    beside = f"{line}  // {row.note}"
    return [beside] if len(beside) <= _WIDTH else [*_comment(row.note, indent), line]


def members(struct: Struct) -> list[tuple[str, str]]:
    """Each field's name in Python and in C++: of an anonymous union, the first member's."""
    unions = {s.name: s for s in STRUCTS if s.union}
    return [
        (name, unions[row.type].rows[0].names[0][0] if row.type in unions else name)
        for row in struct.rows
        for name, _ in row.names
    ]


def _struct(struct: Struct) -> list[str]:
    base = f" : {struct.base}" if struct.base else ""
    methods = [f"    DEVICE {method};" for method in struct.methods]
    body = [line for row in struct.rows for line in _row(row)]
    space = [""] if methods else []
    return [*_comment(struct.note), f"struct {struct.name}{base} {{", *body, *space, *methods, "};"]


def _format_sizes() -> list[str]:
    lines = [
        *_comment("Size of each layout, which formats.h must agree with: 16-byte chunks of an item."),
        "struct FormatSize {",
        "    int chunks, scale_chunks;",
        "    bool word, floats, half_sums;",
        "};",
        "constexpr FormatSize format_size(int format) {",
        "    switch (format) {",
    ]
    for row in FORMAT_ROWS:
        flags = ", ".join(str(flag).lower() for flag in (row.word, row.floats, row.half_sums))
        lines.append(f"        case {row.format.name}: return {{{row.chunks}, {row.scale_chunks}, {flags}}};")
    return [*lines, "    }", "    return {};", "}"]


def _formula(formula: Formula) -> list[str]:
    text = formula.expression.replace("//", "/").replace("max(", "max_of(")
    text = text.replace("WALK_STEP_BYTES", "int(sizeof(WalkStep))")
    for name in CONSTANTS:
        text = re.sub(rf"\b{name}\b", cpp_name(name), text)
    parameters = ", ".join(f"int {name}" for name in formula.parameters)
    return [*_comment(formula.note), f"constexpr int {formula.name}({parameters}) {{", f"    return {text};", "}"]


def _macro(name: str, parameter: str, rows: list[str]) -> list[str]:
    lines = wrap(" ".join(row.replace(" ", "~") for row in rows), _WIDTH - 6, break_long_words=False)
    lines = [f"    {line.replace('~', ' ')}" for line in lines]
    return [f"#define {name}({parameter}) \\", *(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _checks() -> list[str]:
    """Every struct with its size and every field with its offset, as ctypes has them; the compiler must agree."""
    structs = [s for s in STRUCTS if not s.union]
    classes: dict[str, Any] = CLASSES
    sizes = [f"STRUCT({s.name}, {ctypes.sizeof(classes[s.name])})" for s in structs]
    offsets = [
        f"FIELD({s.name}, {member}, {getattr(classes[s.name], name).offset})"
        for s in structs
        for name, member in members(s)
    ]
    return [
        "// Size of each struct, and offset of each field, as ctypes has them.",
        *_macro("ABI_STRUCTS", "STRUCT", sizes),
        *_macro("ABI_FIELDS", "FIELD", offsets),
        "#define ABI_SIZE_IS(name, size) static_assert(sizeof(name) == size, #name);",
        "ABI_STRUCTS(ABI_SIZE_IS)",
        "#undef ABI_SIZE_IS",
        "#ifndef __CUDACC_RTC__  // NVRTC 13.0 has no offsetof; the host compiler of the shim checks the offsets",
        "#define ABI_OFFSET_IS(name, member, offset) \\",
        '    static_assert(__builtin_offsetof(name, member) == offset, #name "." #member);',
        "ABI_FIELDS(ABI_OFFSET_IS)",
        "#undef ABI_OFFSET_IS",
        "#endif",
    ]


def text() -> str:
    """The whole header."""
    sections = [_constants(), *(_enum(kind) for kind in ENUMS), _format_sizes()]
    sections += [_struct(struct) for struct in STRUCTS if not struct.union]
    sections.append(["constexpr int max_of(int a, int b) { return a > b ? a : b; }"])
    sections += [_formula(formula) for formula in FORMULAS]
    sections += [_checks(), ["}  // namespace assay"]]
    return _HEAD + "\n" + "\n\n".join("\n".join(section) for section in sections).rstrip() + "\n"


def main() -> None:
    PATH.write_text(text(), "utf-8")
