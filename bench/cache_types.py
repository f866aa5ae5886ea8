"""The cost of coarser keys and values: divergence and perplexity with a cache of each type, in float32 otherwise.

    python bench/cache_types.py smollm2 docs/explanation/design.md --tokens 1024

Every key and value is rounded as the cache would keep it; all else is float32. The base keeps float32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, pages_for
from assay.engines.reference import Hooks, ReferenceEngine
from assay.gguf.codecs import decode, encode
from assay.gguf.types import by_name
from assay.graph import Node
from assay.runtime.opening import OpenOptions, open_model

Array = NDArray[np.floating]
CASES = [("F16", "F16"), ("Q8_0", "Q8_0"), ("Q5_0", "Q5_0"), ("Q8_0", "Q4_0"), ("Q4_0", "Q8_0"), ("Q4_0", "Q4_0")]


def rounded(kind: str, rows: Array) -> Array:
    flat = rows.reshape(len(rows), -1).astype(np.float32)
    if kind == "F16":
        return flat.astype(np.float16).reshape(rows.shape).astype(rows.dtype)
    return decode(by_name(kind), encode(by_name(kind), flat)).reshape(rows.shape).astype(rows.dtype)


def hooks(keys: str, values: str) -> Hooks:
    kinds = {"kq": keys, "kqv": values}

    def operand(node: Node, index: int, x: Array) -> Array:
        return rounded(kinds[node.op], x) if node.op in kinds and index == 1 else x

    return Hooks(operand=operand)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=1024)
    args = parser.parse_args()
    opened = open_model(args.model, OpenOptions(engine="reference"))
    ids = np.array(opened.tokenizer.encode(args.text.read_text())[: args.tokens], np.int32)
    pages = np.arange(pages_for(len(ids)), dtype=np.int32)
    weights = None

    def run(hooks: Hooks | None) -> Array:
        """Log-probabilities after each token."""
        nonlocal weights
        engine = ReferenceEngine(opened.model, n_pages=len(pages), weights=weights, hooks=hooks)
        weights = engine.weights
        x = engine.forward([Chunk(ids, 0, pages, "all")])[0].logits.astype(np.float64)
        x -= x.max(axis=-1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    def perplexity(p: Array) -> float:
        return float(np.exp(-p[np.arange(len(ids) - 1), ids[1:]].mean()))

    base = run(None)
    h = opened.model.hparams
    values = h.n_layer * h.n_head_kv * (h.n_embd_head + h.n_embd_head_v)
    print(f"{args.model}, {len(ids)} tokens of {args.text}; {values} values a token; float32: {perplexity(base):.3f}")
    print("| keys | values | KB a token | divergence, mean | 99 % below | best token the same | perplexity |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for keys, kept in CASES:
        found = run(hooks(keys, kept))
        kl = (np.exp(base) * (base - found)).sum(axis=-1)
        same = (base.argmax(axis=-1) == found.argmax(axis=-1)).mean()
        size = sum(by_name(kind).type_size / by_name(kind).block_size for kind in (keys, kept)) / 2 * values / 1e3
        print(f"| {keys} | {kept} | {size:.1f} | {kl.mean():.2e} | {np.quantile(kl, 0.99):.2e} | {same:.4f} | "
              f"{perplexity(found):.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
