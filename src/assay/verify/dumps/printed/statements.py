"""The statement of one line: its words in order, its values, and the layer, row and engine that it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from assay.verify.dumps.naming.phrases import VALUES, meaning, split_words
from assay.verify.dumps.printed.brackets import Quantity
from assay.verify.dumps.printed.rule_rows import Doubts

RECORD = {
    "name", "node", "tensor", "op", "stage", "what", "label", "activation", "tag", "site", "point", "key", "module",
    "where", "hook", "probe",
}  # fmt: skip
_LISTS_OF = {"values", "vals", "data", "sample"}
_ELEMENTS_OF = _LISTS_OF | {"out", "x", "h", "y", "v", "buf", "dst", "res", "arr", "vec"}


@dataclass
class Statement:
    """A statement under construction; the parser's rules fill it in."""

    label: list[str] = field(default_factory=list)
    items: list[Quantity] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    words_before_list: int | None = None  # Number of words before the first list.
    layer: int | None = None
    row: int | None = None
    possible_row: int | None = None
    token_id: int | None = None  # The token whose logit may follow.
    fed: int | None = None  # The token at this row.
    side: str = ""
    value_start: int = 0  # Number of words before the last value.
    outer_words: tuple[str, ...] = ()  # Words before the open brackets.
    from_end: bool = False
    layer_known: bool = False  # The headings give the layer.
    element: int | None = None  # The index in `x[3] after attention = …`.
    slice_row: int | None = None
    is_record: bool = False  # The node's name has a key: `name=…`.

    doubts: Doubts = field(default_factory=Doubts)

    def add(self, kind: str, data: Any, key: Iterable[str] = (), outer: int | None = None) -> None:
        self._drop_variable(kind)
        words = (*self.outer_words, *self.label[self.value_start :])
        self.items.append(Quantity(kind, data, words[-64:], tuple(key), self.slice_row, self.from_end, outer))
        if kind == "list" and self.words_before_list is None:
            self.words_before_list = len(self.label)
        self.label.append(VALUES)  # separates the words on either side
        self.value_start, self.from_end = len(self.label), False

    def _drop_variable(self, kind: str) -> None:
        """`name="w1" v=[…]`, `V_proj values=[…]`, `attn_norm out[0]=…`: a variable beside the name of a node."""
        last = "".join(split_words(self.label[-1:])[-1:])
        if last not in (_ELEMENTS_OF if kind == "at" else _LISTS_OF | {"v"} if kind == "list" else ()):
            return
        rest = [w for w in self.label[: min(len(self.label) - 1, 48)] if w != VALUES]
        if last == "v" and kind == "list" and not self.is_record:
            return
        if rest and meaning([*rest, "layer", "0"], generic=False).nodes:
            self.label.pop()

    @property
    def empty(self) -> bool:
        return all(i.kind == "?" for i in self.items)
