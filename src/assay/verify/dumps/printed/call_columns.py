"""Moves the column of a table that names the call of a row into a heading above the rows of each decode step.

# prompt=[9, 88] decode=[60, 101]            # prompt=[9, 88] decode=[60, 101]
call,layer,node,rms                          layer,node,rms
prefill,0,q,0.5                              0,q,0.5
dec1,0,q,0.25                                --- decode step 1, token 60 ---
dec2,0,q,1.5                                 layer,node,rms
                                             0,q,0.25
                                             …

The rows of a call stand together, the prompt's first. The text lists as many ids as there are steps, under a word for
decoding. Cells stand between commas, semicolons, tabs or bars.

Touch this module for another head of such a column, or another word for the prompt or a step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from assay.verify.dumps.printed.decode_steps import step_heading

_HEADS = {"call", "phase", "pass", "mode", "stage", "step", "forward", "kind"}
_MARKS = (",", ";", "\t", "|")
_LONGEST = 4000  # characters of a line
_FEWEST = 3  # columns
_PROMPT = re.compile(r"[\"']?(?:prompt|prefill|pp|context|ctx|0)[\"']?", re.IGNORECASE)
_STEP = re.compile(
    r"[\"']?(?:dec(?:ode|oding)?|gen(?:erate)?|step|tg|token)?[ _#.-]?\(?(\d{1,4})\)?[\"']?", re.IGNORECASE
)
_FED = re.compile(
    r"\b(?:decode[ds]?|decoding|dec|fed|feed|generated|gen|steps|then|followed by|continuation)\b"
    r"(?:[ _](?:ids|tokens))?[\"']?\s{0,3}[=:]\s{0,3}[\[(]?\s{0,3}(\d{1,7}(?:[\s,;]{1,3}\d{1,7}){0,400})(?![\d.])",
    re.IGNORECASE,
)


def with_calls_headed(text: str) -> str:
    """The text with such tables' rows below headings."""
    fed = _FED.search(text)
    if fed is None:
        return text
    ids, lines = [int(n) for n in re.findall(r"\d+", fed[1])], text.split("\n")
    out, at = list[str](), 0
    while at < len(lines):
        table = _table_at(lines, at)
        count = 1 if table is None else len(table[0])
        headed = None if table is None else _headed(*table, ids)
        out += lines[at : at + count] if headed is None else headed
        at += count
    return "\n".join(out)


def _table_at(lines: Sequence[str], at: int) -> tuple[list[list[str]], int, str] | None:
    """The cells of the table whose header is this line, the column of calls, and the mark between cells."""
    head = lines[at]
    if len(head) > _LONGEST:
        return None
    for mark in _MARKS:
        heads = head.split(mark)
        column = next((i for i, cell in enumerate(heads) if cell.strip(" \"'").lower() in _HEADS), None)
        if len(heads) < _FEWEST or column is None:
            continue
        rows = [heads]
        for line in lines[at + 1 :]:
            cells = line.split(mark) if len(line) <= _LONGEST else []
            if len(cells) != len(heads):
                break
            rows.append(cells)
        return (rows, column, mark) if len(rows) > len(heads) else None
    return None


def _headed(rows: Sequence[Sequence[str]], column: int, mark: str, ids: Sequence[int]) -> list[str] | None:
    """The lines without the column; None if its cells are not those of a prompt and of one step an id."""
    header, *body = (mark.join([*cells[:column], *cells[column + 1 :]]) for cells in rows)
    calls = [cells[column].strip() for cells in rows[1:]]
    runs = [(name, len(list(of))) for name, of in groupby(calls)]
    if len(runs) != len(ids) + 1 or not _PROMPT.fullmatch(runs[0][0]):
        return None
    steps = [_STEP.fullmatch(name) for name, _ in runs[1:]]
    numbers = [int(m[1]) for m in steps if m is not None]
    if len(numbers) != len(ids) or numbers != list(range(numbers[0], numbers[0] + len(ids))):
        return None
    out, start = [header, *body[: runs[0][1]]], runs[0][1]
    for i, (_, count) in enumerate(runs[1:]):
        out += [step_heading(i + 1, ids[i]), header, *body[start : start + count]]
        start += count
    return out
