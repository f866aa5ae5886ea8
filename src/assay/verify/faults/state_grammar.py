"""Generators of the grammar for states and windows: what a call finds of what the calls before left.

not written back    every call finds what the prompt left; calls read and write two buffers in turn
one of two          the state is kept and the window is not, or the reverse
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from assay.graph import Node, Trait
from assay.verify.faults.description import UNKEPT, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit
from assay.verify.faults.recurrent.state_edits import RECURRENCES
from assay.verify.faults.recurrent.token_loops import call_starts, in_parts

_WINDOWS = ("causal_conv", "shift")
_KEEPERS: dict[str, tuple[str, ...]] = {
    "states and windows": (*RECURRENCES, *_WINDOWS),
    "states": RECURRENCES,
    "windows": _WINDOWS,
}
# Of the states at the starts of the calls so far, the prompt's end first: the one that a call finds.
Found = Callable[[Sequence[Array]], Array]
_FINDS: dict[str, Found] = {
    "decode steps do not write {} back: each finds those of the prompt": lambda past: past[0],
    "{} are in two buffers, of which decode steps read the older one": lambda past: past[max(len(past) - 2, 0)],
}


def unkept(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Decode steps find other states than the step before left, where there are two decode steps or more."""
    ops = {node.op for node in nodes if node.has(Trait.STATE)}
    if len(c.steps) < 3 or not ops:
        return
    has = {node.op for node in c.model.graph}
    for what, keepers in _KEEPERS.items():
        if not ops & set(keepers) or (len(keepers) == len(_KEEPERS["states and windows"]) and not _both(has)):
            continue
        for words, found in _FINDS.items():
            yield UNKEPT, placed(words.format(what), _finding(found), keepers)


def _both(ops: set[str]) -> bool:
    return bool(ops & set(RECURRENCES)) and bool(ops & set(_WINDOWS))


def _finding(found: Found) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        def run(*operands: Array) -> tuple[Array, Array]:
            past: list[Array] = []

            def between(S: Array, t: int, x: Sequence[Array]) -> Array:
                past.append(S)
                return found(past)

            return in_parts(node, lambda n: call_starts(c, n), between)(*operands)

        return Change(node, run)

    return edit


GENERATORS = (unkept,)
