"""The wgpu engine on this machine's adapter: decode and a prompt beside the cpu engine, and whether the bits are equal.

    python bench/webgpu.py model.gguf                     decode 32 tokens, a prompt of 64
    python bench/webgpu.py model.gguf --tier 1            with another arithmetic tier

Figures are tokens a second. `forward` is a call for every token, logits on the host. Random weights
(bench/make_model.py) suffice, because speed does not depend on the values.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from assay import engines
from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.gguf import open_file
from assay.models import Model, load


def step(engine: PagedEngine, ids: np.ndarray, start: int) -> np.ndarray:
    """The logits after these tokens."""
    pages = np.arange(pages_for(start + len(ids)), dtype=np.int32)
    return np.asarray(engine.forward([Chunk(ids, start, pages)])[0].logits)


def run(engine: PagedEngine, model: Model, tokens: int, prompt: int) -> tuple[float, float, list[bytes]]:
    """Tokens a second of the prompt and of decoding, and the bits of the logits of every step."""
    rng = np.random.default_rng(7)
    ids = rng.integers(3, model.hparams.n_vocab, prompt + tokens).astype(np.int32)
    step(engine, ids[:prompt], 0)  # compiles and packs
    step(engine, ids[prompt : prompt + 1], prompt)
    began = time.perf_counter()
    found = [step(engine, ids[:prompt], 0).tobytes()]
    read = time.perf_counter()
    found += [step(engine, ids[i : i + 1], i).tobytes() for i in range(prompt, prompt + tokens)]
    ended = time.perf_counter()
    return prompt / (read - began), tokens / (ended - read), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=32, help="decoded; default 32")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt; default 64")
    parser.add_argument("--tier", type=int, choices=(0, 1, 2), help="of the arithmetic; default: the adapter's best")
    args = parser.parse_args()
    model = load(open_file(args.model))
    bits = {}
    for name, options in (("cpu", {}), ("wgpu", {} if args.tier is None else {"tier": args.tier})):
        began = time.perf_counter()
        engine = engines.create(name, model, n_pages=pages_for(args.prompt + args.tokens), **options)
        loaded = time.perf_counter() - began
        prompt, decode, bits[name] = run(engine, model, args.tokens, args.prompt)
        print(f"{args.model.name}, {name}: made in {loaded:.1f} s, prompt {prompt:,.0f}, decode {decode:,.1f} tok/s")
        print(getattr(engine, "verdict", ""), flush=True)
        engine.close()
    same = [a == b for a, b in zip(bits["cpu"], bits["wgpu"], strict=True)]
    print(f"logits equal to the cpu's: {sum(same)} of {len(same)} steps")


if __name__ == "__main__":
    main()
