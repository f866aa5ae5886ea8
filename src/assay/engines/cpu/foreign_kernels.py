"""Operations that other packages bring to the cpu engine: one C function for each, called on ranges of rows.

An outside package adds an operation in three calls, without touching a file of assay:

    assay.graph.register(Op(...))                            the row: formula, operands, shape rule, traits
    assay.engines.reference.functions.register(name, f)      the textbook function, in NumPy
    assay.engines.cpu.foreign_kernels.register(name, c_function)     the kernel

`native/program/foreign.h` has the C signature. Touch this module when such a kernel needs more than rows.
"""

from __future__ import annotations

import ctypes
from typing import Any

from assay.errors import AssayError
from assay.graph import OPS, Node, Trait

_FUNCTIONS: dict[str, Any] = {}  # by operation; holding the ctypes object keeps its library loaded


def register(name: str, function: Any) -> None:
    """Add the kernel of an operation: a function of a library that `ctypes.CDLL` has loaded."""
    if name not in OPS:
        raise ValueError(f"operation {name}: it is not in the table; call assay.graph.register first")
    if name in _FUNCTIONS:
        raise ValueError(f"operation {name}: it has a cpu kernel already; choose another name")
    if OPS[name].traits & (Trait.MIXES_TOKENS | Trait.STATE):
        raise ValueError(f"operation {name}: its rows depend on other rows; a kernel that gets ranges of rows cannot")
    _FUNCTIONS[name] = function


def unregister(name: str) -> None:
    """Remove the kernel again."""
    _FUNCTIONS.pop(name, None)


def kernel_address(name: str) -> int | None:
    """The address of an operation's kernel; None if no package has registered one."""
    function = _FUNCTIONS.get(name)
    return ctypes.cast(function, ctypes.c_void_p).value if function is not None else None


def numeric_attributes(node: Node) -> list[float]:
    """The attributes of a node as numbers, in the order of its operation's row."""
    values = node.all_attrs()
    for key, value in values.items():
        if not isinstance(value, bool | int | float):
            raise AssayError(f"node {node.name}: attribute {key}: a cpu kernel takes numbers only (found {value!r})")
    return [float(values[key]) for key in OPS[node.op].attrs]
