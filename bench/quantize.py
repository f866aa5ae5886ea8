"""Quantisation beside llama.cpp's, with one importance matrix: divergence of both from the original, on another text.

    python bench/quantize.py MODEL-f16.gguf                        # Q2_K, Q3_K_M, Q4_K_M and IQ4_XS
    python bench/quantize.py MODEL-f16.gguf --mixes IQ3_S IQ2_XS --windows 32 --keep /tmp/q

Needs llama-cpp-python. The texts are Python's own help topics: the first half to calibrate, the second to measure. Both
files are measured by the same engine, so that only the weights differ. With `--keep` a stopped run resumes: files and
scores stay in that folder.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from assay.engines.cpu import CpuEngine
from assay.evaluate.evaluation import Evaluation, Mean
from assay.evaluate.importance_sums import collect
from assay.evaluate.pieces import Scores, TextWindow, cut
from assay.evaluate.predictors import EngineSource, Rows
from assay.evaluate.score import score
from assay.gguf import open_file
from assay.gguf.importance import Importance, read, write
from assay.gguf.mixes import mix_by_name
from assay.gguf.requantize import quantize
from assay.runtime.opening import Opened, OpenOptions


def texts() -> tuple[str, str]:
    """Two texts that every Python has."""
    from pydoc_data.topics import topics

    whole = "\n\n".join(topics[name] for name in sorted(topics))
    whole = re.sub(r"[ \t]+", " ", re.sub(r"\*{2,}|={3,}|-{3,}", "", whole))
    return whole[: len(whole) // 2], whole[len(whole) // 2 :]


class Entry(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


def by_assay(work: Work, mix: str, out: Path) -> None:
    quantize(work.opened.file, out, mix_by_name(mix), importance=work.importance, allow_requantize=True)


def by_llamacpp(work: Work, mix: str, out: Path) -> None:
    """llama.cpp's own quantiser on the same importance."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    values = {name: np.ascontiguousarray(entry.means.reshape(-1)) for name, entry in work.importance.entries.items()}
    entries = (Entry * (len(values) + 1))()
    for entry, (name, array) in zip(entries, values.items(), strict=False):
        entry.name, entry.data, entry.size = name.encode(), array.ctypes.data, array.size
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = mix_by_name(mix).file_type, True
    params.imatrix = ctypes.cast(entries, type(params.imatrix))
    assert llama_cpp.llama_model_quantize(str(work.model).encode(), str(out).encode(), ctypes.byref(params)) == 0


class Remembered:
    """The base model, which predicts each window once for every file."""

    def __init__(self, source: EngineSource) -> None:
        self.source, self.name = source, source.name
        self.last: tuple[int, Rows] = -1, np.empty(0, np.float32)

    def rows(self, piece: TextWindow) -> Rows:
        if self.last[0] != piece.index:
            self.last = piece.index, self.source.rows(piece)
        return self.last[1]


