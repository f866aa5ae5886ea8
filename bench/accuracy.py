"""How far the fast mode is from the definition: per operation and quantisation type, and for a whole model.

    python bench/accuracy.py --ops
    python bench/accuracy.py MODEL --text wiki.txt --tokens 2000 --peer-python ~/lcpp/bin/python

The first prints the error of one matrix product for every type. The second runs a model over a text with the float64
reference, the cpu engine, and llama.cpp (through llama-cpp-python of the given interpreter, its default settings).
It prints the mean KL divergence of the next-token distribution from the reference for each engine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk, pages_for
from assay.engines.cpu import CpuEngine
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.gguf.codecs import encode
from assay.gguf.types import TYPES, by_name
from assay.gguf.writer import Tensor, write
from assay.graph import Graph, Node
from assay.models import Model, load
from assay.models.catalogue import ARCHITECTURES, example
from assay.text import Tokenizer

WINDOW = 500  # tokens that see each other

PEER = """
import sys, numpy as np, llama_cpp
model, folder, count = sys.argv[1:]
llm = llama_cpp.Llama(model, n_ctx=1024, n_threads=2, n_threads_batch=2, logits_all=True, verbose=False)
for i in range(int(count)):
    ids = np.load(f"{folder}/ids{i}.npy").tolist()
    llm.reset()
    llm.eval(ids)
    np.save(f"{folder}/logits{i}.npy", np.array(llm.scores[: len(ids)], np.float32))
"""

Array = NDArray[Any]


def product_nmse(type_name: str, folder: Path, *, n: int = 256, k: int = 2048, tokens: int = 64) -> float:
    """Σ (y - y*)² / Σ y*² of one product in fast mode: normal weights, normal activations with a few large ones."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    x[:, rng.integers(0, k, 8)] *= 10
    w = 0.02 * rng.standard_normal((n, k)).astype(np.float32)
    kind, f32, path = by_name(type_name), by_name("F32"), folder / f"{type_name}.gguf"
    write(path, {"general.architecture": "none"},
          [Tensor("x", x.shape, f32, x), Tensor("w", w.shape, kind, encode(kind, w).reshape(n, -1))])  # fmt: skip
    nodes = (Node("embd", "embed", ("inp_tokens",), ("x",)), Node("result_output", "linear", ("embd",), ("w",)))
    graph = Graph(nodes, {"x": x.shape, "w": w.shape}).check()
    model = Model(open_file(path), replace(example(ARCHITECTURES["llama"])[0], n_vocab=tokens), graph)
    step = [Chunk(np.arange(tokens, dtype=np.int32), 0, np.arange(pages_for(tokens), dtype=np.int32), "all")]
    expected = ReferenceEngine(model).forward(step)[0].logits
    found = CpuEngine(model).forward(step)[0].logits
    return float(np.sum((found - expected) ** 2) / np.sum(expected**2))


def ops_table() -> dict[str, float]:
    """The error of a product for each type that can be encoded."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in TYPES.values():
            try:
                encode(kind, np.zeros((1, 256), np.float32))
            except AssayError:
                continue
            if kind.name[0] != "I" or kind.name.startswith("IQ"):  # not the integer types
                found[kind.name] = product_nmse(kind.name, Path(folder))
    return found


def log_softmax(x: Array) -> Array:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def divergence(expected: Array, found: Array) -> Array:
    """KL(expected || found) of each row."""
    p, q = log_softmax(expected), log_softmax(found)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def model_kl(path: str, text: Path, count: int, peer: str | None) -> dict[str, dict[str, float]]:
    file = open_file(path)
    model = load(file)
    tokenizer = Tokenizer.from_gguf(file)
    ids = np.array(tokenizer.encode(text.read_text()[: 8 * count], add_special=False)[:count], np.int32)
    windows = [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]
    values: dict[str, list[Array]] = {"assay fast": [], "assay exact": []}
    agree: dict[str, list[Array]] = {}
    with tempfile.TemporaryDirectory() as folder:
        if peer:
            for i, window in enumerate(windows):
                np.save(f"{folder}/ids{i}.npy", window)
            subprocess.run([peer, "-c", PEER, path, folder, str(len(windows))], check=True)
            values["llama.cpp"] = []
        n_pages = pages_for(WINDOW)
        pages = np.arange(n_pages, dtype=np.int32)
        engines = {
            "assay fast": CpuEngine(model, n_pages=n_pages),
            "assay exact": CpuEngine(model, n_pages=n_pages, precision="exact"),
        }
        for i, window in enumerate(windows):
            step = [Chunk(window, 0, pages, "all")]
            expected = ReferenceEngine(model, n_pages=n_pages).forward(step)[0].logits
            for name, found in values.items():
                logits = (
                    engines[name].forward(step)[0].logits if name in engines else np.load(f"{folder}/logits{i}.npy")
                )
                found.append(divergence(expected, logits))
                agree.setdefault(name, []).append(expected.argmax(-1) == logits.argmax(-1))
            print(f"window {i + 1} of {len(windows)}", file=sys.stderr)
    return {
        name: {
            "mean_kl": float(np.mean(np.concatenate(found))),
            "p99_kl": float(np.quantile(np.concatenate(found), 0.99)),
            "same_top": float(np.mean(np.concatenate(agree[name]))),
            "tokens": len(ids),
        }
        for name, found in values.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--ops", action="store_true", help="the error of one product for every type")
    parser.add_argument("--text", type=Path, help="a text file")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--peer-python", help="an interpreter with llama-cpp-python")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    if args.ops:
        result["ops"] = ops_table()
        if not args.json:
            print("| type | NMSE |\n|---|---|")
            print("\n".join(f"| {name} | {value:.1e} |" for name, value in result["ops"].items()))
    if args.model:
        if args.text is None:
            parser.error("a model needs --text")
        result["kl"] = model_kl(args.model, args.text, args.tokens, args.peer_python)
        if not args.json:
            print("| engine | mean KL | 99th percentile | same top token |\n|---|---|---|---|")
            for name, row in result["kl"].items():
                print(f"| {name} | {row['mean_kl']:.3e} | {row['p99_kl']:.3e} | {row['same_top']:.2%} |")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
