"""Mistakes of the projector: how patches become a token, the norm before the product, deepstack, breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.models.vision.picture_inputs import Grid, PictureInputs
from assay.models.vision.tower import Tower
from assay.verify.faults.fault import Change
from assay.verify.faults.vision.picture_plants import own_function, plant_picture

Array = NDArray[Any]
NodeEdit = Callable[[Tower, Node], Change | None]


def _blocks(g: Grid, inputs: PictureInputs, blocks: Array) -> PictureInputs | None:
    if np.array_equal(blocks, inputs.values["inp_blocks"]):
        return None
    return replace(inputs, values={**inputs.values, "inp_blocks": blocks})


def _columns_slow(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    m = g.keys.merge
    if m < 2 or g.keys.projector == "mlp":
        return None
    blocks = inputs.values["inp_blocks"].reshape(-1, m, m).transpose(0, 2, 1).reshape(-1, m * m)
    return _blocks(g, inputs, blocks)


def _consecutive(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    """m² rows that follow each other in the raster."""
    m = g.keys.merge
    if m < 2 or g.keys.projector.startswith("qwen") or g.keys.projector == "mlp":
        return None
    n = inputs.values["inp_blocks"].size
    return _blocks(g, inputs, np.arange(n).reshape(-1, m * m))


plant_picture("vis-merge-order", "columns slow in the block", given=_columns_slow)
plant_picture("vis-pool-axis", "consecutive patches in place of a square", given=_consecutive)


def _apart(tower: Tower, node: Node) -> Change | None:
    if node.op != "take_rows" or node.attr("n") < 2:
        return None
    return Change(node.with_attrs(apart=not node.attr("apart")))


def _largest(tower: Tower, node: Node) -> Change | None:
    return Change(node, lambda x, idx: x.reshape(len(x), -1)[idx].max(1)) if node.op == "mean_rows" else None


def _summed(tower: Tower, node: Node) -> Change | None:
    """The sum in place of the mean."""
    return Change(node, lambda x, idx: x.reshape(len(x), -1)[idx].sum(1)) if node.op == "mean_rows" else None


def _unscaled(tower: Tower, node: Node) -> Change | None:
    return Change(node, lambda x: x) if node.name == "pooled" and node.op == "scale" else None


plant_picture("vis-merge-channel", "channel slow for channel fast, or back", node=_apart)
plant_picture("vis-pool-max", "the largest in place of the mean", node=_largest)
plant_picture("vis-pool-scale", "√e is left out", node=_unscaled)
plant_picture("vis-pool-scale", "the sum in place of the mean", node=_summed)


def _plus_one(tower: Tower, node: Node) -> Change | None:
    if node.name != "soft_emb_normed":
        return None
    right = own_function(node)
    return Change(node, lambda x, w: right(x, np.asarray(w) + 1))


def _transposed(tower: Tower, node: Node) -> Change | None:
    """The bytes of the last matrix read with rows and columns exchanged."""
    if node.op != "linear" or node.weights != ("mm.input_projection.weight",):
        return None
    turned = tower.keys.projector == "gemma3"  # the graph has the transposed matrix of the file

    def run(x: Array, w: Array) -> Array:
        matrix = np.asarray(w)
        wrong = matrix.T.reshape(matrix.shape) if turned else matrix.reshape(matrix.shape[::-1]).T
        return np.asarray(x @ wrong.T)

    return Change(node, run)


plant_picture("vis-norm-plus-one", "1 + weight, which the file has already", node=_plus_one)
plant_picture("vis-projection-transposed", "rows and columns of the matrix exchanged", node=_transposed)


# -- deepstack -------------------------------------------------------------------------------------------------


def _is_join(tower: Tower, node: Node) -> bool:
    return node.op == "join" and node.name == tower.graph.output


def _joined(make: Callable[[list[Array]], list[Array]], least: int = 1) -> NodeEdit:
    """The parts of a row: the embedding first, then those of deepstack."""

    def edit(tower: Tower, node: Node) -> Change | None:
        if not _is_join(tower, node) or len(node.inputs) <= least:
            return None
        return Change(node, lambda *parts: np.concatenate(make(list(parts)), axis=-1))

    return edit


plant_picture(
    "vis-deepstack-missing", "zeros in place of deepstack's parts",
    node=_joined(lambda parts: [parts[0], *(np.zeros_like(p) for p in parts[1:])]),
)  # fmt: skip
plant_picture("vis-deepstack-missing", "rows without deepstack's parts", node=_joined(lambda parts: parts[:1]))
plant_picture(
    "vis-deepstack-order", "deepstack's parts in reverse order",
    node=_joined(lambda parts: [parts[0], *reversed(parts[1:])], 2),
)  # fmt: skip
plant_picture(
    "vis-deepstack-order", "deepstack's parts before the embedding",
    node=_joined(lambda parts: [*parts[1:], parts[0]]),
)  # fmt: skip


# -- breaks ----------------------------------------------------------------------------------------------------


def _breaks(make: Callable[[Array, int], Array]) -> Callable[[Grid, PictureInputs], PictureInputs | None]:
    def edit(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
        rows = inputs.values.get("inp_breaks")
        if rows is None:
            return None
        own = (g.gx // g.keys.merge) * (g.gy // g.keys.merge)  # the index of the break
        return replace(inputs, values={**inputs.values, "inp_breaks": make(rows[:, 0], own)[:, None]})

    return edit


plant_picture("vis-no-break", "no breaks between rows", given=_breaks(lambda rows, own: rows[rows != own]))
plant_picture(
    "vis-break-last", "a break behind the last row, too", given=_breaks(lambda rows, own: np.append(rows, own))
)
