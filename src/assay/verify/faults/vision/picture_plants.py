"""The types of a mistake that shows in a picture's rows, and the tower with such a mistake in it.

A variant changes one stage: the choices that make pixels, the rows of patches, the values that the graph is given, a
node, or the graph. A function of a stage returns None where the mistake would change nothing. `plant_tower` puts the
stages together for one image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import FUNCTIONS
from assay.graph import Graph, Node
from assay.models.vision.picture_inputs import Grid, PictureInputs, patch_rows, picture_inputs
from assay.models.vision.tower import Tower
from assay.verify.faults.fault import Change
from assay.vision.picture_plan import Size

Array = NDArray[Any]
Rows = Callable[[Grid, Array], Array]  # the rows of all patches in raster order, in another layout or order
Given = Callable[[Grid, PictureInputs], PictureInputs | None]
NodeEdit = Callable[[Tower, Node], Change | None]
GraphEdit = Callable[[Tower], Graph | None]


@dataclass(frozen=True)
class PixelHabits:
    """The choices by which an engine makes pixels. An empty one is the right choice."""

    filter: str = ""  # in place of the projector's
    antialias: bool = True
    stretch: bool = False  # the ratio is not kept
    corner: bool = False  # padding lies right and below only
    pad: tuple[float, float, float] | None = None  # another colour
    pad_zero: bool = False  # padding is added after normalising, as zeros
    pad_first: bool = False  # mlp: a square is padded with the mean colour, then resized
    ceil: bool = False  # a free size is rounded up
    columns_first: bool = False  # tiles column by column
    overview_first: bool = False
    divide: bool = True  # by 255
    normal: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None  # another mean and deviation
    exchanged: bool = False  # mean and deviation have changed places
    bgr: str = ""  # reversed: "decoded", or "before" or "after" normalising
    floats: str = ""  # resizing in floats: "kept", or "rounded" to bytes at the end

    def but(self) -> bool:
        """Is some choice another one?"""
        return self != RIGHT_HABITS


RIGHT_HABITS = PixelHabits()


@dataclass(frozen=True)
class PictureVariant:
    """One way to commit a fault. `usual` lists projectors whose trained model does this: there it is no fault."""

    label: str
    habits: PixelHabits = RIGHT_HABITS
    rows: Rows | None = None
    given: Given | None = None
    node: NodeEdit | None = None
    graph: GraphEdit | None = None
    usual: frozenset[str] = frozenset()

    @property
    def of_pixels(self) -> bool:
        return self.habits.but()


PICTURE_PLANTS: dict[str, list[PictureVariant]] = {}


def plant_picture(fault: str, label: str, **stages: Any) -> None:
    """Register a way to commit `fault`."""
    usual = frozenset(stages.pop("usual", ()))
    PICTURE_PLANTS.setdefault(fault, []).append(PictureVariant(label, usual=usual, **stages))


@dataclass(frozen=True)
class PlantedTower:
    """An engine with the mistake, for one image: values that the graph reads, the graph, functions."""

    given: dict[str, Array]
    graph: Graph
    functions: Mapping[str, Callable[..., Array]] = field(default_factory=dict)


def plant_tower(
    tower: Tower, size: Size, pixels: NDArray[np.float32], variant: PictureVariant | None = None
) -> PlantedTower | None:
    """The pass of an image of these pixels [channel, row, column]; None where the mistake does not apply.

    A mistake of the pixels is in the pixels already.
    """
    keys, graph = tower.keys, tower.graph
    grid = Grid(keys, size[0] // keys.patch, size[1] // keys.patch, tower.table_rows)
    inputs = picture_inputs(keys, size, tower.table_rows)
    functions: dict[str, Callable[..., Array]] = {}
    raster = patch_rows(pixels, keys.patch, np.arange(grid.n))
    if variant is not None and variant.rows is not None:
        raster = variant.rows(grid, raster)
    if variant is not None and variant.given is not None:
        changed = variant.given(grid, inputs)
        if changed is None:
            return None
        inputs = changed
    if variant is not None and variant.graph is not None:
        other = variant.graph(tower)
        if other is None:
            return None
        graph = other
    if variant is not None and variant.node is not None:
        changes = {node.name: change for node in graph if (change := variant.node(tower, node)) is not None}
        if not changes:
            return None
        graph = graph.rewrite(lambda n: changes[n.name].node if n.name in changes else None)
        functions = {name: change.function for name, change in changes.items() if change.function is not None}
    n_rows = len(raster) + inputs.extra
    positions = np.arange(n_rows) if inputs.positions is None else inputs.positions
    floats = {"inp_patches": raster[inputs.order], **inputs.values}
    given = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in floats.items()}
    return PlantedTower({**given, "inp_pos": positions}, graph, functions)


def own_function(node: Node) -> Callable[..., Any]:
    """The node's definition as a function of inputs and weights."""
    attrs, function = node.all_attrs(), FUNCTIONS[node.op]
    return lambda *operands: function(*operands, **attrs)
