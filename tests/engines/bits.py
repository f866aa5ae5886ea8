"""The recorded bits: tiny models of every block type and feature, and a hash of the logits of each.

    python -m tests.engines.bits        records them anew (tests/data/bits.json): for a new number of the arithmetic

Weights are drawn as integers and as the bytes of blocks, so that no library's rounding takes part in the files: they
are the same on every machine, and so are the logits (docs/reference/arithmetic.md).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from assay import _native
from assay.engines.contract import PAGE, Chunk
from assay.engines.cpu import KV_TYPES, CpuEngine
from assay.gguf import open_file
from assay.gguf.codecs import decode
from assay.gguf.types import GGMLType, by_name
from assay.gguf.writer import Tensor, write
from assay.graph import Graph, Node
from assay.models import Model, load
from assay.models.catalogue import ARCHITECTURES, VARIANTS, metadata, tensor_shapes
from tests import tiny
from tests.models import others

RECORDED = Path(__file__).parents[1] / "data" / "bits.json"
IDS = np.random.default_rng(3).integers(3, 300, 600).astype(np.int32)

# Where a block keeps its f16 scales.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q8_1": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,),
    "TQ2_0": (64,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,),
    "Q1_0": (0,), "Q2_0": (0,),
}  # fmt: skip
TYPES = (*SCALES, "IQ1_M", "MXFP4", "NVFP4", "Q8_K", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Case:
    """A model (a tiny llama, or the catalogue's example of `arch`, of whose options are type, metadata and sizes), the
    engine's options, the graph's change, and how many tokens are run."""

    options: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Node], Any] | None = None
    tokens: int = 40
    positions: tuple[int, ...] = ()
    arch: str = ""


def _act(act: str) -> Callable[[Node], Any]:
    return lambda node: node.with_attrs(act=act) if node.op == "glu" else None


def _neox(node: Node) -> Any:
    return node.with_attrs(mode="neox") if node.op == "rope" else None


def _softcap(node: Node) -> Any:
    """Capped scores, and capped logits."""
    if node.op == "kq":
        return [node, Node(f"capped-{node.name[3:]}", "softcap", (node.name,), (), {"cap": 3.0})]
    if node.op == "attn_softmax":
        return Node(node.name, node.op, (f"capped-{node.name[12:]}", *node.inputs[1:]), (), node.attrs)
    if node.name == "result_output":
        raw = Node("raw_output", node.op, node.inputs, node.weights, node.attrs)
        return [raw, Node("result_output", "softcap", ("raw_output",), (), {"cap": 7.0})]
    return None


def _loose(node: Node) -> Any:
    """Another node reads the scores, so attention is not fused: one operation at a time."""
    if node.op == "kq":
        return [node, Node(f"doubled-{node.name[3:]}", "scale", (node.name,), (), {"factor": 2.0})]
    if node.op == "attn_softmax":
        return Node(node.name, node.op, (f"doubled-{node.name[12:]}", *node.inputs[1:]), (), node.attrs)
    return None


WIDE = {"n_embd": 256, "n_ff": 768}
HEADS = {"n_embd": 128, "n_head": 4, "n_head_kv": 2}  # of 32 values: any cache
LONG = ("gpt-oss", "mpt", "deepseek2", "gemma3", "nomic-bert")
CASES = {
    **{f"{t} fast": Case({"type": t, **WIDE}, tokens=18) for t in TYPES},
    **{f"{t} exact": Case({"type": t, **WIDE}, {"precision": "exact"}, tokens=10) for t in TYPES},
    "long rows": Case({"type": "Q4_K", "n_embd": 256, "n_ff": 2304}, tokens=12),
    "ragged rows": Case({"type": "Q8_0", "n_embd": 288, "n_ff": 352, "n_head": 6, "n_head_kv": 3}, tokens=12),
    "untied, biased, factors": Case({"type": "Q8_0", "tied": False, "bias": True, "rope_freqs": True}),
    "experts": Case({"type": "Q8_0", "n_expert": 40, "n_expert_used": 4}),
    "experts exact": Case({"type": "Q5_0", "n_expert": 4}, {"precision": "exact"}),
    "window": Case({"type": "Q8_0", "window": 11}),
    "window over blocks": Case({"type": "Q8_0", "window": 270}, tokens=560),
    "one group": Case({"type": "Q8_0", "n_head": 4, "n_head_kv": 1, "n_embd": 128}),
    "odd heads": Case({"type": "Q8_0", "n_head": 6, "n_head_kv": 2, "n_embd": 96, "n_ff": 160}),
    "wide heads": Case({"type": "Q8_0", "n_head": 2, "n_head_kv": 1, "n_embd": 256}, tokens=280),
    "linear scaling": Case({"type": "F16", "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "yarn": Case({"type": "Q8_0", "rope_scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 64}}),
    "base": Case({"type": "Q8_0", "metadata": {"llama.rope.freq_base": 500000.0}}),
    "neox": Case({"type": "Q8_0"}, change=_neox),
    "gelu_tanh": Case({"type": "Q8_0"}, change=_act("gelu_tanh")),
    "gelu_erf": Case({"type": "Q8_0"}, change=_act("gelu_erf")),
    "relu": Case({"type": "Q8_0"}, change=_act("relu")),
    "softcap": Case({"type": "Q8_0"}, change=_softcap, tokens=300),
    "one operation at a time": Case({"type": "Q8_0"}, change=_loose),
    "far positions": Case({"type": "Q8_0"}, tokens=6, positions=(0, 1, 70000, 3000000, 3000001, 2**31 - 1)),
    **{f"cache {kv}": Case({"type": "Q8_0", **HEADS}, {"kv_type": kv}, tokens=300) for kv in KV_TYPES},
    **{f"cache {kv} exact": Case({"type": "F32", **HEADS}, {"kv_type": kv, "precision": "exact"}) for kv in KV_TYPES},
    # What an architecture has of its own: norms, gates, masks, sinks, slopes, routing, heads. Long where blocks of keys
    # are merged.
    **{f"arch {name}": Case(arch=name, tokens=300 if name in LONG else 40) for name in (*ARCHITECTURES, *VARIANTS)
       if others.on_cpu(name)},
}  # fmt: skip


def _uniform(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.integers(-(2**20), 2**20, shape).astype(np.float32) / np.float32(2**20)


def blocks(kind: GGMLType, n: int, size: float, rng: np.random.Generator) -> np.ndarray:
    """`n` blocks of random codes, weights of about `size`: [n, type_size] bytes."""
    raw = rng.integers(0, 256, (n, kind.type_size), np.uint8)

    def scaled(power: int) -> np.ndarray:
        halves = ((1024 * (15 + power) + rng.integers(0, 1024, n)) | rng.integers(0, 2, n) << 15).astype("<u2")
        for at in SCALES.get(kind.name, ()):
            raw[:, at : at + 2] = np.roll(halves, at)[:, None].view(np.uint8)
        if kind.name == "IQ1_M":
            for i in range(4):
                raw[:, 49 + 2 * i] = raw[:, 49 + 2 * i] & 15 | (halves >> (4 * i) & 15).astype(np.uint8) << 4
        if kind.name == "MXFP4":
            raw[:, 0] = 128 + power - rng.integers(0, 2, n)
        if kind.name == "NVFP4":
            raw[:, :4] = np.clip(60 + 8 * power + rng.integers(0, 8, (n, 4)), 1, 126)
        if kind.name == "Q8_K":
            raw[:, :4] = (2.0**power * (1 + rng.integers(0, 7, n) / 8)).astype("<f4")[:, None].view(np.uint8)
        return raw

    seen = decode(kind, scaled(0)).astype(np.float64)
    return scaled(round(math.log2(size / math.sqrt(float(np.mean(seen**2))))))


def tensor(name: str, shape: tuple[int, ...], type_name: str, rng: np.random.Generator) -> Tensor:
    """As tests/tiny.py has them, without a rounding of any library."""
    kind = by_name(type_name if len(shape) > 1 else "F32")
    if name.startswith("rope_f"):
        return Tensor(name, shape, kind, np.linspace(1, 8, shape[0]).astype(np.float32))
    if name.endswith("ssm_a"):  # the logarithm of a decay
        return Tensor(name, shape, kind, -np.abs(_uniform(shape, rng)))
    if "norm" in name:
        return Tensor(name, shape, kind, 1 + np.float32(0.25) * _uniform(shape, rng))
    size = 1.0 if "embd" in name else 0.3 if name.endswith("bias") else 1.7 / math.sqrt(shape[-1])
    if kind.block_size > 1:
        raw = blocks(kind, math.prod(shape) // kind.block_size, size, rng)
        return Tensor(name, shape, kind, raw.reshape(*shape[:-1], -1))
    x = _uniform(shape, rng) * np.float32(size * 1.7)
    if kind.name == "F16":
        return Tensor(name, shape, kind, x.astype("<f2").view(np.uint8))
    if kind.name == "BF16":
        return Tensor(name, shape, kind, (x.view(np.uint32) >> 16).astype("<u2").view(np.uint8))
    return Tensor(name, shape, kind, x)


def make(case: Case, path: Path) -> Model:
    """Write the model's file and load it."""
    if not case.arch:
        return load(open_file(tiny.make(path, **{"n_ctx": 1024, **case.options, "tensor": tensor})))
    row = ARCHITECTURES.get(case.arch) or VARIANTS[case.arch]
    options = {"type": "Q8_0", "metadata": {}, **case.options}
    type_name, more = options.pop("type"), options.pop("metadata")
    row = replace(row, sizes=replace(row.sizes, **options))
    rng = np.random.default_rng(1)

    def kind(name: str, shape: tuple[int, ...]) -> str:
        plain = "norm" in name or not name.endswith(".weight") or shape[-1] % 32
        return "F32" if plain else type_name

    tensors = [tensor(name, shape, kind(name, shape), rng) for name, shape in tensor_shapes(row).items()]
    write(
        path,
        {**metadata(row), **more, "tokenizer.ggml.model": "no_vocab", "tokenizer.ggml.token_type_count": 2},
        tensors,
    )
    return load(open_file(path))


def graph_of(case: Case, model: Model) -> Graph:
    return model.graph.rewrite(case.change).check() if case.change else model.graph


def logits(case: Case, model: Model, *, piece: int = 0, keep: tuple[str, ...] = (), **engine: Any) -> np.ndarray:
    """All logits of the case's tokens, given `piece` at a time (0: all at once)."""
    run = CpuEngine(model, graph=graph_of(case, model), n_pages=32, **{**case.engine, **engine})
    ids, table = IDS[: case.tokens] % model.hparams.n_vocab, np.arange(-(-case.tokens // PAGE), dtype=np.int32)
    positions = np.array(case.positions or range(case.tokens), np.int32)
    size = piece or case.tokens
    rows = [
        run.forward([Chunk(ids[at : at + size], at, table, "all", positions[at : at + size])], keep)[0].logits
        for at in range(0, case.tokens, size)
    ]
    run.close()
    return np.concatenate(rows)


def digest(x: np.ndarray | bytes) -> str:
    data = x if isinstance(x, bytes) else np.ascontiguousarray(x, "<f4").tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def record(wanted: list[str]) -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted or CASES:
            path = Path(folder) / "model.gguf"
            model = make(CASES[name], path)
            values = logits(CASES[name], model, threads=1)
            if not np.isfinite(values).all():
                raise SystemExit(f"{name}: logits that are not finite")
            found[name] = {"file": digest(path.read_bytes()), "logits": digest(values)}
            model.file.close()
    return {"arithmetic": _native.ARITHMETIC, "cases": found}


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(sys.argv[1:]), indent=0) + "\n")
    print(f"wrote {RECORDED}", file=sys.stderr)
