"""The form of a row of the operation table: `Op`, `Trait`, and checks that shape rules share.

`ops.py`, `recurrent_ops.py` and `vision_ops.py` hold the rows. Touch this when every operation needs a further column,
or when engines and `verify` must ask a new question of an operation (a trait).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

Dim = int | str
Shape = tuple[Dim, ...]
Attrs = Mapping[str, Any]
ShapeRule = Callable[[Attrs, Sequence[Shape], Sequence[Shape]], Shape]


class ShapeError(ValueError):
    """The operands of a node do not fit together; the message names the two dimensions."""


class Trait(Flag):
    """A property of an operation. A node has the traits of its operation."""

    NONE = 0
    PRODUCT = auto()  # multiplies activations by a weight matrix, its first weight
    TABLE = auto()  # looks up rows of a weight by index, its first weight
    INDICES = auto()  # its values are indices: exact integers that choose, never rounded
    SELECTS = auto()  # chooses among its inputs by comparing them: a small difference may change the choice
    NORM = auto()  # normalises a row by a statistic of the row
    ACTIVATION = auto()  # an elementwise nonlinear function, possibly gated
    SOFTMAX = auto()  # exponentials divided by their sum
    SCORES = auto()  # reads or gives one value for each pair of query and key
    SUMS = auto()  # adds terms, so that rounding errors can cancel or grow
    MOVES = auto()  # copies values without arithmetic
    RESHAPES = auto()  # the same values in the same order in memory, with other axes
    ELEMENTWISE = auto()  # every result depends on one element of each input
    MIXES_TOKENS = auto()  # a row of the result depends on rows of other tokens
    POSITIONAL = auto()  # the result depends on the position of a token
    STATE = auto()  # reads or writes what a layer keeps between steps (`graph/state.py`)
    CACHES = auto()  # keeps rows by position, keys or values, in the type that the cache has
    MATRIX = auto()  # its first weight is a matrix: multiplied, or looked up row by row
    EXPERTS = auto()  # its first weight has a part for each expert, chosen by index
    KEYS = auto()  # multiplies queries by keys, its second input: gives scores before the mask
    VALUES = auto()  # sums values, its second input, weighted by scores
    MASKS = auto()  # hides keys by position, then takes the softmax of the scores
    POOLS = auto()  # gives one row for all tokens of a sequence
    ATTENDS = KEYS | VALUES  # multiplies by the keys or the values that a layer keeps
    TRANSCENDENTAL = auto()  # computes exp, tanh or log, which fast implementations approximate
    EXACT = auto()  # copies, compares or limits numbers: without rounding in every arithmetic
    MASKABLE = auto()  # an engine may write -inf for elements that are masked
    REGROUPS = auto()  # gives rows for other tokens than it reads: computed between the parts that an engine runs
    SHOWS_STATE = auto()  # gives what the nodes that it reads keep for a sequence, not their values


@dataclass(frozen=True)
class Op:
    """One operation: `formula` is the definition that the reference engine computes."""

    name: str
    formula: str
    inputs: tuple[str, ...]  # operand names; a trailing `?` marks an optional one
    weights: tuple[str, ...]
    attrs: Mapping[str, Any]  # name -> default; `REQUIRED` where the builder must give it
    shape: ShapeRule
    traits: Trait = Trait.NONE
    linear_in: tuple[str, ...] = ()  # operands, inputs or weights, in each of which the result is linear
    keeps: str = ""  # with `Trait.STATE`: the kind of state, a row of `state.KINDS`


REQUIRED: Any = type("Required", (), {"__repr__": lambda _: "required"})()


def expect(what: str, found: Dim, wanted: Dim) -> None:
    if found != wanted:
        raise ShapeError(f"{what} (found {found}, expected {wanted})")


def flat_width(shape: Shape) -> int:
    """Features per token: everything after the first axis multiplied."""
    total = 1
    for dim in shape[1:]:
        if isinstance(dim, str):
            raise ShapeError(f"features of a token cannot include the axis {dim}")
        total *= dim
    return total


def split_heads(shape: Shape, n_head: int) -> Shape:
    """`[T, H, D]` of a value: as it is, or its features cut into `n_head` heads."""
    if len(shape) == 3:
        return shape
    width = flat_width(shape)
    assert isinstance(width, int)
    if n_head < 1 or width % n_head:
        raise ShapeError(f"width {width} does not divide into {n_head} heads")
    return (shape[0], n_head, width // n_head)
