"""Removes what surrounds a printed line: colours, boxes, and a logger's prefix before the message.

Each kind of prefix is a row. A new logger is a new row.
"""

from __future__ import annotations

import re

from assay.verify.dumps.printed.rule_rows import Rule, RuleTable

_MAX_PREFIXES = 5  # of one line: a quote, a time, a level, a place in the code
_MAX_COMMAS = 1 << 18  # characters that are searched for decimal commas
_COLOUR = re.compile(r"\x1b(?:\[[0-9;:?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = (
    r"(?:\d{4}[-/]\d\d[-/]\d\d|(?:\w{3}\s{1,2})?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}\d{1,2})?"
    r"[ T]?\d\d?:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z|\s?[+-]\d\d:?\d\d)?"
)
_LEVEL = (
    r"(?i:TRACE|DEBUG|DBG|DBUG|VERBOSE|FINE|FINER|FINEST|INFO|INF|NOTICE|WARN|WRN|WARNING|ERROR|ERR|FATAL|FTL|VRB|LOG)"
)
_CODE = (
    r"rs|[ch]|cc|[ch]pp|cuh?|go|zig|py|ipynb|jl|m?js|tsx?|swift|mm?|metal|java|kts?|cs|fsx?|vb|rb|f|f90|f95|for|exs?|erl"
    r"|dart|nim|mli?|hs|v|odin|lua|[rR]|php|pl|scm|lisp|clj|ad[bs]|pas|cr|d|scala|wgsl|glsl|comp|cl|asm|s"
)
_PROMPT = (
    r"(?:\((?:\w{1,4}-)?(?:gdb|lldb|dlv|i?pdb|Pdb|rdbg)\)|In \[\d{0,5}\]:|Out\[\d{0,5}\]:|>>>"
    r"|(?:julia|user|ghci|irb|iex|octave|node|utop|lua|php|jshell|sbcl|scala|R)[\w(): .]{0,20}[=*#]?>)"
)
_ITEM = re.compile(r"(\s*)[*•·▪▸▶◦‣-]\s+(?=\S)")
_DECIMAL_COMMA = re.compile(r"(?<![\d.,\w])([-+\u2212]?\d{1,4}),(\d{3,20}(?:[eE][-+]?\d{1,4})?)(?![\d.\w]|,\S)")
_POINT = re.compile(r"\d\.\d")


_UPRIGHT = "│┃║┆┇┊┋╎╏"
_BOX = str.maketrans({"¯": "-"} | {chr(c): "|" if chr(c) in _UPRIGHT else " " for c in range(0x2500, 0x2580)})


_FRAME = re.compile(r"^\s{0,40}[╭┌╔][─━═]{2,200}\s{0,8}(?=\w)")  # a title in the border of a box
_TAGGED = re.compile(r"<((?!t[dhr]>)[A-Za-z][\w-]{0,30})>([^<>]{0,2000})</\1>")  # <layer>0</layer>
_CELL = re.compile(r"(?:</?t[dhr][^<>]{0,80}>\s{0,8})+")
_BRANCHES = re.compile(r"\s*+(?:\|\s++)++")


_CALLER = re.compile(
    r"\s*(?:[A-Z][a-z]{2} \d{1,2}, \d{4}|\d{4}-\d\d-\d\d),? \d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?(?: [AP]M)?"
    r" (?:[a-z]\w{0,40}\.){1,8}[\w$.]{1,60} [\w$<>]{1,60}\s*"
)  # Java's logger: time and method on a line above the message


_BASE = re.compile(r"\((?:layers? )?(?:[01]|zero|one)[- ](?:based|indexed)\)")


def without_colours(line: str) -> str:
    """The line without a terminal's colours."""
    return _COLOUR.sub("", line) if "\x1b" in line else line


def without_prefix(line: str) -> str:
    """The line without colours, boxes and prefixes."""
    if _CALLER.fullmatch(line[:400]):
        return ""
    if "based" in line or "indexed" in line:
        line = _BASE.sub("", line)
    line = without_colours(line)
    line = _FRAME.sub("", line.rstrip("╮┐╗─━═"), count=1).translate(_BOX)
    if "</" in line:
        line = _TAGGED.sub(r"\1: \2 ", line)
    if "<t" in line:
        line = _CELL.sub(" | ", line)
    if line.lstrip()[:1] == "|":  # a tree's branches, not a table's cells
        line = _blank(_BRANCHES.match(line), line) if "|" not in line.lstrip(" |\t") else line
    for _ in range(_MAX_PREFIXES):
        if (rest := PREFIX_RULES.first(line)) is None:
            break
        line = rest
    if m := _ITEM.match(line):
        line = m[1] + line[m.end() :]  # keeps the indentation of its bullet
    return _with_points(line) if "," in line else line


def _blank(m: re.Match[str] | None, line: str) -> str:
    return line if m is None else " " * m.end() + line[m.end() :]


def _with_points(line: str) -> str:
    """Decimal commas as points, where a line has several and no point: `0,5613; -1,2041`."""
    found = _DECIMAL_COMMA.findall(line[:_MAX_COMMAS])
    if len(found) < 2 or _POINT.search(line) or not any(a.strip("-+\u2212") == "0" or len(b) > 3 for a, b in found):
        return line
    return _DECIMAL_COMMA.sub(r"\1.\2", line)


