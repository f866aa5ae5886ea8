"""Reads a pickle as data: nothing that it names is imported or called.

A pickle is a program for a stack machine. `read_pickle` runs the operations that build plain values, and gives a
`PickledObject` where the program would call a function or make an instance. The caller's table says what a few known
functions mean, such as the one that makes a tensor. The memo is a dictionary, sizes come from the bytes themselves, and
the number of operations is bounded. So a hostile file costs no more than its own size.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_OPERATIONS = 1 << 20
_MARK = object()


@dataclass(frozen=True)
class PickledName:
    """A class or function that a pickle names."""

    module: str
    name: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class PickledObject:
    """Stands for a call's result: the function, its arguments, and the items and state that were set afterwards."""

    made_by: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)
    members: list[Any] = field(default_factory=list)


Meaning = Callable[..., Any]


class PickleError(ValueError):
    """The bytes are no pickle of data."""


def read_pickle(data: bytes, known: Mapping[str, Meaning], persistent: Meaning | None = None) -> Any:
    """The value of a pickle. `known` gives the meaning of functions by their full name; `persistent` of stored ids."""
    machine = _Machine(known, persistent)
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if count >= MAX_OPERATIONS:
                raise PickleError(f"more than {MAX_OPERATIONS} operations")
            if operation.name == "STOP":
                return machine.stack[-1]
            machine.step(operation.name, argument)
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError, RecursionError) as error:
        raise PickleError(f"{type(error).__name__}: {error!s:.80}") from None
    raise PickleError("it has no end")


class _Machine:
    """The stack, the memo, and one method for each group of operations."""

    def __init__(self, known: Mapping[str, Meaning], persistent: Meaning | None) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.known, self.persistent = known, persistent

    def step(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _OPERATIONS:
            _OPERATIONS[name](self, argument)
        else:
            raise PickleError(f"operation {name} is not used for data")

    def since_mark(self) -> list[Any]:
        found = []
        while (value := self.stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def top(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise PickleError("the stack is empty")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def call(self, function: Any, args: Any) -> Any:
        if not isinstance(args, tuple):
            raise PickleError("the arguments of a call are no tuple")
        if not isinstance(function, PickledName):
            return PickledObject(type(function).__name__, args)
        meaning = self.known.get(function.full)
        return PickledObject(function.full, args) if meaning is None else meaning(*args)

    def put_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        items = target.items if isinstance(target, PickledObject) else target
        if not isinstance(items, dict):
            raise PickleError("items are set on what has none")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            items[key if isinstance(key, str | int | float | bool | tuple | None) else repr(type(key))] = value

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        members = target.members if isinstance(target, PickledObject) else target
        if not isinstance(members, list):
            raise PickleError("values are appended to what is no list")
        members.extend(values)

    def build(self, state: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, PickledObject):
            target.state = state
        elif hasattr(target, "set_state"):
            target.set_state(state)


def _named(machine: _Machine, argument: Any) -> None:
    module, _, name = argument.partition(" ")
    machine.stack.append(PickledName(module, name))


def _named_on_stack(machine: _Machine, _: Any) -> None:
    module, name = machine.top(2)
    machine.stack.append(PickledName(str(module), str(name)))


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.stack[-1]


def _stored(machine: _Machine, pid: Any) -> None:
    if machine.persistent is None:
        raise PickleError("it refers to data outside of it")
    machine.stack.append(machine.persistent(pid))


def _dropped(machine: _Machine, _: Any) -> None:
    machine.top(1)


_IGNORED = {"PROTO", "FRAME"}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "EMPTY_SET": list, "MARK": lambda: _MARK,
}  # fmt: skip
_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.top(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.top(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.top(3))),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "APPEND": lambda m, _: m.extend(m.top(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.put_items(m.top(2)),
    "SETITEMS": lambda m, _: m.put_items(m.since_mark()),
    "GLOBAL": _named,
    "STACK_GLOBAL": _named_on_stack,
    "REDUCE": lambda m, _: m.stack.append(m.call(*m.top(2))),
    "NEWOBJ": lambda m, _: m.stack.append(m.call(*m.top(2))),
    "BUILD": lambda m, _: m.build(m.top(1)[0]),
    "BINPERSID": lambda m, _: _stored(m, m.top(1)[0]),
    "PUT": _memoize,
    "BINPUT": _memoize,
    "LONG_BINPUT": _memoize,
    "MEMOIZE": _memoize,
    "GET": lambda m, key: m.stack.append(m.memo[int(key)]),
    "BINGET": lambda m, key: m.stack.append(m.memo[key]),
    "LONG_BINGET": lambda m, key: m.stack.append(m.memo[key]),
    "POP": _dropped,
}
