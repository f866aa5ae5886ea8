"""Rewrites habits of printing that one line shows by itself, so that the rules for lines apply.

[L-1] tok_emb …                       embd …
x[0]=0.5 x[1]=0.25 … x[-1]=1.5        … tail=[1.5]
" up" (614) 21.7                      614:21.7; the same in other orders
=> 7("g")=2.5 9("b")=1.5 5("a")=0.5   top logits: 7:2.5, 9:1.5, 5:0.5
attn -> 1.5 -> out 2.5                attn 1.5 | out 2.5
[-2.5 .. 3.5]                         min=-2.5 max=3.5
ln1: L0=1.5 L1=2.5                    ln1 per layer: [1.5, 2.5]
layers:  50%|#  | 1/2 [00:00<00:00, attn=0.5]     layer 1: attn=0.5
x_0 [ 64 x 8 ] sum=1.5                x_0 sum=1.5
x[::8] = 0.5 1.5                      x [0] 0.5 [8] 1.5
tokens[3] = {1, 5, 6}                 tokens: [1, 5, 6]
argmax=17 max=9.5                     logits max=9.5
-- layer 1 routing                    -- layer 1 routing --
pos 0 (in 12): 212 3.04  61 2.75      pos 0 (in 12): top logits: 212:3.04, 61:2.75
hashes, names of files                left out

Touch this module for a habit that no word depends on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

_NO_LAYER = re.compile(r"\[?\b(?:layer|block|blk|L)[ =:_]{0,2}-1\b\]?(?=.{0,40}(?:emb|tok|inp|x0))", re.IGNORECASE)
_FILE = re.compile(r"[\w./\\+-]{1,200}\.gguf\b")
_MORE = re.compile(r"\.\.\. \d{1,9} more items?")  # of Node's console.log
# |x| L0 att 2.40834  mlp 4.49643: the lengths of x at these places
_LENGTHS = re.compile(
    r"\s{0,8}\|{1,2}[A-Za-z]\w{0,7}\|{1,2}\s{1,8}"
    r"((?:layer \d{1,4}: )?(?:[A-Za-z]\w{0,30}\s{1,16}\d{1,9}\.\d{1,12}\s{0,16}){1,12})"
)
_NAMED_NUMBER = re.compile(r"([A-Za-z]\w{0,30})\s{1,16}(\d{1,9}\.\d{1,12})")
_LEGEND = re.compile(r"=\s{0,3}l2\b(?!\s{0,3}[=:\w])")
# x_0  [  64 x   8] sum=1.5: a shape between a name and its numbers
_SHAPE = re.compile(
    r"(?<=\w)\s{1,24}[\[(<{]\s{0,8}\d{1,7}(?:\s{0,8}[x×]\s{0,8}\d{1,7}){1,3}\s{0,8}[\])>}](?=\s{1,8}[A-Za-z|Σμσ∑])"
)
_RANGE = re.compile(
    r"[\[(]\s{0,4}([-+]?\d[\d.]{0,12}(?:e[-+]?\d{1,3})?)\s{0,3}\.\.\s{0,3}"
    r"([-+]?\d[\d.]{0,12}(?:e[-+]?\d{1,3})?)\s{0,4}[\])](?=\s|$)",
    re.IGNORECASE,
)
# layers:  50%|###   | 1/2 [00:00<00:00, attn=0.5]
_BAR = re.compile(
    r"\s{0,8}(?:([\w ]{1,24}):)?\s{0,4}\d{1,3}%\s{0,2}\|[^|]{0,200}\|\s{0,4}(\d{1,4})/\d{1,4}\s{0,4}"
    r"\[[\d:?]{1,9}<[\d:?]{1,9},?\s{0,4}(.{0,2000})\]\s{0,4}"
)
# hidden[::8] = 0.5 0.25 …: every eighth element
_SLICE = re.compile(
    r"(.{1,80}?)\[(\d{0,4}):\d{0,5}:(\d{1,4})\]\s{0,4}[=:]?\s{0,4}\[?((?:[-+]?\d{1,9}\.\d{1,12}(?:e[-+]?\d{1,3})?[\s,]{0,4}){2,400})\]?"
)
_COUNTED_IDS = re.compile(
    r"(\W{0,8}\w{0,20}(?:tokens|ids))\s?\[\s?\d{1,5}\s?\]\s{0,4}=\s{0,4}\{([\d,\s]{1,40000})\}\W{0,4}", re.IGNORECASE
)
_LAST_ELEMENT = re.compile(r"\b(\w{1,16})\[-1\]\s{0,3}=\s{0,3}([-+]?\d[\d.eE+-]{0,30})")
_PIECES = re.compile(r"(?<![\w.])(\d{1,7})\s{0,3}[\"'](?:[^\"']|\\.){0,40}[\"']\s{0,3}[:=]?\s{0,3}(-?\d{1,5}\.\d{1,9})")
# 298("▁g")=16.9514: an id, its text, its logit
_ID_OF_TEXT = re.compile(r"(?<![\w.])(\d{1,7})\s?[\[(]([\"'`]).{0,40}?\2[\])]\s{0,2}[:=]\s{0,2}(-?\d{1,5}\.\d{1,9})")
# ' upon' (407) 18.460 p=0.9826: the text of a token, its id, its logit
_TEXT_FIRST = re.compile(
    r"(?:'[^']{0,40}'|\"[^\"]{0,40}\")\s{0,3}[\[(](\d{1,7})[\])]\s{0,3}[:=]?\s{0,3}(-?\d{1,5}\.\d{1,9})"
    r"(?:\s{0,3}[\[(]?p\s?=\s?[\d.e-]{1,12}\s?%?[\])]?)?"
)
# cand   270  " up"   2.7675
_CANDIDATE = re.compile(
    r"\W{0,8}cand(?:idate)?\s{0,3}[#:=]?\s{0,8}(\d{1,7})\s{1,12}"
    r"(?:['\"(].{0,40}['\")]\s{0,12})?"
    r"(?:logit\s{0,2})?[:=]?\s{0,4}(-?\d{1,5}\.\d{1,9})\s{0,8}",
    re.IGNORECASE,
)
_HASH = re.compile(
    r"(?<![\w.])(?=[0-9a-f]{0,63}[0-9])(?![0-9]{1,40}e[0-9]{1,3}\b)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}(?![\w.])"
)
# ln1: L0=1.2345 L1=2.3456: a number for each layer; [0]=… is an element
_BY_LAYER = re.compile(
    r"(.{1,60}?)[:|=]?\s{1,8}((?:(?:\[?(?:[Ll]|layer|blk|block|b)[ _]?\d{1,3}\]?|\d{1,3})\s?[=:]\s?"
    r"[-+]?\d{1,9}\.\d{1,12}(?:e[-+]\d{1,3})?[,;|]?\s{0,8}){2,400})"
)
_OF_LAYER = re.compile(r"(\d{1,3})\]?\s?[=:]\s?([-+]?\d{1,9}\.\d{1,12}(?:e[-+]\d{1,3})?)")
# in 1.2345 -> attn 2.3456 -> out 3.4567
_CHAIN = re.compile(r"(\d\.\d{1,12})\s{0,4}(?:->|→|=>|⇒)\s{0,4}(?=[A-Za-z])")
_CHOICES = re.compile(r"(?<![\w.])(\d{1,7})\s{0,2}\((-?\d{1,5}\.\d{1,9})\)")
_OPEN_HEADING = re.compile(r"\s{0,8}(--|==)\s(?=[^\n]{0,60}[A-Za-z])[^\n=]{2,80}(?<![-=:])")
# pos 0 (in 12):  212 3.043041   61 2.503737: ids and their logits
_ID_PAIRS = re.compile(
    r"([)\]:])\s{1,8}(\d{1,7}\s{1,8}-?\d{1,3}\.\d{2,9}(?:[,|]?\s{1,8}\d{1,7}\s{1,8}-?\d{1,3}\.\d{2,9}){2,40})\s{0,8}$"
)
_ID_PAIR = re.compile(r"(\d{1,7})\s{1,8}(-?\d{1,3}\.\d{2,9})")
_OF_LOGITS = re.compile(
    r"\b(?:top[ _-]?\d{0,3}|logits?|best|cand\w{0,8}|next)\b(?!.{0,40}(?:expert|moe|rout))", re.IGNORECASE
)
_BEST = re.compile(r"\bargmax\s?[=:]\s?\d{1,7}\b")
_STATISTIC = re.compile(r"\b(?:max|min|mean|rms|std|norm)\s?[=:]\s?-?\d")


def plainer(line: str) -> str:
    """The line with such habits rewritten."""
    if len(line) > 4000:
        return line
    line = _FILE.sub("file", line) if ".gguf" in line else line  # Q4_1 in its name is no query
    line = _LEGEND.sub("= norm", line)
    line = _MORE.sub("...", line) if " more item" in line else line
    if m := _LENGTHS.fullmatch(line):
        line = _NAMED_NUMBER.sub(r"\1 norm=\2 | ", m[1])
    if m := _BAR.fullmatch(line):
        line = f"layer {m[2]}: {m[3]}"
    line = _SHAPE.sub("", line)
    if ".." in line and "..." not in line:
        line = _RANGE.sub(_range, line)
    line = _NO_LAYER.sub("embd", line)  # [L-1] tok_emb: before layer 0
    if (m := _SLICE.fullmatch(line)) and (step := int(m[3])) > 1:
        numbers = enumerate(m[4].replace(",", " ").split())
        line = m[1] + "".join(f" [{int(m[2] or 0) + i * step}] {number}" for i, number in numbers)
    if m := _COUNTED_IDS.fullmatch(line):
        line = f"{m[1]}: [{m[2].strip()}]"
    if (m := _LAST_ELEMENT.search(line)) and f"{m[1]}[0]" in line:
        line = line[: m.start()] + f"tail=[{m[2]}]" + line[m.end() :]
    if len(found := _ID_OF_TEXT.findall(line)) > 2 and _falls(logit for _, _, logit in found):
        line = f"top logits: {', '.join(f'{i}:{logit}' for i, _, logit in found)}"
    if len(_TEXT_FIRST.findall(line)) > 1:
        line = _TEXT_FIRST.sub(r"\1:\2", line).replace("|", ",").replace("->", "top logits:", 1)
    if _OPEN_HEADING.fullmatch(line) and not _STATISTIC.search(line) and not re.search(r"\d\.\d", line):
        line = f"{line} {line.strip()[:2]}"
    if (m := _ID_PAIRS.search(line)) and len(pairs := dict(_ID_PAIR.findall(m[2]))) > 2 and _falls(pairs.values()):
        line = f"{line[: m.start()]}{m[1]} top logits: {', '.join(f'{i}:{logit}' for i, logit in pairs.items())}"
    line = _CHAIN.sub(r"\1 | ", _HASH.sub("", line))
    if m := _BY_LAYER.fullmatch(line):
        found = _OF_LAYER.findall(m[2])
        if [int(i) for i, _ in found] == [*range(len(found))]:
            line = f"{m[1]} per layer: [{', '.join(number for _, number in found)}]"
    if len(_CHOICES.findall(line)) > 1 and _OF_LOGITS.search(line):
        line = _CHOICES.sub(r"\1:\2", line)
    if _BEST.search(line) and _STATISTIC.search(line) and "logit" not in line.lower():
        line = _BEST.sub("logits", line)
    if m := _CANDIDATE.fullmatch(line):
        line = f"top logits: {m[1]}:{m[2]}"
    if len(_PIECES.findall(line)) > 1:
        line = _PIECES.sub(r"\1:\2", line).replace(";", ",")
    return line


def _falls(numbers: Iterable[str]) -> bool:
    return all(float(a) >= float(b) for a, b in pairwise(numbers))


def _range(m: re.Match[str]) -> str:
    """[-2.5 .. 3.5] is the least and the largest value."""
    decimal = "." in m[1] and "." in m[2]
    return f" min={m[1]} max={m[2]} " if decimal and float(m[1]) < float(m[2]) else m[0]
