"""Layers that keep a state of a fixed size: convolutions, Mamba and the delta rule.

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


def scan(build: ProgramBuilder, node: Node) -> None:
    inputs, out = [build.get(name, "tokens") for name in node.inputs], build.new(node)
    names = ("x", "dt", "B", "C") if node.op == "ssm_scan" else ("q", "k", "v", "g", "beta")
    heads, channels = int(node.attr("n_head")), int(node.attr("state")[-1])
    views = dict(zip(names, inputs, strict=True))
    numbers = {
        "heads": heads, "width": out.width // heads, "channels": channels, "out_stride": out.stride,
        "chains": min(64, 1 << (channels - 1).bit_length()), **_state(build, node),
        **{key: value for name, view in views.items() for key, value in view.numbers(name).items()},
    }  # fmt: skip
    buffers = {name: view.buffer for name, view in views.items()}
    if node.op == "ssm_scan":
        numbers["group_heads"] = heads // int(node.attr("n_group"))
        numbers["a_each"] = int(np.prod(build.graph.weights[node.weights[0]])) // heads
        buffers["w"] = build.weights.vector(node.weights[0])
    else:
        numbers |= {"key_heads": int(node.attr("n_head_k")), "g_each": views["g"].width // heads}
        numbers["scale"] = bits(node.attr("scale"))
    groups: tuple[Count, Count, Count] = (-(-out.width // 64), "P", 1)
    build.emit(node.op, groups, numbers, step="step", states="states", out=out.buffer, **buffers)
