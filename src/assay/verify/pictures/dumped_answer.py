"""The answer behind a prompt with pictures: the ids of a dump behind the prompt's, and the slots of its rows.

The definition of a decode step is the row that a run of prompt and answer has at that token. So the ids of the answer
are put behind the prompt, and the whole is one run. A dump may leave the rows of pictures out of its ids; then its rows
count tokens of text, and become slots here. Touch this to read the ids of an answer from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from assay.runtime.image_places import Images, without_rows
from assay.verify.dumps.matching.decode_rows import split_decode_rows
from assay.verify.dumps.observation import Dump, Observation
from assay.verify.pictures.prompt_trials import Placed

Rows = tuple[int, int]


@dataclass(frozen=True)
class AnsweredDump:
    """A dump whose rows are slots of the run, and the prompt with `answered` ids of the answer behind it."""

    dump: Dump
    placed: Placed
    answered: int


def with_answer(dump: Dump, placed: Placed, *, markers: bool) -> AnsweredDump | None:
    """The dump as one of this prompt and of what was decoded behind it; None if its ids are of another prompt."""
    ids, images = placed(markers)
    tail: tuple[int, ...] = ()
    if dump.tokens:
        found = _behind(dump, ids, images)
        if found is None:
            return None
        tail, left_out = found
        if tail and left_out:
            dump = _in_slots(dump, ids, images)
    if dump.log and not tail:
        dump = _with_steps(dump, ids)
        tail = tuple(token for token, _ in dump.later)
    return AnsweredDump(dump, followed(placed, tail), len(tail))


def agrees(found: Sequence[int], ids: Sequence[int], images: Images) -> bool:
    """Whether ids of a dump are those of the prompt; at the rows of pictures they may be any, or none."""
    if len(found) == len(ids):
        return without_rows(found, images) == without_rows(ids, images)
    return list(found) == without_rows(ids, images)


def _behind(dump: Dump, ids: Sequence[int], images: Images) -> tuple[tuple[int, ...], bool] | None:
    """The ids of a dump behind the prompt's, and whether it leaves the rows of pictures out."""
    counts = {len(ids): False, len(without_rows(ids, images)): True}
    for n in sorted(counts, key=lambda n: (n != (dump.steps or (0,))[0], counts[n])):
        if agrees(dump.tokens[:n], ids, images):
            return dump.tokens[n:], counts[n]
    return None


def followed(placed: Placed, tail: tuple[int, ...]) -> Placed:
    """The prompt with these ids behind it."""

    def found(markers: bool) -> tuple[tuple[int, ...], Images]:
        ids, images = placed(markers)
        return (*ids, *tail), images

    return found if tail else placed


def _with_steps(dump: Dump, ids: Sequence[int]) -> Dump:
    """A log whose rows behind the prompt are decode steps."""
    prompt = tuple(max(token, 0) for token in ids)
    return replace(split_decode_rows(replace(dump, tokens=prompt), ()), tokens=dump.tokens)


def _in_slots(dump: Dump, ids: Sequence[int], images: Images) -> Dump:
    """The dump of text tokens with rows that are slots."""
    taken = {slot for p in images for slot in range(p.start, p.end)}
    slots = [slot for slot in range(len(ids)) if slot not in taken]

    def moved(rows: Rows | None) -> Rows | None:
        if rows is None:
            return None
        start, end = rows
        if rows == (0, len(slots)):  # the whole prompt
            return 0, len(ids)
        first = slots[start] if start < len(slots) else start + len(taken)
        return first, first + end - start

    def placed(obs: Observation) -> Observation:
        return replace(obs, rows=moved(obs.rows), alternatives=tuple(map(placed, obs.alternatives)))

    return replace(
        dump, observations=tuple(map(placed, dump.observations)), unread=tuple(map(placed, dump.unread)), steps=()
    )
