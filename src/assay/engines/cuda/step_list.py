"""The list of kernel steps while the schedule pass appends to it, and the values that nodes have so far.

The schedule functions get this list as their first argument. `value_of` finds a node's value for the rows that a reader
needs, and appends the step that gathers these rows if they do not exist yet. `once` computes a value that several steps
share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from assay.engines.cuda.context import CompileContext
from assay.engines.cuda.device_values import Layout, Value, padded_rows
from assay.engines.cuda.layout import UNIT
from assay.engines.cuda.steps import CacheRead, CacheWrite, KernelStep, TakeOutputRows, WalkNeeds, Work
from assay.engines.plan.batching import External
from assay.errors import AssayError

T = TypeVar("T")


@dataclass(frozen=True)
class Schedule:
    """The result of the schedule pass: steps in order, and the values that leave the program or enter it."""

    steps: tuple[KernelStep, ...]
    results: tuple[tuple[External, Value], ...]
    aliases: dict[str, str]  # kept nodes that are another node's values


@dataclass
class StepList:
    """Steps in order; values by node and domain."""

    context: CompileContext
    steps: list[KernelStep] = field(default_factory=list)
    values: dict[tuple[str, str], Value] = field(default_factory=dict)
    results: list[tuple[External, Value]] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    shared: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # by what was computed once

    def finish(self) -> Schedule:
        return Schedule(tuple(self.steps), tuple(self.results), self.aliases)

    def add(
        self,
        node: str,
        work: Work,
        reads: Iterable[Value | None],
        writes: Iterable[Value | None],
        walk: WalkNeeds | None = None,
    ) -> None:
        used = tuple(v.memory for v in reads if v), tuple(v.memory for v in writes if v)
        self.steps.append(KernelStep(node, work, *used, walk))

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """The result of `make` for this key; only the first caller runs it."""
        if key not in self.shared:
            self.shared[key] = make()
        found: T = self.shared[key]
        return found

    def new(self, name: str, layout: Layout = Layout.F32, size: int = 0) -> Value:
        """The value of a node that the next step computes. `size`: bytes, where the layout needs more than float32."""
        c = self.context
        domain, width = c.domain(name), c.width(name)
        value = self.values[name, domain] = Value(max(size, 4 * width * c.rows(domain)), layout)
        if name in c.keep or name == c.graph.output:
            self.results.append((External(name, c.plan.domains[name], width), value))
        return value

    def new_for_readers(self, name: str, *forms: str, padded: bool = False) -> Value:
        """A new value in 16 bits, if every reader multiplies it in one of these forms on tensor cores; else float32.
        `padded`: the step writes zeros behind the last column of a row, up to whole units."""
        c = self.context
        domain, width = c.domain(name), c.width(name)
        form = next((f for f in forms if c.read_as(f, name, domain)), "")
        if name == c.graph.output or name in c.keep or (width % UNIT and not padded) or not form:
            return self.new(name)
        stride = -(-width // UNIT) * UNIT
        value = self.values[name, domain] = Value(2 * padded_rows(c.rows(domain)) * stride, Layout(form))
        return value

    def given(self, name: str) -> None:
        """A value that the caller provides: it is written before the first launch."""
        width = self.context.width(name)
        value = self.values[name, "tokens"] = Value(4 * width * self.context.shape.tokens, resident=True)
        self.results.append((External(name, "tokens", width, given=True), value))

    def value_of(self, name: str, domain: str) -> Value:
        found = self.values.get((name, domain))
        if found is not None:
            return found
        c, width = self.context, self.context.width(name)
        if domain == "outputs" and (name, "tokens") in self.values:
            source = self.values[name, "tokens"]
            value = Value(4 * width * c.rows("outputs"))
            self.add(name, TakeOutputRows(source, value, width), [source], [value])
        elif domain == "keys" and name in c.cache.pools:
            fill_pool(self, name)
            value = read_cache(self, name, Value(4 * width * c.shape.keys))
        else:
            raise AssayError(f"node {name}: the cuda engine cannot use it here; use --engine cpu")
        self.values[name, domain] = value
        return value


def write_cache(steps: StepList, source: str, to: str) -> None:
    x = steps.value_of(source, "tokens")
    steps.add(to, CacheWrite(x, steps.context.cache.pool(to)), [x], [])


def fill_pool(steps: StepList, name: str) -> None:
    """Write keys or values that the graph does not cache into pages, for the pass that reads them."""
    if steps.context.cache.pools[name].passing:
        write_cache(steps, name, name)


def read_cache(steps: StepList, name: str, out: Value) -> Value:
    c = steps.context
    steps.add(name, CacheRead(c.cache.pool(name), out, c.width(name)), [], [out])
    return out
