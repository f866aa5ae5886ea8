"""Layers that keep a state of a fixed size: convolutions, Mamba, the delta rule and RWKV.

Touch this module when such a layer gets a kernel.
"""

from __future__ import annotations

import numpy as np

from assay.engines.plan.state_layout import slot_offsets
from assay.engines.wgpu.dispatches import Count
from assay.engines.wgpu.program_builder import ProgramBuilder, bits
from assay.errors import AssayError
from assay.graph import Node

MAX_TAPS = 16  # of a convolution
# The buffers of each recurrence's operands, and of its weight.
OPERANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "ssm_scan": (("x", "dt", "B", "C"), "w"),
    "delta_rule": (("q", "k", "v", "g", "beta"), ""),
    "wkv6": (("r", "w", "k", "v"), "u"),
    "wkv7": (("r", "w", "k", "v", "kk", "a"), ""),
}


def _state(build: ProgramBuilder, node: Node) -> dict[str, int]:
    """Where the state of a node lies in a state slot."""
    places, size = slot_offsets(build.graph)
    return {"state_at": places[node.name], "state_size": size}


def convolution(build: ProgramBuilder, node: Node) -> None:
    x, out = build.get(node.inputs[0], "tokens"), build.new(node)
    taps = int(build.graph.weights[node.weights[0]][-1])
    if taps > MAX_TAPS:
        raise AssayError(
            f"node {node.name}: the wgpu engine convolves at most {MAX_TAPS} taps (found {taps}); use --engine cpu"
        )
    numbers = {"channels": x.width, "taps": taps, **x.numbers("x"), "out_stride": out.stride, **_state(build, node)}
    build.emit(
        "causal_conv", (-(-x.width // 64), "P", 1), numbers, step="step", x=x.buffer,
        w=build.weights.vector(node.weights[0]), states="states", out=out.buffer,
    )  # fmt: skip


def shift(build: ProgramBuilder, node: Node) -> None:
    x, out = build.get(node.inputs[0], "tokens"), build.new(node)
    numbers = {"channels": x.width, **x.numbers("x"), "out_stride": out.stride, **_state(build, node)}
    groups: tuple[Count, Count, Count] = (-(-x.width // 64), "P", 1)
    build.emit("shift", groups, numbers, step="step", x=x.buffer, states="states", out=out.buffer)


def head_bonus(build: ProgramBuilder, node: Node) -> None:
    views = {name: build.input(node, i) for i, name in enumerate(("x", "r", "k", "v"))}
    out, heads = build.new(node), int(node.attr("n_head"))
    width = out.width // heads
    numbers = {
        "heads": heads, "width": width, "chains": chains(width), "out_stride": out.stride,
        **{key: value for name, view in views.items() for key, value in view.numbers(name).items()},
    }  # fmt: skip
    groups: tuple[Count, Count, Count] = (-(-heads // 64), build.rows_of(build.domains[node.name]), 1)
    buffers = {name: view.buffer for name, view in views.items()}
    build.emit("head_bonus", groups, numbers, w=build.weights.vector(node.weights[0]), out=out.buffer, **buffers)


def chains(channels: int) -> int:
    """Chains of a sum of so many products: adding those that stay at +0 would change nothing."""
    return min(64, 1 << (channels - 1).bit_length())


def scan(build: ProgramBuilder, node: Node) -> None:
    inputs, out = [build.get(name, "tokens") for name in node.inputs], build.new(node)
    names, weight = OPERANDS[node.op]
    heads, channels = int(node.attr("n_head")), int(node.attr("state")[-1])
    views = dict(zip(names, inputs, strict=True))
    numbers = {
        "heads": heads, "width": out.width // heads, "channels": channels, "out_stride": out.stride,
        "chains": chains(channels), **_state(build, node),
        **{key: value for name, view in views.items() for key, value in view.numbers(name).items()},
    }  # fmt: skip
    buffers = {name: view.buffer for name, view in views.items()}
    if node.op == "ssm_scan":
        numbers["group_heads"] = heads // int(node.attr("n_group"))
        numbers["a_each"] = int(np.prod(build.graph.weights[node.weights[0]])) // heads
    if node.op == "delta_rule":
        numbers |= {"key_heads": int(node.attr("n_head_k")), "g_each": views["g"].width // heads}
        numbers["scale"] = bits(node.attr("scale"))
    if weight:
        buffers[weight] = build.weights.vector(node.weights[0])
    groups: tuple[Count, Count, Count] = (-(-out.width // 64), "P", 1)
    build.emit(node.op, groups, numbers, step="step", states="states", out=out.buffer, **buffers)
