"""Reading printed text: what `llama-eval-callback` prints, and log lines through a small pattern language.

A pattern is a line of text with holes. Blanks match any blanks or none, `*` any text, letters in any case; a hole
may have blanks before it and takes what its name says:

  {rms} {mean} {min} {max} {sum}       a number: that statistic
  {first} {last}                       numbers apart by commas or blanks, up to `...`: the values at that end
  {top}                                pairs of token id and logit, in any brackets
  {index} {value}                      one value at an index          {id} {logit}     one token's logit
  {name} {layer} {row} {side}          what the line speaks of: a node, its layer, the token row, whose engine
  {tokens}                             the ids that were fed

A line that is a heading (`# …`, `**…**`, or ending in a colon) and speaks of a node, a position or an engine sets what
the lines after it describe. A line may match several patterns. `--pattern` puts your own before the built-in ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.verify.dumps.names import spoken
from assay.verify.dumps.observation import STATISTICS, Dump, Observation

BUILT_IN = (
    "first_10=[{first}]",
    "first * values: [{first}]",
    "{name}: mean={mean}, range=[{min}, {max}]",
    "mean={mean}, rms={rms}, min={min}, max={max}",
    "rms={rms}",
    "RMS: {rms}",
    "Top *: [{top}]",
    "#*: token={id} * logit={logit}",
    "token {id} (*) logit={logit}",
    "Token {id} (logit {logit})",
    "Token {id} (*) - logit {logit}",
    "Token {id} logit: {logit}",
    "Token {id}のlogit: {logit}",
    "Token {id}: {logit}",
    "Tokens*: [{tokens}]",
    "input = *[{tokens}]",
    "BOS token (ID {tokens})",
    "BOS token ({tokens})",
    "[{index}]: {value}",
    "{side}: [{first}]",
    "[{first}]",
)

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LIST = rf"\s*{_NUMBER}(?:[\s,]+{_NUMBER})*[\s,]*(?:\.\.\.|…)?\s*"
_PAIR = rf"[\[(]\s*\d+\s*,\s*[\"']?{_NUMBER}[\"']?\s*[\])]"
_HOLES = {
    **dict.fromkeys((*STATISTICS, "value", "logit"), _NUMBER),
    **dict.fromkeys(("first", "last", "tokens"), _LIST),
    **dict.fromkeys(("index", "id", "layer", "row"), r"\d+"),
    "top": rf"\s*{_PAIR}(?:\s*,\s*{_PAIR})*[\s,]*(?:\.\.\.|…)?\s*",
    "name": r"[^\W\d_][^:=\[\]{}]*?",
    "side": r"[A-Za-z][\w.+-]*",
}
_HEADING = re.compile(r"^\s*(?:#+\s|\*\*|[-\d.]+\s+\*\*)|[:：]\s*\**\s*$")
_FENCE = "```"
_POSITION = re.compile(r"\b(?:position|row|pos)\s+(\d+)\b", re.IGNORECASE)
_BOLD = re.compile(r"^\s*\**([A-Za-z][\w.+-]*)\**\s*(?:\([^)]*\))?\s*:?\s*$")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern."""
    parts, holes = [], set()
    for piece in re.split(r"(\{[^{}]*\}|\*|\s+)", pattern):
        if piece.startswith("{"):
            hole = piece[1:-1]
            if hole not in _HOLES:
                raise AssayError(f"pattern {pattern!r}: unknown hole {piece}; known are {', '.join(sorted(_HOLES))}")
            if hole in holes:
                raise AssayError(f"pattern {pattern!r}: the hole {piece} appears twice")
            holes.add(hole)
            parts.append(rf"\s*(?P<{hole}>{_HOLES[hole]})")
        else:
            parts.append(".*?" if piece == "*" else r"\s*" if piece.isspace() else re.escape(piece))
    if not holes:
        raise AssayError(f"pattern {pattern!r}: has no hole such as {{rms}} or {{first}}")
    start = r"(?<![\w.{])" if pattern[0] not in "{[*#" else r"^[\s>*-]*" if pattern[0] in "{[" else ""
    return re.compile(start + "".join(parts), re.IGNORECASE)


