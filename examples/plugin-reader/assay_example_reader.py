"""A file format and a habit of printing of another package.

The format `tabdump` is text. Its first line is `# tabdump 1`; every other line has fields between tabs:

    tokens<TAB>1 5 9
    ffn_out-0<TAB>3 64<TAB>0.25 -1.5 ...        a name, a shape, the values

The habit is a log line such as `probe ffn_out of 3 sized 2.5`: a node, its layer, and the node's RMS.

`register` is the entry point. assay calls it once, before it reads the first dump of a process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from assay.errors import AssayError
from assay.verify.dumps.load import DumpReader, DumpSource, pattern_rule, register_reader, register_rule
from assay.verify.dumps.observation import Dump, Observation

MAGIC = b"# tabdump 1\n"
MOST_BYTES = 1 << 30  # the bytes come from a stranger: bound memory before reading


def takes(source: DumpSource) -> bool:
    return source.head.startswith(MAGIC)


def read(source: DumpSource) -> Dump:
    """Names and layouts as they are written; assay maps them to the nodes of a model later."""
    path = source.path
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise AssayError(f"{path}: too large (found {size} bytes, expected at most {MOST_BYTES}); dump fewer nodes")
    tokens: tuple[int, ...] = ()
    seen: list[Observation] = []
    lines = path.read_text("utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("\t")
        if fields[0] == "tokens" and len(fields) == 2:
            tokens = tuple(whole_numbers(path, number, fields[1]))
        elif len(fields) == 3:
            seen.append(observation(path, number, *fields))
        elif line.strip():
            found = f"found {len(fields)} fields, expected a name, a shape and values"
            raise AssayError(f"{path}: line {number}: not a line of a tabdump ({found}); write it again")
    return Dump("tabdump", tokens, tuple(range(len(tokens))), (len(tokens),), tuple(seen), str(path))


def observation(path: Path, number: int, name: str, axes: str, text: str) -> Observation:
    shape = tuple(whole_numbers(path, number, axes))
    try:
        values = np.array(text.split(), np.float32)  # it keeps NaN and infinities: they are evidence
    except ValueError:
        raise AssayError(f"{path}: line {number}: {name}: a value is not a number; print values with %g") from None
    if math.prod(shape) != values.size:
        found = f"found {values.size}, expected {math.prod(shape)} for the shape {list(shape)}"
        raise AssayError(f"{path}: line {number}: {name}: wrong number of values ({found}); print the whole tensor")
    return Observation(name, "values", values.reshape(shape), shape=shape, foreign=name, where=f"line {number}")


def whole_numbers(path: Path, number: int, text: str) -> Sequence[int]:
    words = text.split()
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise AssayError(f"{path}: line {number}: not whole numbers (found {text!r:.40}); separate them by blanks")
    return [int(word) for word in words]


READER = DumpReader("tabdump", 95, takes, read)
RULE = pattern_rule(
    "example: probe lines",
    "probe {name} of {layer} sized {rms}",
    example="probe ffn_out of 3 sized 2.5\n",
    yields=("ffn_out-3 rms 2.5",),
)


def register() -> None:
    register_reader(READER)
    register_rule(RULE)
