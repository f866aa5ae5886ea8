"""The cost of drafted tokens on a model with a state: rows, kept states, and the draft head.

    python bench/taking_back.py                  # a file of Qwen3.5-0.8B's shape with a head, random weights, Q4_K
    python bench/taking_back.py model.gguf       # any file with a state; with a draft head, its cost, too

Every figure is in steps of one token, the median of interleaved runs. `rows`: a step of 1 + n tokens whose states are
not kept, so that none can be taken back. `states`: the same step with the state kept after each token. `again`: the
other way to take tokens back, a second step over the accepted ones from the state before (half of n here). `head`: the
draft head's passes for n tokens. `bound`: speed over none where all n are accepted, (1 + n) / (states + head).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from make_model import Blocks

from assay.engines.contract import Chunk, PagedEngine, pages_for
from assay.engines.cpu import CpuEngine
from assay.gguf import open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models import Model, load
from assay.models.catalogue import VARIANTS, metadata, tensor_shapes
from assay.models.draft_head import HIDDEN

N_VOCAB, PROMPT = 248320, 256


def make(path: Path) -> Path:
    """Qwen3.5-0.8B's shape with a draft head."""
    row = VARIANTS["qwen35 with a draft head"]
    state = {"conv_kernel": 4, "inner_size": 2048, "state_size": 128, "time_step_rank": 16, "group_count": 16}
    keys = {**row.keys, **{f"ssm.{key}": value for key, value in state.items()}, "full_attention_interval": 4}
    keys |= {"rope.dimension_sections": [11, 11, 10, 0]}
    keys.pop("attention.recurrent_layers", None)
    sizes = replace(
        row.sizes, n_layer=25, n_embd=1024, n_head=8, n_head_kv=2, n_embd_head=256, n_embd_head_v=256, n_rot=64,
        n_ff=3584, n_vocab=N_VOCAB, n_ctx=4096,
    )  # fmt: skip
    row, blocks = replace(row, keys=keys, sizes=sizes), Blocks(1)

    def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1 or shape[-1] % 256:
            sign = -1 if name.endswith("ssm_a") else 0.1 if name.endswith(("bias", "conv1d.weight")) else 1
            return Tensor(name, shape, by_name("F32"), np.full(shape, sign, np.float32))
        kind = by_name("Q6_K" if "embd" in name else "Q4_K")
        return Tensor(name, shape, kind, lambda: blocks.tensor(kind, shape))

    keys = {**metadata(row), "tokenizer.ggml.model": "no_vocab"}
    write(path, keys, [tensor(name, shape) for name, shape in tensor_shapes(row).items()])
    return path


class Costs:
    """The parts of a speculating step of one sequence."""

    def __init__(self, model: Model, threads: int | None) -> None:
        pages = pages_for(PROMPT + 64)
        self.engine: PagedEngine = CpuEngine(model, threads=threads, n_pages=pages, state_slots=24)
        self.head = self.engine.beside(model.draft, pages) if model.draft and self.engine.beside else None
        self.pages = np.arange(pages, dtype=np.int32)
        self.ids = np.random.default_rng(1).integers(0, model.hparams.n_vocab, PROMPT + 64).astype(np.int32)
        self.rows = np.zeros((PROMPT + 64, model.hparams.n_embd), np.float32)
        self.engine.forward([Chunk(self.ids[:PROMPT], 0, self.pages)])
        self.engine.copy_state(0, 1)
        if self.head:
            self.head.forward([Chunk(self.ids[:PROMPT], 0, self.pages, rows={HIDDEN: self.rows[:PROMPT]})])

    def step(self, n: int, **options: Any) -> float:
        """Seconds of a step of n tokens after the prompt."""
        self.engine.copy_state(1, 0)
        chunk = Chunk(self.ids[PROMPT : PROMPT + n], PROMPT, self.pages, "all", **options)
        return seconds(lambda: self.engine.forward([chunk], ["result_norm"]))

    def guess(self, n: int) -> float:
        """Seconds of the head's passes for n guessed tokens: the first reads the n that were accepted before."""
        assert self.head
        sizes = [n, *[1] * (n - 1)]

        def run() -> None:
            assert self.head
            for i, size in enumerate(sizes):
                at = slice(PROMPT + i, PROMPT + i + size)
                chunk = Chunk(self.ids[at], PROMPT + i, self.pages, rows={HIDDEN: self.rows[at]})
                int(self.head.forward([chunk], ["result_norm"])[0].logits[-1].argmax())

        return seconds(run)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("-t", "--threads", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = load(open_file(args.model or make(Path(folder) / "hybrid.gguf")))
        costs = Costs(model, args.threads)
        state = model.graph.state.bytes_per_sequence("f32")
        print(f"a state of {state / 1e6:.1f} MB, weights of {model.file.size / 1e6:.0f} MB")
        print("| drafted | rows | states | again | head | bound |\n|---|---|---|---|---|---|")
        for n in (1, 2, 3, 5, 7):
            works: dict[str, Callable[[int], float]] = {
                "one": lambda n: costs.step(1),
                "rows": lambda n: costs.step(1 + n),
                "states": lambda n: costs.step(1 + n, drafted=n),
                "again": lambda n: costs.step(1 + n) + costs.step(1 + n // 2),
                "head": lambda n: costs.guess(n) if costs.head else 0.0,
            }
            found: dict[str, list[float]] = {name: [] for name in works}
            for _ in range(args.turns):
                for name, work in works.items():
                    found[name].append(work(n))
            one = statistics.median(found["one"])
            of = {name: statistics.median(values) / one for name, values in found.items()}
            bound = (1 + n) / (of["states"] + of["head"])
            shown = " | ".join(f"{of[name]:.2f}" for name in ("rows", "states", "again", "head"))
            print(f"| {n} | {shown} | {bound:.2f} |", flush=True)


if __name__ == "__main__":
    main()
