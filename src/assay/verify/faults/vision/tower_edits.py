"""Mistakes inside the tower: norms, activations, the mask and scale of attention, rotations, layers, windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import FUNCTIONS
from assay.graph import Graph, Node, Trait, split
from assay.models.vision.picture_inputs import (
    WINDOW,
    Grid,
    PictureInputs,
    cosines_and_sines,
    frequencies,
    in_windows,
    raster_of,
)
from assay.models.vision.tower import BUILDERS, Tower
from assay.models.vision.vit import QUICK, TowerBuilder
from assay.verify.faults.fault import Change
from assay.verify.faults.vision.picture_plants import plant_picture

Array = NDArray[Any]
NodeEdit = Callable[[Tower, Node], Change | None]
QWEN25 = "qwen2.5vl_merger"


def _in_tower(node: Node) -> bool:
    """Is it a node of a layer, and not of deepstack?"""
    role, layer = split(node.name)
    return layer is not None and not role.startswith("deepstack")


# -- norms -----------------------------------------------------------------------------------------------------


def _eps(value: float) -> NodeEdit:
    def edit(tower: Tower, node: Node) -> Change | None:
        other = node.has(Trait.NORM) and node.attr("eps") != value
        return Change(node.with_attrs(eps=value)) if other else None

    return edit


def _towers_eps(tower: Tower, node: Node) -> Change | None:
    """The tower's eps in a norm of the projector that has its own."""
    other = node.has(Trait.NORM) and node.attr("eps") != tower.keys.eps
    return Change(node.with_attrs(eps=tower.keys.eps)) if other else None


for _value in (1e-5, 1e-6, 1e-12, 0.0):
    plant_picture("vis-eps", f"eps {_value:g}", node=_eps(_value))
plant_picture("vis-eps", "the tower's eps in the projector's norm", node=_towers_eps)


def _skipped(*roles: str) -> NodeEdit:
    def edit(tower: Tower, node: Node) -> Change | None:
        return Change(node, lambda x, *_: x) if split(node.name)[0] in roles else None

    return edit


plant_picture("vis-no-post-norm", "post_ln is left out", node=_skipped("post_ln"))
plant_picture("vis-no-post-norm", "pre_ln is left out", node=_skipped("pre_ln"))
plant_picture(
    "vis-no-post-norm", "the norms after attention and FFN are left out",
    node=_skipped("attn_post_normed", "ffn_post_normed"),
)  # fmt: skip
plant_picture("vis-no-v-norm", "values are not normalised", node=_skipped("Vcur_normed"))


def _no_clamp(tower: Tower, node: Node) -> Change | None:
    return Change(node, lambda x: x) if node.op == "clamp" else None


plant_picture("vis-no-clamp", "products are not clamped", node=_no_clamp)


# -- activations -----------------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[float])(x))


ACTS: dict[str, Callable[[Array], Array]] = {
    "gelu_tanh": lambda x: np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "gelu_erf": lambda x: np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    "quick": lambda x: np.asarray(x * _sigmoid(QUICK * x)),
    "silu": lambda x: np.asarray(x * _sigmoid(x)),
    "relu": lambda x: np.maximum(x, 0),
}


def _acts(node: Node) -> str:
    """The activation that a node computes; empty for other nodes."""
    if node.op in ("act", "glu"):
        return str(node.attr("act"))
    return "quick" if split(node.name)[0] == "ffn_gelu_quick" else ""


def _activation(name: str, where: Callable[[Node], bool], only: str = "") -> NodeEdit:
    """Another activation; `only` in place of this one."""
    act = ACTS[name]

    def edit(tower: Tower, node: Node) -> Change | None:
        now = _acts(node)
        if not now or now == name or not where(node) or (only and now != only):
            return None
        if node.op == "glu":
            return Change(node, lambda gate, up: act(gate) * up)
        return Change(node, lambda x, *_: act(x))

    return edit


def _anywhere(node: Node) -> bool:
    return True


def _in_projector(node: Node) -> bool:
    return not _in_tower(node)


for _label, _name in (("GELU, tanh form", "gelu_tanh"), ("quick GELU", "quick"), ("SiLU", "silu"), ("ReLU", "relu")):
    _usual = ("gemma4v",) if _name == "gelu_tanh" else ()
    plant_picture("vis-activation", f"{_label} in the tower", node=_activation(_name, _in_tower), usual=_usual)
    plant_picture("vis-activation", f"{_label} in the projector", node=_activation(_name, _in_projector))
plant_picture(
    "vis-gelu-erf", "GELU by erf in the projector", node=_activation("gelu_erf", _in_projector, "gelu_tanh"),
    usual=("qwen2vl_merger", QWEN25, "qwen3vl_merger", "lfm2", "pixtral", "internvl", "mlp"),
)  # fmt: skip
plant_picture("vis-gelu-erf", "GELU by erf in the tower", node=_activation("gelu_erf", _in_tower, "gelu_tanh"))
plant_picture(
    "vis-gelu-erf", "GELU by erf in tower and projector", node=_activation("gelu_erf", _anywhere, "gelu_tanh"),
    usual=("internvl",),
)  # fmt: skip


# -- attention -------------------------------------------------------------------------------------------------


def _scale(label: str, value: Callable[[Tower], float]) -> None:
    def edit(tower: Tower, node: Node) -> Change | None:
        if node.op != "attn_softmax" or math.isclose(node.attr("scale"), value(tower)):
            return None
        return Change(node.with_attrs(scale=value(tower)))

    plant_picture("vis-attention-scale", label, node=edit)


_scale("no scale", lambda tower: 1.0)
_scale("1/√d", lambda tower: tower.keys.head_dim**-0.5)
_scale("1/√e, the tower's width", lambda tower: tower.keys.n_embd**-0.5)
_scale("1/d", lambda tower: 1 / tower.keys.head_dim)


