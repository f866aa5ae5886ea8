"""The fields of every frame: one row for each kind of frame, one check for each field.

`checked` is called on every frame before anything reads a field of it. A frame that is malformed breaks the connection,
so its peer counts as lost and its streams move to another replica. Fields that the table does not name are ignored:
a newer version may add some. A frame of an unknown kind is malformed, because the two ends have agreed on a version.

Versions: 1 is the first one. 2 adds `at`, the index of a token in its answer: it shows a token that is repeated, left
out or in the wrong order. 3 adds pictures to a job. A replica offers its versions in `hello`, and the
router answers with `version`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.cluster.frames import ConnectionBroken, Frame, MalformedFrame
from assay.runtime.sequence import ENDS

VERSIONS = (1, 3)  # the oldest and the newest that this process speaks
_LARGEST = 1 << 53  # whole numbers: JSON of other languages holds no more
_MAX_ITEMS = 1 << 24  # entries of one list
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class FieldKind:
    """A check of one value, and what it expects, in words."""

    expects: str
    fits: Callable[[Any], bool]


MOST = sys.float_info.max  # a whole number of JSON may be larger


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair: no client could be sent it
        return False
    return True


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST


def _is_score(value: Any) -> bool:
    return type(value) in (int, float) and (
        -MOST <= value <= MOST or value == -math.inf
    )  # -inf is the score of a token that cannot be drawn


def _is_choice(value: Any) -> bool:
    """A token, its log-probability or null, and its ranked alternatives."""
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        return False
    token, score, top = value
    pairs = all(isinstance(row, list) and len(row) == 2 and _is_count(row[0]) and _is_score(row[1]) for row in top)
    return _is_count(token) and (score is None or _is_score(score)) and pairs


COUNT = FieldKind("a whole number from 0 to 2^53", _is_count)
AMOUNT = FieldKind("a finite number of at least 0", _is_amount)
TEXT = FieldKind("a text", _is_text)
OBJECT = FieldKind("an object", lambda value: isinstance(value, dict))
CHOICE = FieldKind("a token, its log-probability and its alternatives", _is_choice)
FINISH = FieldKind(f"one of {', '.join(ENDS)}", lambda value: isinstance(value, str) and value in ENDS)
FAILURE = FieldKind(
    "the kind and the text of an error", lambda v: isinstance(v, list) and [*map(_is_text, v)] == [True] * 2
)
SPAN = FieldKind("an oldest and a newest version", lambda v: _is_list(v, COUNT) and len(v) == 2 and v[0] <= v[1])
CHANGES = FieldKind(
    "names, each with true or false",
    lambda v: isinstance(v, dict) and len(v) <= _MAX_ITEMS and all(type(here) is bool for here in v.values()),
)
ROW = FieldKind(
    "a hash of 32 hexadecimal digits",
    lambda v: isinstance(v, str) and len(v) == 32 and all(digit in "0123456789abcdef" for digit in v),
)
ADDRESS = FieldKind(
    "null, or a host and a port",
    lambda v: (
        v is None or (isinstance(v, list) and len(v) == 2 and _is_text(v[0]) and _is_count(v[1]) and v[1] < 65536)
    ),
)


def _is_list(value: Any, kind: FieldKind) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_ITEMS and all(map(kind.fits, value))


def some(kind: FieldKind) -> FieldKind:
    """A list of values of one kind."""
    return FieldKind(f"a list, each {kind.expects}", lambda value: _is_list(value, kind))


@dataclass(frozen=True)
class Fields:
    """The fields of an object: those it must have, and those it may have."""

    must: Mapping[str, FieldKind] = field(default_factory=dict)
    may: Mapping[str, FieldKind] = field(default_factory=dict)

    def fault(self, given: Mapping[str, Any]) -> str:
        """The first field that is wrong, in words; empty if none is."""
        for name, kind in (*self.must.items(), *self.may.items()):
            if name not in given:
                if name in self.must:
                    return f"field {name} is missing (expected {kind.expects})"
            elif not kind.fits(given[name]):
                return f"field {name} is wrong (found {_shown(given[name])}, expected {kind.expects})"
        return ""


UPDATE = Fields(
    {"id": COUNT, "text": TEXT},
    {
        "choice": CHOICE, "finish": FINISH, "error": FAILURE, "cached": COUNT, "queued_s": AMOUNT, "took_s": AMOUNT,
        "prompt": some(CHOICE), "pooled": COUNT, "at": COUNT, "row": ROW,
    },
)  # fmt: skip
_EPOCH = {"epoch": COUNT}
_WORK = _EPOCH | {"id": COUNT}

# The frames by their direction; each key names the sender first.
FRAMES: dict[str, dict[str, Fields]] = {
    "replica to router": {
        "hello": Fields(
            {"fingerprint": OBJECT, "engine": TEXT, "isa": TEXT, "pages": COUNT, "held": some(TEXT), "stood_s": AMOUNT},
            {"speaks": SPAN},
        ),
        "beat": Fields(
            {
                "running": COUNT,
                "waiting": COUNT,
                "queued_s": AMOUNT,
                "pages_available": COUNT,
                "held": CHANGES,
                "queue": some(COUNT),
                "steps": AMOUNT,
                "tokens": AMOUNT,
            },
            {"state_slots": COUNT, "state_running": COUNT, "state_snapshots": COUNT, "state_bytes": COUNT},
        ),
        "news": Fields({"updates": some(OBJECT)}),
    },
    "router to replica": {
        "version": Fields({"version": COUNT}),
        "submit": Fields({"id": COUNT, "job": OBJECT}),
        "cancel": Fields({"ids": some(COUNT)}),
        "beat": Fields(),
    },
    "head to stage": {
        "hello": Fields(),
        "wire": Fields(_EPOCH | {"next": ADDRESS, "needed": some(TEXT)}),
        "work": Fields(_WORK | {"chunks": some(OBJECT), "keep": some(TEXT)}),
        "copy": Fields(_EPOCH | {"source": COUNT, "to": COUNT}),
        "copy_state": Fields(_EPOCH | {"source": COUNT, "to": COUNT}),
    },
    "stage to head": {
        "hello": Fields({"arithmetic": OBJECT, "memory": OBJECT, "dtype": TEXT, "isa": TEXT}, {"state_slots": COUNT}),
        "wired": Fields(_EPOCH),
        "done": Fields(_WORK),
        "kept": Fields(_WORK),
        "failed": Fields(_EPOCH | {"error": TEXT}, {"id": COUNT}),
        "beat": Fields(),
    },
}


def checked(frame: Frame, way: str, *, only: str = "", never: str = "") -> Frame:
    """The frame, if its row of the table allows it. `only` is the one kind that may come now, `never` one that may not.

    Raises MalformedFrame, which ends the connection.
    """
    rows, op = FRAMES[way], frame.head.get("op")
    if not isinstance(op, str) or op not in rows or (only and op != only) or op == never:
        expected = only or ", ".join(name for name in rows if name != never)
        raise MalformedFrame(f"frame {_shown(op)}: not a frame that may come now (expected {expected})")
    fault = rows[op].fault(frame.head) or (_update_fault(frame) if op == "news" else "")
    if fault:
        raise MalformedFrame(f"frame {op}: {fault}")
    return frame


def _update_fault(frame: Frame) -> str:
    for update in frame.head["updates"]:
        if fault := UPDATE.fault(update):
            return f"an update: {fault}"
        if (update.get("finish") == "error") != ("error" in update):
            return "an update: an error and its reason belong together"
        if "cached" in update and "queued_s" not in update:
            return "an update: field queued_s is missing (expected beside cached)"
    for key in frame.arrays:
        number, _, rest = key.partition("/")
        place, _, name = rest.partition("/")
        if not (_is_index(number) and _is_index(place) and name):
            return f"array {_shown(key)} is wrong (expected a stream, an index and a name)"
    return ""


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16


def common_version(hello: Mapping[str, Any], who: str) -> int:
    """The newest version that both ends speak. Raises NoCommonVersion otherwise."""
    oldest, newest = hello.get("speaks", (1, 1))
    found = min(newest, VERSIONS[1])
    if found < max(oldest, VERSIONS[0]):
        raise NoCommonVersion(
            f"{who}: speaks another version of assay's frames (found {oldest} to {newest}, expected {VERSIONS[0]} to "
            f"{VERSIONS[1]}); install the same version of assay on every machine"
        )
    return int(found)


class NoCommonVersion(ConnectionBroken):
    """The peer speaks only versions that this process does not."""


def _shown(value: Any) -> str:
    if type(value) is int and abs(value) > _LARGEST:
        return "a larger number"
    text = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
