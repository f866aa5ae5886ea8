"""The inputs of one run of a model: tokens, positions and the mask that follows from them.

`run_inputs` is called once for a dump, at the start of `verdict.judge`. Every later step (the noise model, the
recomputation, the verdict) takes the record and never builds its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.functions import attn_mask
from assay.engines.reference.weights import Weights
from assay.graph import Node, Trait
from assay.models import Model
from assay.models.pictures import LAST
from assay.verify.dumps.observation import Dump, inputs_of

Array = NDArray[Any]


@dataclass(frozen=True)
class RunInputs:
    """One sequence as the graph reads it, and the scores that its mask hides."""

    model: Model
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    given: Mapping[str, Array]  # the graph's inputs by name
    hidden: NDArray[np.bool_]  # [T, S]: the mask hides the score of this query and key

    @property
    def head_width(self) -> int:
        return self.model.hparams.n_embd_head

    def hidden_at(self, node: Node) -> NDArray[np.bool_] | None:
        """The values of the node that no reader uses; None where every value counts."""
        return self.hidden if node.has(Trait.KEYS) else None

    def recompute(self, dump: Dump, name: str, without: Collection[str] = ()) -> Array:
        """The definition's value of a node from the dump's own values; the nodes `without` are recomputed first."""
        env = dict(self.given)
        for other in dump.by_name:
            if other != name and other not in without and (value := dump.values(other)) is not None:
                env[other] = in_float64([value])[0]
        return interpret(self.model.graph, Weights(self.model.file, np.float32, budget=0), env, [name])[name]


def run_inputs(
    model: Model, tokens: Sequence[int], positions: Sequence[int], given: Mapping[str, Array] | None = None
) -> RunInputs:
    """The inputs of a run that begins its sequence. `given`: what the graph reads beside tokens and positions."""
    given = {**inputs_of(tokens, positions), **(given or {})}
    hidden = attn_mask(given["inp_pos"], given["inp_kpos"], causal=model.hparams.layers[0].causal, last=given.get(LAST))
    return RunInputs(model, tuple(tokens), tuple(positions), given, hidden)


def in_float64(values: Sequence[Array]) -> list[Array]:
    """The same values, floats upcast to float64."""
    return [v.astype(np.float64, copy=False) if v.dtype.kind == "f" else v for v in values]