def _causal(tower: Tower, node: Node) -> Change | None:
    if node.op != "attn_softmax":
        return None
    attrs = {name: value for name, value in node.all_attrs().items() if name != "causal"}

    def masked(scores: Array, positions: Array, keys: Array) -> Array:
        later = np.triu(np.ones(scores.shape[-2:], bool), 1)
        return np.asarray(
            FUNCTIONS["attn_softmax"](np.where(later, -np.inf, scores), positions, keys, causal=False, **attrs)
        )

    return Change(node, masked)


plant_picture("vis-tower-causal", "a patch sees only those before it", node=_causal)


# -- rotations -------------------------------------------------------------------------------------------------


def _angles(g: Grid, order: Array, theta: tuple[Array, Array], swapped: bool) -> dict[str, Array]:
    """The given tables of a projector with rotation, from the frequencies of rows and of columns."""
    row, column = (x[order] for x in raster_of(g))
    if swapped:
        row, column = column, row
    by_row, by_column = row[:, None] * theta[0], column[:, None] * theta[1]
    if g.keys.projector == "gemma4v":
        return {"inp_rope_x": cosines_and_sines(by_column), "inp_rope_y": cosines_and_sines(by_row)}
    return {"inp_rope": cosines_and_sines(by_row, by_column)}


def _frequencies(g: Grid) -> tuple[Array, Array]:
    """Of rows and of columns, as the projector has them."""
    d = g.keys.head_dim
    if g.keys.projector == "pixtral":
        theta = frequencies(10000.0, d)
        return theta[0::2], theta[1::2]
    theta = frequencies(100.0 if g.keys.projector == "gemma4v" else 10000.0, d // 2)
    return theta, theta


def _turns(inputs: PictureInputs) -> bool:
    return any(name.startswith("inp_rope") for name in inputs.values)


def _rope_xy(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    if not _turns(inputs):
        return None
    return replace(inputs, values={**inputs.values, **_angles(g, inputs.order, _frequencies(g), True)})


def _rope_theta(wrong: Callable[[Grid], Array]) -> Callable[[Grid, PictureInputs], PictureInputs | None]:
    def edit(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
        if not _turns(inputs):
            return None
        theta = wrong(g)
        return replace(inputs, values={**inputs.values, **_angles(g, inputs.order, (theta, theta), False)})

    return edit


def _base(g: Grid) -> float:
    return 100.0 if g.keys.projector == "gemma4v" else 10000.0


def _over_d(g: Grid) -> Array:
    """base^(−2i/d), i < d/4; Pixtral, whose exponents are over d: base^(−2i/(d/2))."""
    d = g.keys.head_dim
    return frequencies(_base(g), d // 2) if g.keys.projector == "pixtral" else frequencies(_base(g), d)[: d // 4]


def _other_base(g: Grid) -> Array:
    return frequencies(10000.0 if _base(g) == 100.0 else 100.0, g.keys.head_dim // 2)


plant_picture("vis-rope-xy", "rows and columns exchanged", given=_rope_xy)
plant_picture("vis-rope-frequency", "the exponent over the other width", given=_rope_theta(_over_d))
plant_picture("vis-rope-frequency", "base 10000 for 100, or back", given=_rope_theta(_other_base))


def _pairs(tower: Tower, node: Node) -> Change | None:
    if node.op != "rope_given":
        return None
    return Change(node.with_attrs(mode="neox" if node.attr("mode") == "norm" else "norm"))


plant_picture("vis-rope-pairs", "neighbours for halves, or back", node=_pairs)


# -- layers ----------------------------------------------------------------------------------------------------


def _other_depth(tower: Tower) -> Graph | None:
    """One layer fewer; of `mlp`, which leaves its last layer out, one more."""
    more = 1 if tower.keys.projector == "mlp" else -1
    keys = replace(tower.keys, n_layer=tower.keys.n_layer + more)
    if keys.n_layer < 1:
        return None
    graph = BUILDERS[keys.projector](TowerBuilder(keys, tower.file))
    missing = [w for node in graph for w in node.weights if w not in tower.file.tensors]
    return (
        None
        if missing or any(i.startswith("layer_out-") and i not in graph for n in graph for i in n.inputs)
        else graph
    )


plant_picture("vis-last-layer", "one layer fewer; of mlp, one more", graph=_other_depth)


# -- windows ---------------------------------------------------------------------------------------------------


def _window(size: int) -> NodeEdit:
    def edit(tower: Tower, node: Node) -> Change | None:
        if tower.keys.projector != QWEN25 or node.op != "attn_softmax" or node.attr("window") == size:
            return None
        return Change(node.with_attrs(window=size))

    return edit


plant_picture("vis-window-none", "every layer sees the whole picture", node=_window(0))
plant_picture("vis-window-all", "windows in every layer", node=_window(2))


def _window_side(factor: float) -> Callable[[Grid, PictureInputs], PictureInputs | None]:
    def edit(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
        if g.keys.projector != QWEN25:
            return None
        side = max(1, int(WINDOW // g.keys.patch // 2 * factor))
        return in_windows(g, side)

    return edit


def _order_kept(g: Grid, inputs: PictureInputs) -> PictureInputs | None:
    if "inp_raster" not in inputs.values:
        return None
    return replace(inputs, values={**inputs.values, "inp_raster": np.arange(len(inputs.values["inp_raster"]))[:, None]})


plant_picture("vis-window-size", "windows of twice the side: counted in patches", given=_window_side(2))
plant_picture("vis-window-size", "windows of half the side", given=_window_side(0.5))
plant_picture("vis-window-order", "tokens stay in the order of windows", given=_order_kept)