_YIELDS = ("l_out-0 first 0.5 1.5",)


def _prefix(name: str, priority: int, example: str, pattern: str, yields: tuple[str, ...] = _YIELDS) -> Rule[str, str]:
    """A rule that returns the text behind the prefix. A prefix without text is not removed."""
    compiled = re.compile(pattern)

    def behind(line: str) -> str | None:
        m = compiled.match(line)
        return line[m.end() :] if m and 0 < m.end() < len(line) else None

    return Rule(name, priority, example, yields, behind)


PREFIX_RULES: RuleTable[str, str] = RuleTable(
    "prefix",
    _prefix(
        "time, level and module",
        180,
        "[2026-11-01 12:30:00 INFO attn] layer 0: 0.5 1.5\n",
        r"\s*\[" + _TIME + r"\s{1,4}" + _LEVEL + r"\s{1,4}[\w:./-]{1,80}\]\s*",
    ),
    _prefix(
        "time", 170, "layer 0 out:\n12:30:00 0.5\n12:30:01 1.5\n", r"\s*[\[(<]?" + _TIME + r"[\])>]?\s*(?:[-|:]\s+)?"
    ),
    _prefix(
        "level in brackets",
        160,
        "layer 0 out:\n[INFO] 0.5\n[INFO] 1.5\n",
        r"\s*[\[(<]\s{0,20}" + _LEVEL + r"\s{0,20}[\])>]:?\s*",
    ),
    _prefix("level with a scope", 150, "debug(attn): layer 0: 0.5 1.5\n", r"\s*" + _LEVEL + r"\([\w.]{1,40}\): "),
    _prefix("level", 140, "layer 0 out:\nINFO 0.5\nINFO 1.5\n", r"\s*" + _LEVEL + r"(?:\s{1,20}|:\s*|\()(?=\S)"),
    _prefix(
        "time as a field",
        120,
        "ts=2026-11-01T12:30:00.125 layer=0 rms=1.5\n",
        r"\s*(?:time|ts|timestamp)=\S{1,60}\s+",
        ("l_out-0 rms 1.5",),
    ),
    _prefix(
        "level as a field",
        110,
        "layer 0 out:\nlevel=info 0.5\nlevel=info 1.5\n",
        r"\s*(?:level|lvl|severity)=\w{1,12}\s+",
    ),
    _prefix(
        "glog",
        100,
        "I1101 12:30:00.125 42 attn.cc:17] layer 0: 0.5 1.5\n",
        r"\s*[IWEFD]\d{4}\s+\S{1,40}\s+\d{1,10}\s+[\w./-]{1,200}:\d{1,7}\]\s*",
    ),
    _prefix(
        "logcat",
        90,
        "11-01 12:30:00.125  42  17 D attn : layer 0: 0.5 1.5\n",
        r"\s*\d\d-\d\d\s+\d\d:\d\d:\d\d\.\d{1,6}\s+\d{1,9}\s+\d{1,9}\s+[VDIWEF]\s+\S{1,60}\s*:\s*",
    ),
    _prefix(
        "llama.cpp's clock",
        80,
        "layer 0 out:\n0.00.125.250 I 0.5\n0.00.125.251 I 1.5\n",
        r"\s*\d+\.\d\d\.\d{3}\.\d{3}\s+[A-Z]\s+",
    ),
    _prefix("microcontroller", 70, "I (1250) attn: layer 0: 0.5 1.5\n", r"\s*[VDIWE] \(\d{1,12}\) [\w.-]{1,40}: "),
    _prefix(
        "logcat, brief",
        60,
        "D/attn( 42): layer 0: 0.5 1.5\n",
        r"\s*[VDIWEF]/[\w.-]{1,40}\s{0,8}(?:\(\s{0,8}\d{1,9}\))?:\s*",
    ),
    _prefix("prompt of a console", 50, "layer 0 out:\n(gdb) 0.5\n(gdb) 1.5\n", r"\s*" + _PROMPT + r"\s+"),
    _prefix(
        "answer of a debugger",
        40,
        "layer 0 out:\n$1 = 0.5\n$2 = 1.5\n",
        r"\s*(?:\([\w \[\]*<>]{1,40}\)\s{1,4})?\$(?:\d{1,6}|R\d{1,6})\s*=\s*",
    ),
    _prefix("seconds since the start", 30, "[ 12.125000] layer 0: 0.5 1.5\n", r"\s*\[\s*\d{1,8}\.\d{3,9}s?\]\s+(?=\S)"),
    _prefix(
        "place in the code",
        20,
        "src/attn.rs:42: layer 0: 0.5 1.5\n",
        r"\s*[\[(]?(?:[\w.-]{1,80}/){0,20}[\w.-]{1,80}\.(?:" + _CODE + r")"
        r":\d{1,7}(?::\d{1,5})?(?![\d.])[\])]?:?\s*(?:[-|]\s+)?",
    ),
    _prefix("quote", 10, "layer 0 out:\n> 0.5\n> 1.5\n", r"\s*(?:>{1,3})\s+"),
)
