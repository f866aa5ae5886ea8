"""How long a file with a large vocabulary takes to open, against gguf-py and against a plain loop.

    python bench/open_file.py [MODEL.gguf]

Without a file, one with 150,000 tokens and 150,000 merges is made. The target is an open well under 100 ms,
without reading the vocabulary.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from assay.gguf import open_file, write
from assay.gguf.cursor import Cursor


def best(action: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def make(path: Path, n_vocab: int = 150_000) -> Path:
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, n))) for n in rng.integers(1, 12, n_vocab)]
    write(
        path,
        {
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.scores": np.zeros(n_vocab, np.float32),
            "tokenizer.ggml.token_type": np.ones(n_vocab, np.int32),
            "tokenizer.ggml.merges": [f"{w[:1]} {w[1:]}" for w in words],
        },
    )
    return path


def plain_loop(path: Path) -> None:
    """Open as before, but walk the strings one by one."""
    walk = Cursor._walk_strings
    Cursor._walk_strings = lambda self, count, what, found=None: self._step_strings(count, what, found)  # type: ignore[method-assign,assignment,return-value,misc]
    try:
        open_file(path)
    finally:
        Cursor._walk_strings = walk  # type: ignore[method-assign]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else make(Path(folder) / "vocabulary.gguf")
        ours = best(lambda: open_file(path), 7)
        print(f"assay      {ours * 1e3:9.1f} ms")
        for name, action, repeats in (
            ("plain loop", lambda: plain_loop(path), 5),
            ("gguf-py", lambda: gguf.GGUFReader(path), 1),
        ):
            theirs = best(action, repeats)
            print(f"{name:<10} {theirs * 1e3:9.1f} ms, {theirs / ours:.0f} times as long")


if __name__ == "__main__":
    main()
