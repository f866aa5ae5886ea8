"""Shared by all witnesses: importing their packages, running one sequence at a time, and keeping values by our names.

A witness is another project's engine. `Follower` gives it the contract of `engines.contract`. `Talker` gives it that of
a server, where it gives only text with log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Arithmetic, Chunk, Emit, Engine, Output, check_batch, hand_over, pages_for
from assay.errors import AssayError
from assay.graph import split
from assay.models import Model
from assay.system.extras import install
from assay.verify.dumps.naming.foreign_names import translate
from assay.verify.dumps.observation import from_hf

Array = NDArray[Any]
_IN_ROW_ORDER = frozenset({"linear", "bias"})  # operations whose result has the order of the weight's rows


def packages(witness: str, *modules: str) -> tuple[Any, ...]:
    """The modules of a witness; the error names the extra that installs them."""
    try:
        return tuple(import_module(module) for module in modules)
    except ImportError as error:
        raise AssayError(
            f"engine {witness}: {error.name or error} is not installed; install what it needs with {install(witness)}"
        ) from None


class Talker(Protocol):
    """A witness that answers requests as an OpenAI-compatible server does: a path and a body give an answer."""

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Follower(Engine):
    """Follows one sequence: a chunk begins at 0, or where the one before ended.

    `_run` computes the logits of all tokens of a chunk and passes intermediate values to `_see`, under the engine's own
    names. `_array` brings a value of the engine to NumPy, without the axis of the batch.
    """

    def __init__(
        self, model: Model, sees: Iterable[str], arithmetic: Arithmetic, *, n_pages: int | None = None, threads: int = 0
    ) -> None:
        self.model, self.graph, self.name, self.arithmetic = model, model.graph, arithmetic.name, arithmetic
        self.threads, self.n_pages = threads, n_pages or pages_for(model.hparams.n_ctx_train)
        found = (translate(name, "", model.graph) for name in (*sees, model.graph.output))
        roles = {split(node[0])[0] for node in found if node is not None}
        self.cannot_keep = tuple(dict.fromkeys(role for n in model.graph if (role := split(n.name)[0]) not in roles))
        self._pairs = any(n.all_attrs().get("mode") == "norm" for n in model.graph)
        self._wanted: set[str] = set()
        self._kept: dict[str, Array] = {}
        self._end = 0

    def _run(self, tokens: NDArray[np.int32], start: int) -> Array:
        raise NotImplementedError

    def _array(self, value: Any) -> Array:
        raise NotImplementedError

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        check_batch(self, batch, keep)
        return hand_over([self._chunk(chunk, set(keep)) for chunk in batch], emit)

    def _chunk(self, chunk: Chunk, keep: set[str]) -> Output:
        if chunk.start not in (0, self._end):
            raise AssayError(
                f"engine {self.name}: follows one sequence (found a start of {chunk.start}, expected 0 or {self._end})"
            )
        if chunk.positions is not None and not np.array_equal(chunk.positions, np.arange(chunk.start, chunk.end)):
            raise AssayError(f"engine {self.name}: counts positions itself; they cannot be chosen")
        self._wanted, self._kept = keep, {}
        logits = np.asarray(self._run(chunk.tokens, chunk.start), np.float32)
        self._end = chunk.end
        if self.graph.output in keep:
            self._kept[self.graph.output] = logits
        nodes = {node.name: self._kept[node.name] for node in self.graph if node.name in self._kept}
        return Output(logits[-1:] if chunk.outputs == "last" else logits, nodes)

    def _see(self, name: str, value: Any) -> None:
        """Keep a value if it is wanted; the halves of queries and keys are converted to the file's pairs."""
        found = translate(name, "", self.graph)
        if found is None or found[0] not in self._wanted or found[0] in self._kept:
            return
        node, order = found
        array = np.array(self._array(value), np.float32)
        if order == "hf" and self._pairs and self.graph[node].op in _IN_ROW_ORDER:
            array = from_hf(array, self.model.hparams.n_embd_head)
        shape = self.graph.shapes[node]
        self._kept[node] = array.reshape(-1, *map(int, shape[1:])) if shape[0] == "T" else array

    def close(self) -> None:
        self._kept = {}


class RecordedModule:
    """A wrapped module: it computes as before, and passes its argument and its result to `see`."""

    def __init__(self, module: Any, name: str, see: Callable[[str, Any], None]) -> None:
        self.module, self.name, self.see = module, name, see

    def __call__(self, x: Any, *args: Any, **more: Any) -> Any:
        self.see(f"{self.name}.input", x)
        result = self.module(x, *args, **more)
        self.see(self.name, result)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)