def half_unit(text: str) -> float:
    """Half a unit of the last printed digit."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)


@dataclass(frozen=True)
class _Context:
    name: str = ""
    side: str = ""
    row: int | None = None


def read_log(path: Path, patterns: Sequence[str] = (), text: str | None = None) -> Dump:
    """Observations from any text that people print or paste."""
    compiled = [compile_pattern(p) for p in (*patterns, *BUILT_IN)]
    context = _Context()
    sides: set[str] = set()
    fenced = False
    tokens: tuple[int, ...] = ()
    found: list[Observation] = []
    content = path.read_text("utf-8", "replace") if text is None else text
    for number, line in enumerate(content.splitlines(), 1):
        if len(line) > 1 << 20:
            raise AssayError(f"{path}: line {number}: longer than 1 MiB; that is no log line")
        taken = False
        fenced ^= line.lstrip().startswith(_FENCE)
        for pattern in compiled:
            m = pattern.search(line)
            if m is None:
                continue
            holes = {k: v for k, v in m.groupdict().items() if v is not None}
            if "tokens" in holes:
                tokens = tokens or tuple(int(float(t)) for t in re.findall(_NUMBER, holes["tokens"]))
                taken = True
                break
            if "layer" in holes and "name" not in holes:
                holes["name"] = m[0]
            new = list(_take(holes, context, f"{path}: line {number}"))
            if new:
                found += [o for o in new if not any(o.kind == p.kind and o.where == p.where for p in found[-8:])]
                taken = True
        if not taken and not (fenced and line.lstrip().startswith("#")):  # a comment in code is no heading
            context = _heading(line, context, sides)
        sides |= {context.side, *(o.side for o in found[-4:])} - {""}
    found = _together(found)
    steps = (len(tokens),) if tokens else ()
    return Dump(path.stem, tokens, tuple(range(len(tokens))), steps, tuple(found), str(path))


def _heading(line: str, context: _Context, sides: set[str]) -> _Context:
    if not _HEADING.search(line):
        return context
    if line.lstrip().startswith("#"):
        context = replace(context, side="", row=None)
    if m := _POSITION.search(line):
        context = replace(context, row=int(m[1]))
    if name := spoken(line):
        context = replace(context, name=name)
        if m := re.search(r"\bfrom\s+([A-Za-z][\w.+-]*)", line):
            context = replace(context, side=m[1])
    elif m := _BOLD.match(line):
        context = replace(context, side=m[1])
    if named := {s for s in sides if s in line}:
        context = replace(context, side=max(named, key=len))
    return context


def _take(holes: dict[str, str], context: _Context, where: str) -> Iterator[Observation]:
    name, side = context.name, context.side
    if "name" in holes:
        said = holes["name"].strip()
        name = spoken(said) or (f"{said}-{holes['layer']}" if "layer" in holes else said)
    if "side" in holes:
        if spoken(holes["side"]):
            name = spoken(holes["side"]) or name
        else:
            side = holes["side"]
    row = int(holes["row"]) if "row" in holes else context.row
    if ("id" in holes or "top" in holes) and not spoken(name):
        name = "result_output"
    if not name:
        return

    def observe(kind: str, data: Any, texts: Sequence[str]) -> Observation:
        rows = None if row is None else (row, row + 1)
        printed = tuple(half_unit(t) for t in texts)
        return Observation(name, kind, data, rows, foreign=side or name, side=side, where=where, printed=printed)

    for kind in STATISTICS:
        if kind in holes:
            yield observe(kind, float(holes[kind]), [holes[kind]])
    for kind in ("first", "last"):
        if kind in holes:
            texts = re.findall(_NUMBER, holes[kind])
            if not any("." in t or "e" in t.lower() for t in texts):
                continue  # a shape or a list of ids
            yield observe(kind, tuple(map(float, texts)), texts)
    if "top" in holes:
        pairs = re.findall(rf"(\d+)\s*,\s*[\"']?({_NUMBER})", holes["top"])
        yield observe("top", tuple((int(i), float(x)) for i, x in pairs), [x for _, x in pairs])
    if "id" in holes and "logit" in holes:
        yield observe("at", ((int(holes["id"]), float(holes["logit"])),), [holes["logit"]])
    if "index" in holes and "value" in holes:
        yield observe("at", ((int(holes["index"]), float(holes["value"])),), [holes["value"]])


def _together(found: list[Observation]) -> list[Observation]:
    """Single values of consecutive lines become one observation; a repeated statement counts once."""
    out: list[Observation] = []
    for obs in found:
        last = out[-1] if out else None
        key = (obs.name, obs.kind, obs.rows, obs.side)
        if last and obs.kind == "at" and key == (last.name, last.kind, last.rows, last.side):
            if obs.data[0][0] not in dict(last.data):
                out[-1] = replace(last, data=last.data + obs.data, printed=last.printed + obs.printed)
            continue
        same = [o for o in out if (o.name, o.kind, o.rows, o.side) == key]
        if not any(o.data == obs.data for o in same):
            out.append(obs)
    return out


# -- llama-eval-callback -------------------------------------------------------------------------------------

_TENSOR = re.compile(
    r"(?:ggml_debug|common_debug_cb_eval|\w*cb_eval):\s+(?P<name>.+?) = \((?P<type>\w+)\)\s+(?P<op>\w+)\(.*\)\s*="
    r"\s*\{(?P<ne>[\d, ]+)\}"
)
_SUM = re.compile(rf"^\s*sum = (?P<sum>{_NUMBER}|-?nan|-?inf)\s*$")
_ROW = re.compile(rf"^\s*\[\s*(?P<row>{_NUMBER}(?:\s*,\s*(?:{_NUMBER}|\.\.\.))*)\s*\],?\s*$")
SHOWN = 3  # values it prints at each end of an axis


def is_eval_callback(head: str) -> bool:
    return bool(_TENSOR.search(head))


def read_eval_callback(path: Path) -> Dump:
    """llama.cpp's printout: three values at either end of every axis, and the sum. `ne` is fastest first.

    Before 2025 it printed only the first three values of an axis and no sum.
    """
    found: list[Observation] = []
    counts: dict[tuple[str, str], int] = {}
    current: re.Match[str] | None = None
    rows: list[list[str]] = []
    total, begun = "", 0

    def finish() -> None:
        if current is not None and rows:
            key = current["name"], current["op"]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 1:
                found.extend(_printed(current, rows, total, f"{path}: line {begun}"))

    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if m := _TENSOR.search(line):
                finish()
                current, rows, total, begun = m, [], "", number
            elif current and not total and (m := _ROW.match(line)):
                rows.append(re.split(r"\s*,\s*", m["row"].strip()))
            elif current and (m := _SUM.match(line)):
                total = m["sum"]
    finish()
    if not found:
        raise AssayError(f"{path}: llama-eval-callback's tensors are named but no values are printed; truncated")
    later = sum(n > 1 for n in counts.values())
    notes = (f"{later} names appear in several steps; only the first step was read",) if later else ()
    return Dump("llama.cpp", (), (), (), tuple(found), str(path), notes=notes)


def _printed(tensor: re.Match[str], rows: list[list[str]], total: str, where: str) -> list[Observation]:
    name = tensor["name"].strip()
    shape = tuple(int(n) for n in reversed(tensor["ne"].split(",")))
    if total and not math.isfinite(float(total)):
        raise AssayError(f"{where}: {name}: the sum is {total}; find where the engine overflows")
    old = all(row[-1] == "..." for row in rows)

    def shown(n: int) -> list[int]:
        tail = [] if old else [*range(max(SHOWN, n - SHOWN), n)]
        return [*range(min(n, SHOWN)), *tail]

    axes = [shown(n) for n in shape]
    texts = [t for row in rows for t in row if t != "..."]
    if len(rows) != math.prod(len(a) for a in axes[:-1]) or len(texts) != math.prod(len(a) for a in axes):
        raise AssayError(f"{where}: {name}: the printed values do not fit the shape {list(shape)}; truncated or edited")
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    index = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in product(*axes)]
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    common: dict[str, Any] = {"shape": shape, "foreign": name, "op": tensor["op"], "where": where}
    pairs = tuple(zip(index, map(float, texts), strict=True))
    found = [Observation(name, "at", pairs, printed=tuple(half_unit(t) for t in texts), **common)]
    if total:
        found.append(Observation(name, "sum", float(total), printed=(half_unit(total),), **common))
    return found
