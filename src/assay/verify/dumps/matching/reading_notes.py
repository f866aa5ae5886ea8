"""Tells the user how a log was read: one line for each kind of node, the assumptions, and hints for --pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from assay.errors import AssayError
from assay.graph import split
from assay.verify.dumps.matching.by_values import can_identify
from assay.verify.dumps.observation import STATISTICS, Dump, Observation
from assay.verify.dumps.other_evidence import PRINT


def grouped_notes(notes: Iterable[str]) -> list[str]:
    """One line for notes that differ only in their subject: "l_out-0 and 29 more: read as the last row"."""
    kinds: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        kinds.setdefault(re.sub(r"\d[\d.]*(?:e[-+]\d+)?", "#", note.partition(": ")[2] or note), []).append(note)
    found = []
    for many in kinds.values():
        subject, colon, rest = many[0].partition(": ")
        others = list(dict.fromkeys(s for note in many if (s := note.partition(": ")[0]) != subject))
        if others:
            subject += f" and {others[0]}" if len(others) == 1 else f" and {len(others)} more"
        found.append(
            subject + colon + rest if others or len(many) == 1 else f"{many[0]} ({len(many) - 1} more like it)"
        )
    return found


def reading_summary(dump: Dump, n: int) -> list[str]:
    """The reading of a log, a line each kind: "l_out-0 … l_out-29 (30 nodes): last row, 5 values and an rms each"."""
    lines: dict[str, dict[str, list[Observation]]] = {}
    for obs in dump.observations:
        lines.setdefault(obs.name, {}).setdefault(_shown(obs, n), []).append(obs)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, kinds in lines.items():
        rows = next(iter(kinds))
        what = _what([o for many in kinds.values() for o in many])
        key = (split(name)[0], f"{rows if len(kinds) == 1 else f'{len(kinds)} rows'}, {what}")
        groups.setdefault(key, []).append(name)
    found = []
    for (_, what), names in groups.items():
        said = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)} nodes)"
        found.append(f"{said}: {what}{' each' if len(names) > 1 else ''}")
    return found


def _shown(obs: Observation, n: int) -> str:
    if obs.rows is None or obs.rows == (0, n):
        return "the only row" if n == 1 else "all rows"
    if obs.rows == (n - 1, n):
        return "last row"
    return f"row {obs.rows[0]}"


def _what(observations: Sequence[Observation]) -> str:
    parts: dict[str, int] = {}
    for obs in observations:
        if obs.kind in STATISTICS:
            parts[("an " if obs.kind[0] in "aeiour" else "a ") + obs.kind] = 1
        else:
            word = {"first": "values", "last": "last values", "at": "single values", "top": "best logits"}[obs.kind]
            parts[word] = max(parts.get(word, 0), len(obs.data))
    words = [k if k.startswith(("a ", "an ")) else f"{v} {k}" for k, v in parts.items()]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def says_nothing(dump: Dump) -> bool:
    """Whether no line of a printed text names a node, or holds values by which one could be found."""
    return dump.claims is not None and not dump.observations and not can_identify(dump.unread)


def nothing_read_error(dump: Dump, differs: str = "") -> AssayError:
    """The error for a text in which no line names a node. `differs` are sizes that are not the model's."""
    kind = dump.claims.kind if dump.claims is not None else ""
    other = f", of another model ({differs})" if differs else ""
    if kind or differs:
        return AssayError(f"{dump.source}: {kind or 'a text'}, not values of nodes{other}; {PRINT}")
    hint = (
        f"; --pattern {suggested_pattern(dump.unexplained[0])!r} would take {dump.unexplained[0]!r}"
        if dump.unexplained
        else ""
    )
    return AssayError(f"{dump.source}: no known format, and no line that names a node{hint}; {PRINT}")


_LIST = re.compile(r"[\[({](?!\d{1,6}[\])}])\s{0,20}[-+.\d][^\[\](){}a-df-zA-Z]{0,4000}[\])}]")
_NAMED = re.compile(r"\b(layer|block|blk|l)([\s_.:#-]{0,3})\d{1,4}\b(?!\.\d)", re.IGNORECASE)
_FLOAT = re.compile(r"(?<![\w.])[-+]?\d{1,40}\.\d{0,40}(?:[eE][-+]?\d{1,4})?")


def suggested_pattern(line: str) -> str:
    """The --pattern that would take a line which speaks of no known node."""
    text = _LIST.sub(lambda m: m[0][0] + "{first}" + m[0][-1], line, count=1)
    text = _NAMED.sub(r"\1\2{layer}", text, count=1)
    if "{first}" not in text:
        text = _FLOAT.sub("{rms}", text, count=1)
    text = _FLOAT.sub("*", text)
    return text if "{layer}" in text else re.sub(r"^\s*[^\W\d][\w .-]{0,40}?(?=[:=\[])", "{name}", text, count=1)
