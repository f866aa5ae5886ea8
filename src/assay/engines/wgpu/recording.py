"""A program on the device: pipelines, bind groups and memory made once, and a step run by one pass.

Touch this module when the way from a plan to submitted commands changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.wgpu.adapter import ALIGNMENT, Command, Copy, Gpu, Prepared
from assay.engines.wgpu.dispatches import Count, Dispatch, DispatchPlan


class Recording:
    """A plan bound to buffers. `shared` finds the engine's buffers by name."""

    def __init__(self, gpu: Gpu, plan: DispatchPlan, tier: int, shared: Callable[[str], Any]) -> None:
        self.gpu, self.plan, self.tier = gpu, plan, tier
        self.own = {name: gpu.buffer(size, name) for name, size in plan.sizes.items()}
        self._shared = shared
        size = ALIGNMENT
        words = np.zeros((max(1, len(plan.dispatches)), ALIGNMENT // 4), np.uint32)
        for i, d in enumerate(plan.dispatches):
            words[i, : len(d.words)] = d.words
        self._numbers = gpu.loaded(words, "numbers of kernels")
        gpu.compile((d.kernel for d in plan.dispatches), tier)
        self._commands = [
            (gpu.pipeline(d.kernel, tier), gpu.bind_group(d.kernel, (self._numbers, i * size, size), self._bound(d)),
             d.groups)
            for i, d in enumerate(plan.dispatches)
        ]  # fmt: skip
        self._prepared: dict[tuple[int, int, int, int], Prepared] = {}

    @property
    def bytes(self) -> int:
        return sum(int(buffer.size) for buffer in self.own.values())

    def buffer(self, name: str) -> Any:
        return self.own[name] if name in self.own else self._shared(name)

    def _bound(self, dispatch: Dispatch) -> Mapping[str, Any]:
        return {binding: self.buffer(name) for binding, name in dispatch.buffers.items()}

    def run(
        self, tokens: int, rows: int, blocks: int, pieces: int, before: Sequence[Copy] = (), after: Sequence[Copy] = ()
    ) -> None:
        """Submit the dispatches of a step of so many tokens, output rows, blocks of keys and pieces."""
        key = (tokens, rows, blocks, pieces)
        commands = self._prepared.get(key)
        if commands is None:
            if len(self._prepared) > 64:
                self._prepared.clear()
            commands = self._prepared[key] = self.gpu.prepared(self.commands(*key))
        self.gpu.submit(commands, before, after)

    def commands(self, tokens: int, rows: int, blocks: int, pieces: int) -> list[Command]:
        """The dispatches of such a step, without those that have no workgroups."""
        sizes = {"T": tokens, "R": rows, "B": blocks, "P": pieces}
        counted = [(pipeline, group, workgroups(groups, sizes)) for pipeline, group, groups in self._commands]
        return [(p, g, (x, y, z)) for p, g, (x, y, z) in counted if x and y and z]

    def rows(self, name: str, rows: int, stride: int) -> NDArray[np.float32]:
        """The first rows of one of its buffers."""
        return self.gpu.read(self.buffer(name), rows * stride).view(np.float32).reshape(rows, stride)

    def close(self) -> None:
        for buffer in (*self.own.values(), self._numbers):
            buffer.destroy()


def workgroups(groups: tuple[Count, Count, Count], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """The workgroups of a dispatch in a step of these sizes."""

    def count(c: Count) -> int:
        if isinstance(c, int):
            return c
        if "/" in c:
            symbol, _, each = c.partition("/")
            return -(-sizes[symbol] // int(each))
        symbol, _, times = c.partition("*")
        return sizes[symbol] * int(times or 1)

    x, y, z = groups
    return count(x), count(y), count(z)
