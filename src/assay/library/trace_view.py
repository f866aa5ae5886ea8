"""A trace in memory: a mapping from node names to arrays, printed with one line per node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.evaluate.page import cell, render, shade, table
from assay.graph import Graph
from assay.library.notebook import inline
from assay.system.counting import counted
from assay.verify.dumps.observation import Dump

_SHOWN = 12  # nodes in a printed trace


class Trace(Mapping[str, NDArray[Any]]):
    """The values of nodes by name, in graph order. `dump` has the same values as a dump that is read from a file."""

    def __init__(self, graph: Graph, dump: Dump) -> None:
        self.dump = dump
        self.tokens = list(dump.tokens)
        self._graph = graph
        self._values = {o.name: o.array() for o in dump.observations}

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        lines = [f"<Trace of {counted(len(self.tokens), 'token')} on {self.dump.engine}, {counted(len(self), 'node')}:"]
        for name, value in list(self._values.items())[:_SHOWN]:
            rms = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) if value.size else 0.0
            lines.append(f"  {name:<20} {' × '.join(map(str, value.shape)):>14}  rms {rms:.6g}")
        rest = len(self) - _SHOWN
        return "\n".join([*lines, f"  and {rest} more>"] if rest > 0 else lines) + ("" if rest > 0 else ">")

    def _repr_html_(self) -> str:
        """A table of nodes with shape and magnitude; larger values are darker."""
        rms = {name: float(np.sqrt(np.mean(np.square(v, dtype=np.float64)))) for name, v in self.items() if v.size}
        most = max(rms.values(), default=0.0) or 1.0
        rows = [
            (
                cell(name, "name"),
                cell(str(self._graph[name]).split(" = ", 1)[1], "text less"),
                cell(" × ".join(map(str, value.shape))),
                shade(f"{rms.get(name, 0):.6g}", rms.get(name, 0) / most),
                cell(" ".join(f"{x:.4g}" for x in value.reshape(-1)[:4]), "less"),
            )
            for name, value in self.items()
        ]
        said = [f"{counted(len(self.tokens), 'token')} on {self.dump.engine}, {counted(len(self), 'node')}"]
        return inline(render("trace", said, [("Nodes", table(("node", "-is", "shape", "rms", "-begins with"), rows))]))

    def to_dict(self) -> dict[str, Any]:
        """Tokens, engine, and for each node its operation, shape and values as lists."""
        return {
            "engine": self.dump.engine,
            "tokens": self.tokens,
            "steps": list(self.dump.steps),
            "nodes": {
                name: {"op": self._graph[name].op, "shape": list(value.shape), "values": value.tolist()}
                for name, value in self._values.items()
            },
        }

    def save(self, path: str | Path) -> None:
        """Write an .npz file for `assay diff` and `assay diagnose`. The array `tokens` has the ids."""
        fed = {"tokens": self.tokens, "positions": self.dump.positions, "steps": self.dump.steps}
        np.savez(path, **{key: np.array(ids, np.int32) for key, ids in fed.items()}, **self._values)  # type: ignore[arg-type]
