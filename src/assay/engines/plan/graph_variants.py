"""Variants of an engine's graph that a batch may need: with LoRA adapters, with a second token type, with
pictures.

A compiled engine asks `of` for the variant of each batch, and compiles a program from `graph`. A batch with none of
these has the variant PLAIN, which is the engine's own graph. Touch this when a further kind of input changes the
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Engine, with_scales, with_types
from assay.engines.plan.given_rows import picture_form
from assay.engines.plan.picture_graph import PictureGraph, picture_graph
from assay.graph import Graph
from assay.models.adapters import adapted
from assay.models.pictures import PictureForm
from assay.models.token_types import typed


@dataclass(frozen=True)
class GraphVariant:
    """The needs of the chunks of a batch."""

    adapters: tuple[int, ...] = ()  # those that some chunk uses, ascending
    typed: bool = False  # some chunk has a second text
    form: PictureForm | None = None  # of its pictures


PLAIN = GraphVariant()


class GraphVariants:
    """The variants of an engine's graph, each made once. `values` gives the values of a weight."""

    def __init__(self, engine: Engine, values: Callable[[str], NDArray[np.float32]]) -> None:
        self._engine, self._values = engine, values
        self._graphs: dict[GraphVariant, Graph] = {}
        self._pictures: dict[GraphVariant, PictureGraph] = {}

    def of(self, batch: Sequence[Chunk]) -> tuple[GraphVariant, Sequence[Chunk]]:
        """The variant that a batch needs, and its chunks with the rows that this graph is given."""
        if not any(chunk.adapters or chunk.second or chunk.pictures for chunk in batch):
            return PLAIN, batch
        active = tuple(sorted({number for chunk in batch for number, _ in chunk.adapters}))
        if active:
            batch = [with_scales(chunk, active) for chunk in batch]
        has_pairs = any(chunk.second for chunk in batch)
        if has_pairs:
            batch = [with_types(chunk, self._engine.dtype) for chunk in batch]
        variant = GraphVariant(active, has_pairs, picture_form(self._engine, batch))
        if variant.form:
            self.graph(variant)
            width = self._engine.model.hparams.n_embd
            batch = [self._pictures[variant].rows_for(chunk, width) for chunk in batch]
        return variant, batch

    def graph(self, variant: GraphVariant) -> Graph:
        if variant == PLAIN:
            return self._engine.graph
        if variant not in self._graphs:
            graph = self._engine.graph
            if variant.adapters:
                graph = adapted(graph, self._engine.adapters, variant.adapters)
            if variant.typed:
                graph = typed(graph)
            if variant.form:
                self._pictures[variant] = picture_graph(graph, variant.form, self._values)
                graph = self._pictures[variant].graph
            self._graphs[variant] = graph
        return self._graphs[variant]
