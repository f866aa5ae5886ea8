"""Variants of an engine's graph that a batch may need: with LoRA adapters, with pictures, or both.

A compiled engine asks `of` for the variant of each batch, and compiles a program from `graph`. A batch without adapters
and pictures has the variant PLAIN, which is the engine's own graph. Touch this when a further kind of input changes the
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, Engine, with_scales
from assay.engines.plan.given_rows import picture_form
from assay.engines.plan.picture_graph import PictureGraph, picture_graph
from assay.graph import Graph
from assay.models.adapters import adapted
from assay.models.pictures import PictureForm


@dataclass(frozen=True)
class Variant:
    """The adapters that some chunk of a batch uses, ascending, and the form of the batch's pictures."""

    adapters: tuple[int, ...] = ()
    form: PictureForm | None = None


PLAIN = Variant()


class Variants:
    """The variants of an engine's graph, each made once. `values` gives the values of a weight."""

    def __init__(self, engine: Engine, values: Callable[[str], NDArray[np.float32]]) -> None:
        self._engine, self._values = engine, values
        self._graphs: dict[Variant, Graph] = {}
        self._pictures: dict[Variant, PictureGraph] = {}

    def of(self, batch: Sequence[Chunk]) -> tuple[Variant, Sequence[Chunk]]:
        """The variant that a batch needs, and its chunks with the rows that this graph is given."""
        active: tuple[int, ...] = ()
        if self._engine.adapters:
            active = tuple(sorted({number for chunk in batch for number, _ in chunk.adapters}))
            batch = [with_scales(chunk, active) for chunk in batch] if active else batch
        variant = Variant(active, picture_form(self._engine, batch))
        if variant.form:
            self.graph(variant)
            width = self._engine.model.hparams.n_embd
            batch = [self._pictures[variant].rows_for(chunk, width) for chunk in batch]
        return variant, batch

    def graph(self, variant: Variant) -> Graph:
        if variant == PLAIN:
            return self._engine.graph
        if variant not in self._graphs:
            graph = self._engine.graph
            if variant.adapters:
                graph = adapted(graph, self._engine.adapters, variant.adapters)
            if variant.form:
                self._pictures[variant] = picture_graph(graph, variant.form, self._values)
                graph = self._pictures[variant].graph
            self._graphs[variant] = graph
        return self._graphs[variant]
