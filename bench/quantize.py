"""Quantisation beside llama.cpp's, with one importance matrix: divergence of both from the original, on another text.

    python bench/quantize.py MODEL-f16.gguf                        # Q2_K, Q3_K_M, Q4_K_M and IQ4_XS
    python bench/quantize.py MODEL-f16.gguf --mixes IQ3_S IQ2_XS --windows 32

Needs llama-cpp-python. The texts are Python's own help topics: the first half to calibrate, the second to measure. Both
files are measured by the same engine, so that nothing but the weights differs.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from assay.evaluate.evaluation import Evaluation
from assay.evaluate.imatrix import collect
from assay.evaluate.pieces import Piece, cut
from assay.evaluate.score import score
from assay.evaluate.sources import EngineSource, Rows
from assay.gguf import open_file
from assay.gguf.importance import Importance
from assay.gguf.mixes import Mix, mix_by_name
from assay.gguf.quantize import quantize
from assay.runtime.opening import Opened, Options


def texts() -> tuple[str, str]:
    """Two texts that every Python has."""
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics[name] for name in sorted(topics))
    whole = re.sub(r"[ \t]+", " ", re.sub(r"\*{2,}|={3,}|-{3,}", "", whole))
    return whole[: len(whole) // 2], whole[len(whole) // 2 :]


class Entry(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


def by_llamacpp(source: Path, out: Path, file_type: int, importance: Importance) -> None:
    """llama.cpp's own quantiser on the same importance."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    values = {name: np.ascontiguousarray(entry.means.reshape(-1)) for name, entry in importance.entries.items()}
    entries = (Entry * (len(values) + 1))()
    for entry, (name, array) in zip(entries, values.items(), strict=False):
        entry.name, entry.data, entry.size = name.encode(), array.ctypes.data, array.size
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = file_type, True
    params.imatrix = ctypes.cast(entries, type(params.imatrix))
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) == 0


class Remembered:
    """The base: its predictions for a piece are asked for once for each file."""

    def __init__(self, source: EngineSource) -> None:
        self.source, self.name, self.last = source, source.name, (-1, np.empty(0, np.float32))

    def rows(self, piece: Piece) -> Rows:
        if self.last[0] != piece.index:
            self.last = piece.index, self.source.rows(piece)
        return self.last[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--mixes", nargs="+", default=["Q2_K", "Q3_K_M", "Q4_K_M", "IQ4_XS"])
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--calibrate", type=int, default=24)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(args.model, [mix_by_name(name) for name in args.mixes], args.calibrate, args.windows, Path(folder))


def compare(model: Path, mixes: list[Mix], calibrate: int, windows: int, folder: Path) -> None:
    options = Options(precision="exact", ctx_size=512, cache_size=0)
    opened = Opened(open_file(model), options)
    base, tokenizer = EngineSource(opened.engine()), opened.tokenizer
    bos = tokenizer.bos if tokenizer.add_bos else None
    first, second = (tokenizer.encode(text, parse_special=False) for text in texts())
    started = time.perf_counter()
    importance = collect(base.engine, cut(first, 512, bos, calibrate))
    print(f"importance: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    sources = {}
    for mix in mixes:
        ours, theirs = folder / f"assay-{mix.name}.gguf", folder / f"llama-{mix.name}.gguf"
        started = time.perf_counter()
        quantize(opened.file, ours, mix, importance=importance, allow_requantize=True)
        middle = time.perf_counter()
        by_llamacpp(model, theirs, mix.file_type, importance)
        print(f"{mix.name}: {middle - started:.0f} s, llama.cpp {time.perf_counter() - middle:.0f} s", file=sys.stderr)
        for path in (ours, theirs):
            sources[path] = EngineSource(Opened(open_file(path), options).engine())
    found = {path: [] for path in sources}
    remembered = Remembered(base)
    for piece in cut(second, 512, bos, windows):
        for path, source in sources.items():
            found[path].append(score(piece, source, remembered))
    print("| mix | MB | mean KL | llama.cpp | MB | ratio | same best token | llama.cpp |\n" + "|---" * 8 + "|")
    for mix in mixes:
        ours, theirs = folder / f"assay-{mix.name}.gguf", folder / f"llama-{mix.name}.gguf"
        a, b = (Evaluation(found[path], name=path.name, base=base.name) for path in (ours, theirs))
        sizes = [path.stat().st_size / 1e6 for path in (ours, theirs)]
        print(
            f"| {mix.name} | {sizes[0]:.1f} | {a.kl} | {b.kl} | {sizes[1]:.1f} | {a.kl.value / b.kl.value:.3f} "
            f"| {a.same_best.value:.2%} | {b.same_best.value:.2%} |"
        )


if __name__ == "__main__":
    main()
