"""What one line said, as it is read: its words in their order, its items, and what told a layer, a row, a side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from assay.verify.dumps.naming.phrases import VALUES, meaning, split_words
from assay.verify.dumps.printed.brackets import Item

RECORD = {
    "name", "node", "tensor", "op", "stage", "what", "label", "activation", "tag", "site", "point", "key", "module",
    "where", "hook", "probe",
}  # fmt: skip
_LISTS_OF = {"values", "vals", "data", "sample"}
_ELEMENTS_OF = _LISTS_OF | {"out", "x", "h", "y", "v", "buf", "dst", "res", "arr", "vec"}


@dataclass
class Said:
    """What one line said, as it is read."""

    label: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    before: int | None = None  # words before the first list
    layer: int | None = None
    row: int | None = None
    perhaps: int | None = None
    id: int | None = None  # of the token whose logit may follow
    side: str = ""
    since: int = 0  # words of the label before the last item
    around: tuple[str, ...] = ()  # words before the brackets that are open
    tail: bool = False
    inside: bool = False  # a layer: its number is known
    element: int | None = None  # x[3] after attention = …
    cut_row: int | None = None
    record: bool = False  # name=…: a key says what is the node's name

    def add(self, kind: str, data: Any, key: Iterable[str] = ()) -> None:
        self._drop_variable(kind)
        words = (*self.around, *self.label[self.since :])
        self.items.append(Item(kind, data, words[-64:], tuple(key), self.cut_row, self.tail))
        if kind == "list" and self.before is None:
            self.before = len(self.label)
        self.label.append(VALUES)  # words on either side of it do not belong together
        self.since, self.tail = len(self.label), False

    def _drop_variable(self, kind: str) -> None:
        """`name="w1" v=[…]`, `V_proj values=[…]`, `attn_norm out[0]=…`: a variable beside the name of a node."""
        last = "".join(split_words(self.label[-1:])[-1:])
        if last not in (_ELEMENTS_OF if kind == "at" else _LISTS_OF | {"v"} if kind == "list" else ()):
            return
        rest = [w for w in self.label[: min(len(self.label) - 1, 48)] if w != VALUES]
        if last == "v" and kind == "list" and not self.record:
            return
        if rest and meaning([*rest, "layer", "0"], generic=False).nodes:
            self.label.pop()

    @property
    def empty(self) -> bool:
        return all(i.kind == "?" for i in self.items)