@dataclass
class Work:
    """A float model, its importance, the files made of it and their scores: each made once, kept in a folder."""

    model: Path
    folder: Path
    calibrate: int
    windows: int
    window: int
    precision: str
    files: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def opened(self) -> Opened:
        return Opened(open_file(self.model), self.options("exact"))

    @cached_property
    def engine(self) -> CpuEngine:
        engine = self.opened.engine()
        assert isinstance(engine, CpuEngine)
        return engine

    def options(self, precision: str) -> OpenOptions:
        return OpenOptions("cpu", precision, ctx_size=max(self.window, 512), cache_size=0)

    def pieces(self, which: int, count: int, window: int | None = None) -> list[TextWindow]:
        """Windows of the text to calibrate on (0) or to measure on (1)."""
        tokenizer = self.opened.tokenizer
        bos = tokenizer.bos if tokenizer.add_bos else None
        return cut(tokenizer.encode(texts()[which], parse_special=False), window or self.window, bos, count)

    @cached_property
    def importance(self) -> Importance:
        path = self.folder / "imatrix.gguf"
        if not path.exists():
            with timed("importance"):
                write(path, collect(self.engine, self.pieces(0, self.calibrate, 512)))
        return read(path)

    def make(self, title: str, made: Callable[[Path], object]) -> Path:
        path = self.folder / f"{title.replace(' ', '-')}.gguf"
        if not path.exists():
            part = path.with_suffix(".part")
            with timed(title):
                made(part)
            part.rename(path)
        self.files[title] = path
        return path

    def evaluations(self) -> dict[str, Evaluation]:
        """Every file against the model, window by window."""
        kept = self.folder / "scores"
        kept.mkdir(exist_ok=True)
        base = Remembered(EngineSource(self.engine))
        found: dict[str, list[Scores]] = {title: [] for title in self.files}
        sources: dict[str, EngineSource] = {}
        for piece in self.pieces(1, self.windows):
            for title, file in self.files.items():
                path = kept / f"{file.stem}-{self.window}-{self.precision}-{piece.index}.json"
                if not path.exists():
                    if title not in sources:
                        sources[title] = EngineSource(Opened(open_file(file), self.options(self.precision)).engine())
                    path.write_text(json.dumps(score(piece, sources[title], base).to_dict()))
                found[title].append(Scores.from_dict(json.loads(path.read_text())))
        return {title: Evaluation(parts, name=title, base=base.name) for title, parts in found.items()}


class timed:
    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        print(f"{self.what}: {wall:.0f} s, {cpu:.0f} s of CPU", file=sys.stderr, flush=True)


def ratio(ours: Evaluation, theirs: Evaluation) -> str:
    """Ratio of the mean divergences; ± is the standard error of the paired difference."""
    a, b = (np.concatenate([part.kl for part in e.parts]) for e in (ours, theirs))
    return f"{a.mean() / b.mean():.3f} ± {Mean.of(a - b).error / b.mean():.3f}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    parser.add_argument("--mixes", nargs="*", default=["Q2_K", "Q3_K_M", "Q4_K_M", "IQ4_XS"])
    parser.add_argument("--windows", type=int, default=4, help="number of windows to compare on")
    parser.add_argument("--window", type=int, default=512, help="tokens of a window; only its second half is scored")
    parser.add_argument("--calibrate", type=int, default=16, help="windows of 512 tokens for the importance matrix")
    parser.add_argument("--precision", default="exact", help="precision of the engine that measures")
    parser.add_argument("--keep", type=Path, help="folder for files and scores; a later run resumes from it")


def work(args: argparse.Namespace, folder: str) -> Work:
    kept = args.keep or Path(folder)
    kept.mkdir(parents=True, exist_ok=True)
    return Work(args.model, kept, args.calibrate, args.windows, args.window, args.precision)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = work(args, folder)
        for name in args.mixes:
            here.make(f"assay {name}", partial(by_assay, here, name))
            here.make(f"llama {name}", partial(by_llamacpp, here, name))
        found = here.evaluations()
        print("| mix | MB | mean KL | llama.cpp | ratio | same best token | llama.cpp |\n" + "|---" * 7 + "|")
        for name in args.mixes:
            ours, theirs = found[f"assay {name}"], found[f"llama {name}"]
            sizes = [here.files[f"{who} {name}"].stat().st_size / 1e6 for who in ("assay", "llama")]
            assert ours.kl and theirs.kl and ours.same_best and theirs.same_best
            size = f"{sizes[0]:.1f}" if round(sizes[0], 1) == round(sizes[1], 1) else f"{sizes[0]:.1f}, {sizes[1]:.1f}"
            print(
                f"| {name} | {size} | {ours.kl} | {theirs.kl.value:.4f} | {ratio(ours, theirs)} "
                f"| {ours.same_best.value:.1%} | {theirs.same_best.value:.1%} |"
            )


if __name__ == "__main__":
    main()
