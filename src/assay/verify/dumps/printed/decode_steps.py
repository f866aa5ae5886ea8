"""Finds which tokens a log feeds behind its prompt: headings of decode steps, ids beside positions, sampled ids.

--- decode step 1, token 64, n_past 8      a heading of a step
{"event": "decode", "step": 1, "token": 130}
step 1 tokens=1 feeding=[138]
step 1 [66]
forward([253]) nPast=7                     a call with its ids; without nPast, a call of one id behind the prompt
{"phase": "decode", "position": 14, "token": 382}
engine::run: decode#1 ids=[7042] pos=5..6  behind a logger's name
G pos=13 in=395 …                          the id at a position, beside values
{"after_pos": 8, "chosen": 3815}           the id that is fed at the next position
generated ids: [281, 401]                  all of them
followed by = 58 121                       all of them, behind the ids of the prompt
prompt ids: 17 92 4 then 58 121            both on one line
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A heading such as: --- decode step 1, token 64, n_past 8
_STEP = re.compile(
    r"^\W{0,12}(?:decod(?:e|ing)|generat(?:e|ed|ion|ing)|gen|step|next)\b[^=\[\]]{0,40}?"
    r"\b(?:tokens?|tok|ids?|feed|feeding|fed|input)\b(?:\(s\))?(?:[ _]?(?:id|in|fed|given|is))?\W{0,4}(\d{1,7})\b"
    r"(?![.\w]|\s{0,4},\s{0,4}\d|\s?tok)",
    re.IGNORECASE,
)
# A heading that counts its tokens before it names one: step 1 tokens=1 feeding=[138] cache_len=10
_FEEDING = re.compile(
    r"\b(?:decod\w{0,4}|generat\w{0,4}|gen|step|next)\b.{0,60}?"
    r"\b(?:feeding|feeds?|fed|input_?ids?)\W{1,4}(\d{1,7})\b(?![.\w]|\s{0,4},\s{0,4}\d|\s?tok)",
    re.IGNORECASE,
)
# step 1 [66]
_IN_BRACKETS = re.compile(
    r"^\W{0,12}(?:decod(?:e|ing)|generat(?:e|ing)|gen|step|next|call)\b[ _#]{0,3}\d{0,4}\s{0,3}[:=]?\s{0,3}"
    r"\[\s?(\d{1,7})\s?\]\W{0,4}$",
    re.IGNORECASE,
)
# A call with its ids and how many precede them: forward([6403, 1980]) nPast=0, then forward([253]) nPast=2
_CALL = re.compile(
    r"^\W{0,6}(?:forward|eval|decode|predict|infer|run|step|call)\w{0,12}\W{0,4}[\[(]\s{0,4}"
    r"(\d{1,7}(?:\s{0,4},\s{0,4}\d{1,7}){0,400})\s{0,4}[\])]"
    r"(?:[^\d]{0,40}\b(?:n_?past|past|pos|position|start_?pos|offset)\W{0,3}(\d{1,7})\b|\W{0,6}$)",
    re.IGNORECASE,
)
# The same inside a record or behind a name: {"event":"decode","step":1,"token":130}, msg="step" phase=gen1 token=104
_STEP_RECORD = re.compile(
    r"\b(?:decod(?:e|ing)|generat(?:e|ion|ing)|gen|step|next)[ _#-]?\d{0,4}\b.{0,60}?"
    r"\b(?:token|tok|ids?|token_?ids?|input_?ids?)\b[\"']?\W{0,4}(\d{1,7})\b(?![.\w]|\s{0,4}[,/]\s{0,4}\d|\s?tok)",
    re.IGNORECASE,
)
_NO_STEP = re.compile(
    r"\b(?:sampled?|argmax|chosen|picked|selected|greedy|total|took|prompt|prefill|max|thread|batch)\b", re.I
)
_POSITION = re.compile(
    r"\b(after_?)?(?:n_?past|past|pos|position|token_?pos|p)\b[\"']?\W{0,3}(\d{1,6})\b(?!\.\d|\w)", re.I
)
_FED = re.compile(
    r"\b(?:token|tok|in|fed|input|id|token_?id|input_?id|ids)\b[\"']?\W{0,4}(\d{1,7})\b(?![.\w]|\s{0,3},\s{0,3}\d)",
    re.I,
)
_SAMPLED = re.compile(
    r"\b(?:chosen|sampled?|picked?|next(?:[ _]?token)?|selected|argmax|greedy)\b[\"']?\W{0,5}"
    r"(?:(?:token|id|tok)\b[\"']?\W{0,4})?(\d{1,7})\b(?!\.\d|\w)",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"^\W{0,6}(?:\w{1,12}\s){0,2}?(?:fed|generated|decoded|sampled|new|decode)\b(?![^\[\d]{0,60}prompt\s?(?:tokens|ids)\b)"
    r"[^\[\]\d]{0,60}[:=\s]\s{0,4}[\[(]?\s{0,3}(\d{1,7}(?:[,\s]{1,4}\d{1,7}){0,400})\s{0,3}[\])]?\W{0,3}$",
    re.IGNORECASE,
)
_IDS = r"\d{1,7}(?:(?:\s{0,3},\s{0,3}|\s{1,4})\d{1,7}){0,400}"
_AFTER = (
    r"(?:followed[ _]?by|then(?:[ _](?:fed|feed|come|comes|decode|step|forced?))?|and[ _]then|"
    r"continu(?:ation|ed|ing)(?:[ _](?:by|with))?|(?:teacher[ _-])?forc(?:ed|ing)|decode[ds]?|decoding|stepped|"
    r"(?:next|following|later|appended|extra|step|single|one[ _-]by[ _-]one)(?=[ _](?:tokens|token[ _]ids|ids)\b))"
)
# followed by = 58 121, continuation: [58, 121], decode_ids = 58, 121, next tokens 58 121, forced (2): 58 121
_FOLLOWING = re.compile(
    rf"^\W{{0,6}}(?:\w{{1,12}}:\s)?{_AFTER}(?:[ _](?:tokens|token[ _]ids|ids|inputs|steps))?"
    rf"(?:\s?[\[(]\d{{1,4}}[\])])?\s{{0,4}}(?:[:=]|->|=>)?\s{{0,4}}[\[({{]?\s{{0,3}}({_IDS})\s{{0,3}}[\])}}]?\W{{0,3}}$",
    re.IGNORECASE,
)
# With one id, a line that begins so is the heading of one step.
_ONE_STEP = re.compile(r"^\W{0,6}(?:\w{1,12}:\s)?(?:next|following|step|single|later|extra)", re.IGNORECASE)
# prompt ids = 17 92 4 140 then 58 121: the ids of the prompt stay
_BOTH = re.compile(
    rf"^(.{{0,60}}\b(?:prompt|tokens|ids|input)\b[^\d]{{0,24}}{_IDS}\s{{0,3}}[\])}}]?)[\s,;|+/-]{{0,8}}"
    rf"\b{_AFTER}(?:[ _](?:tokens|token[ _]ids|ids|inputs|steps))?\s{{0,4}}[:=]?\s{{0,4}}"
    rf"[\[({{]?\s{{0,3}}({_IDS})\s{{0,3}}[\])}}]?\W{{0,3}}$",
    re.IGNORECASE,
)
_PASS = re.compile(r"\b(?:decod|prefill|forward|step|generat|gen\b|eval|call|phase|pass)", re.IGNORECASE)
_DECIMAL = re.compile(r"\d\.\d")
_LONGEST = 400


@dataclass
class DecodeSteps:
    """Tokens behind the prompt, as the lines so far state them."""

    fed: dict[int, int] = field(default_factory=dict)  # id by position
    listed: tuple[int, ...] = ()  # all of them, in order
    sampled: list[int] = field(default_factory=list)  # lines without a position, in order

    def look(self, line: str) -> bool:
        """Note what a line says; whether it says nothing else, being a list of the ids."""
        if len(line) > 8000:
            line = line[:_LONGEST] + line[-_LONGEST:]
        m = _LISTED.match(line) or _FOLLOWING.match(line)
        if m and not (_ONE_STEP.match(line) and m[1].isdecimal()):
            self.listed = self.listed or tuple(int(n) for n in re.findall(r"\d{1,7}", m[1]))
            return True
        head = line[:_LONGEST]
        at, fed, made = _POSITION.search(head), _FED.search(head), _SAMPLED.search(head)
        if at and fed and not at[1]:
            self.fed.setdefault(int(at[2]), int(fed[1]))
        if made and at:
            self.fed.setdefault(int(at[2]) + 1, int(made[1]))
        elif made:
            self.sampled.append(int(made[1]))
        return False

    def without_following(self, line: str) -> str:
        """The line without the ids that it lists behind those of the prompt; they are noted."""
        m = _BOTH.match(line) if len(line) < 8000 else None
        if m is None:
            return line
        self.listed = self.listed or tuple(int(n) for n in re.findall(r"\d{1,7}", m[2]))
        return m[1]

    def place(self, line: str) -> tuple[int, int] | None:
        """Position and id of a heading that begins a pass of one token."""
        if len(line) > _LONGEST or _DECIMAL.search(line) or not (_PASS.search(line) or len(line.split()) < 5):
            return None
        at, fed = _POSITION.search(line), _FED.search(line)
        return (int(at[2]), int(fed[1])) if at and fed and not at[1] else None

    @property
    def in_order(self) -> tuple[int, ...]:
        """The ids behind the prompt, where no line gives their positions."""
        return self.listed or tuple(self.sampled)


def step_heading(step: int, token: int) -> str:
    """The heading that a pass over a text puts above a decode step; `step_of` reads it."""
    return f"--- decode step {step}, token {token} ---"


def step_of(line: str) -> int | None:
    """The token of a decode step whose heading this line is, by its words."""
    if len(line) >= 200:
        return None
    m = _FEEDING.search(line) or _STEP.match(line) or _IN_BRACKETS.match(line)
    said = _DECIMAL.search(line) or _NO_STEP.search(line) or _POSITION.search(line) or line.count(",") > 5
    if m is None and not said:
        m = _STEP_RECORD.search(line)
    return int(m[1]) if m else None


def call_of(line: str, past: int) -> tuple[tuple[int, ...], int] | None:
    """The ids of a call, and how many tokens precede them: `past` where the call does not say."""
    m = _CALL.match(line)
    return (tuple(map(int, m[1].split(","))), past if m[2] is None else int(m[2])) if m else None
