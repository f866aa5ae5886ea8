"""One node of a graph: a named value and the operation that computes it.

Touch this when every node needs a further field. A new operation is a row of `ops.py` and needs no change here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from assay.graph.ops import OPS, Trait

_LONG = re.compile(r"\d+\.\d{7,}(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Node:
    """One value: `name = op(inputs; weights; attrs)`. Weights are GGUF tensor names."""

    name: str
    op: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def has(self, trait: Trait) -> bool:
        """Whether its operation has the trait, or at least one of several joined by `|`."""
        return OPS[self.op].traits._value_ & trait._value_ != 0  # `Flag.__and__` is a hundred times slower

    def attr(self, key: str) -> Any:
        """The attribute, or the operation's default."""
        return self.attrs[key] if key in self.attrs else OPS[self.op].attrs[key]

    def all_attrs(self) -> dict[str, Any]:
        """Every attribute of the operation, with defaults filled in."""
        return {**OPS[self.op].attrs, **self.attrs}

    def with_attrs(self, **changes: Any) -> Node:
        """A copy with some attributes changed."""
        return replace(self, attrs={**self.attrs, **changes})

    @property
    def formula(self) -> str:
        """For a person: numbers have at most seven digits, so that a float32 of 9.999999747378752e-06 is 1e-05."""
        return _LONG.sub(lambda found: f"{float(found[0]):.7g}", str(self))

    def __str__(self) -> str:
        operands = ", ".join((*self.inputs, *self.weights))
        attrs = ", ".join(f"{k}={v!r}" for k, v in sorted(self.attrs.items()))
        return f"{self.name} = {self.op}({operands}{'; ' + attrs if attrs else ''})"
