"""The golden models: tiny files of every architecture with llama.cpp's value at every node.

All of them lie in the reference data; two are copied into tests/data/arch, so that a checkout alone tests something.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine, interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load

HERE = Path(__file__).parents[1] / "data" / "arch"
NAMES = (
    "bert", "cohere2", "command-r", "command-r-plus", "deepseek2", "deepseek2-lite", "exaone4", "exaone4-32b", "falcon",
    "gemma-embedding", "gemma2", "gemma2-27b", "gemma3", "gemma4", "gemma4-moe", "glm4", "glm4moe", "gpt-oss", "gpt2",
    "granite", "granitemoe", "llama4", "mistral3", "mpt", "nomic-bert", "olmo2", "olmo3", "phi3", "phi3-long", "qwen2",
    "qwen2moe", "qwen3", "qwen3moe", "smollm3", "stablelm", "stablelm-12b", "starcoder2",
)  # fmt: skip

# What llama.cpp records inside an operation that is one node here.
INSIDE = {
    "kq_scaled_1", "kq_tanh", "result_output_scaled_1", "result_output_tanh", "ffn_moe_group_scores",
    "ffn_moe_group_topk", "result_output_native",
}  # fmt: skip


def path(name: str) -> Path:
    shared = Path(os.environ.get("ASSAY_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    for folder in (HERE, shared / "data" / "arch", shared / "data" / "recurrent"):
        if (folder / f"{name}.gguf").exists():
            return folder / f"{name}.gguf"
    pytest.skip(f"no golden model {name}; set ASSAY_SHARED to the reference data")


def nmse(found: np.ndarray, golden: np.ndarray) -> float:
    """NMSE against a recorded value; infinite where other elements are masked."""
    finite = np.isfinite(golden)
    if not np.array_equal(np.isfinite(found), finite):
        return float("inf")
    return float(np.sum((found[finite] - golden[finite]) ** 2) / max(np.sum(golden[finite] ** 2), 1e-300))


class Golden:
    """A golden model, and its recorded values in the shapes of its graph."""

    def __init__(self, name: str) -> None:
        file = open_file(path(name))
        recorded = np.load(path(name).with_suffix(".npz"))
        self.model: Model = load(file, int(recorded["n_ctx"]))
        self.weights = Weights(file)
        self.tokens = recorded["tokens"].astype(np.int32)
        self.positions = recorded["positions"].astype(np.int32)
        self.values: dict[str, np.ndarray] = {}
        self.foreign = []
        at = self.positions.astype(np.int64)
        self.inputs = {"inp_tokens": self.tokens.astype(np.int64), "inp_pos": at, "inp_kpos": at}
        graph = self.model.graph
        for node in recorded.files:
            if node in graph:
                shape = [len(at) if isinstance(d, str) else d for d in graph.shapes[node]]
                index = graph[node].op in ("argsort", "topk")
                self.values[node] = recorded[node].astype(np.int64 if index else np.float64).reshape(shape)
            elif node not in ("tokens", "positions", "n_ctx"):
                self.foreign.append(node)

    def on_own_inputs(self, node: str) -> np.ndarray:
        """The definition's value of a node, from llama.cpp's values of its inputs."""
        env = {**self.inputs, **self.values}
        del env[node]
        return interpret(self.model.graph, self.weights, env, {node})[node]

    def result(self) -> float:
        """NMSE of the logits at all positions, or of an encoder's embedding, from the tokens alone."""
        graph = self.model.graph
        last = graph.embedding if graph.embedding == "result_embd_pooled" else graph.output
        chunk = Chunk(self.tokens, 0, np.zeros(1, np.int32), "none", self.positions)
        found = ReferenceEngine(self.model, n_pages=1).forward([chunk], [last])[0]
        return self.error(last, found.nodes[last])

    def error(self, node: str, found: np.ndarray) -> float:
        """NMSE against the recorded value. Masked scores must be masked, and indices must be equal."""
        golden = self.values[node]
        if golden.dtype.kind == "i":
            return float(np.count_nonzero(found != golden))
        return nmse(found, golden)

    def recorded_inputs(self, node: str) -> bool:
        """Whether the node's inputs were recorded or rearrange recorded values. The long models lack some layers."""
        views = ("cache", "slice", "split_heads", "merge_heads")
        graph = self.model.graph
        return all(
            name in self.values or name not in graph or (graph[name].op in views and self.recorded_inputs(name))
            for name in graph[node].inputs
        )


@cache
def golden(name: str) -> Golden:
    return Golden(name)
