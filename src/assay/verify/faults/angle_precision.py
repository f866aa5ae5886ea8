"""Edits of stage `rope`: the frequencies, positions, angles or cosines of a rotation are rounded to a narrow type.

The error of an angle grows with its position, because a frequency of 8 bits is off by the same share everywhere. That
is why engines compute angles in float32 also where everything else is bfloat16.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

import numpy as np

from assay.engines.reference.functions import rope_angles, turned_pairs
from assay.graph import Node
from assay.verify.faults.fault import Array, Change, Context, plant
from assay.verify.faults.small import NARROW

Narrow = Callable[[Array], Array]
# The angles [T, n] from the positions of each pair, its frequency, and a rounding.
_ANGLES: dict[str, Callable[..., Array]] = {
    "frequencies in {}": lambda at, f, narrow: at * narrow(f),
    "positions in {}": lambda at, f, narrow: narrow(at) * f,
    "angles in {}": lambda at, f, narrow: narrow(at * f),
    "frequencies and angles in {}": lambda at, f, narrow: narrow(at * narrow(f)),
    "positions, frequencies and angles in {}": lambda at, f, narrow: narrow(narrow(at) * narrow(f)),
}


def _plain(x: Array) -> Array:
    return x


def _rotation(label: str, angles: Callable[[Array, Array], Array], table: Narrow) -> None:
    @plant("rope-angle-half", label, op="rope")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        attrs = node.all_attrs()
        n_head, mode, offset = attrs.pop("n_head"), attrs.pop("mode"), attrs.pop("offset", 0)

        def run(x: Array, positions: Array, *factors: Array) -> Array:
            own = factors[0] if factors else None
            theta, magnitude = rope_angles(positions, own, **attrs)
            frequency, _ = rope_angles(np.ones_like(positions[:1]), own, **attrs)
            at = positions[:, list(attrs["axes"])] if attrs.get("axes") else positions[:, None] + 0 * theta
            theta = np.asarray(angles(at.astype(np.float64), frequency))
            cos, sin = (table(f(theta) * magnitude) for f in (np.cos, np.sin))
            return turned_pairs(x.reshape(len(x), n_head, -1), cos, sin, mode, offset)

        return Change(node, run)


for _kind, _narrow in NARROW.items():
    for _label, _angles in _ANGLES.items():
        _rotation(_label.format(_kind), partial(_angles, narrow=_narrow), _plain)
    _rotation(f"cosines and sines in {_kind}", operator.mul, _narrow)
