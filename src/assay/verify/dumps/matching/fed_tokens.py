"""Finds which token a decode step was fed by the printed values of its embedding.

A log may print the rows of decode steps and not their ids. A row of the embedding table has these values. If exactly
one token's row fits all that is printed of the embedding, the step was fed this token. Rows of the prompt must fit
their own tokens: an engine whose embedding is wrong names no token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.verify.dumps.observation import Observation, inputs_of

Array = NDArray[Any]
_NODES = ("embd", "inp_scaled")  # as the table has it, and scaled
_MOST = 1 << 27  # numbers of the table
_NEAR = (2.0**-16, 2.0**-8)  # relative: a table that is kept in float32, in 16 bits
_LEAST = 2  # numbers that must be printed of a row
_OF_ROWS: Mapping[str, Callable[[Array], Array]] = {
    "rms": lambda t: np.sqrt(np.mean(t * t, axis=1)),
    "norm": lambda t: np.sqrt(np.sum(t * t, axis=1)),
    "sum": lambda t: np.sum(t, axis=1),
    "mean": lambda t: np.mean(t, axis=1),
    "min": lambda t: np.min(t, axis=1),
    "max": lambda t: np.max(t, axis=1),
    "std": lambda t: np.std(t, axis=1),
    "absmax": lambda t: np.max(np.abs(t), axis=1),
    "absmean": lambda t: np.mean(np.abs(t), axis=1),
    "abssum": lambda t: np.sum(np.abs(t), axis=1),
}


class FedTokens:
    """The tokens of rows whose ids a log does not print. The table is decoded when the first one is asked for."""

    def __init__(self, model: Model, tokens: Sequence[int], observations: Sequence[Observation]) -> None:
        self._model, self._tokens = model, tuple(tokens)
        self._rows: dict[int, list[Observation]] = {}
        for obs in observations:
            if (
                obs.name in _NODES
                and obs.row is not None
                and (obs.kind in _OF_ROWS or obs.kind in ("first", "last", "at"))
            ):
                self._rows.setdefault(obs.row, []).append(obs)
        self._tables: list[Array] | None = None

    def at(self, row: int) -> int | None:
        """The token of a row behind the prompt; None if no token or several fit."""
        seen = self._rows.get(row, [])
        if sum(max(len(obs.printed), 1) for obs in seen) < _LEAST:
            return None
        for table in self._fitting():
            for near in _NEAR:
                fit = np.flatnonzero(_fits(table, seen, near))
                if len(fit):
                    return int(fit[0]) if len(fit) == 1 else None
        return None

    def _fitting(self) -> list[Array]:
        """The tables in which the prompt's tokens have the values that are printed of their rows."""
        if self._tables is None:
            own = {row: seen for row, seen in self._rows.items() if 0 <= row < len(self._tokens)}
            self._tables = []
            for table in self._decoded():
                known = [(row, seen) for row, seen in own.items() if self._tokens[row] < len(table)]
                if all(_fits(table[[self._tokens[row]]], seen, _NEAR[-1])[0] for row, seen in known):
                    self._tables.append(table)
        return self._tables

    def _decoded(self) -> list[Array]:
        hparams, graph = self._model.hparams, self._model.graph
        n = hparams.n_vocab
        if n * hparams.n_embd > _MOST:
            return []
        every = tuple(range(n))
        names = [name for name in _NODES if name in graph]
        found = interpret(graph, Weights(self._model.file, np.float32), inputs_of(every, every), set(names))
        return [found[name] for name in names if found[name].shape == (n, hparams.n_embd)]


def _fits(table: Array, seen: Sequence[Observation], near: float) -> Array:
    """Which rows have all printed values."""
    fit = np.ones(len(table), bool)
    for obs in seen:
        shown, values = np.atleast_1d(obs.target()), _measured(table, obs)
        if values is None or values.shape[1] != len(shown):
            return np.zeros(len(table), bool)
        half = np.array(obs.printed) if len(obs.printed) == len(shown) else np.zeros(len(shown))
        # A sum of many terms may be small by chance: its rounding is that of the terms.
        size = np.max(np.abs(table), axis=1)[:, None] if obs.kind in ("sum", "mean") else np.abs(shown)[None]
        fit &= (np.abs(values - shown) <= 1.01 * half + near * np.maximum(size, np.abs(shown))).all(axis=1)
    return fit


def _measured(table: Array, obs: Observation) -> Array | None:
    if obs.kind == "first":
        return table[:, : len(obs.data)]
    if obs.kind == "last":
        return table[:, -len(obs.data) :]
    if obs.kind == "at":
        at = [index for index, _ in obs.data]
        return table[:, at] if max(at) < table.shape[1] else None
    return _OF_ROWS[obs.kind](table)[:, None]
