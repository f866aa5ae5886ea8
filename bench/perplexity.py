"""`assay eval --kl` beside llama-perplexity's `--kl-divergence`: same files, same text, same windows.

    python bench/perplexity.py F16.gguf Q4_K_M.gguf TEXT --llama-perplexity PATH --chunks 8

Three comparisons, from the definition alone to everything at once:

    definition    assay's arithmetic on llama.cpp's own logits: the engine `llamacpp`, against the file that
                  llama-perplexity wrote
    float32       the same weights written out as F32, so that neither engine rounds an activation to 8 bits; keys and
                  values in f32
    as it is      the two files as they are: the engines' own arithmetic, 8-bit activations included

Needs llama-cpp-python of the same llama.cpp. Flash attention and repacking are switched off, as in the engine
`llamacpp`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Bench:
    program: Path
    text: Path
    chunks: int
    threads: int

    def theirs(self, model: Path, base: Path, *, write: bool, cache: str = "f16") -> float:
        """Write the base's log-probabilities, or give the mean divergence from them."""
        found = subprocess.run(
            [self.program, "-m", model, "-f", self.text, "--chunks", str(self.chunks), "-t", str(self.threads),
             "--no-escape", "-fa", "off", "--no-repack", "-ctk", cache, "-ctv", cache, "--kl-divergence-base", base,
             *([] if write else ["--kl-divergence"])],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        wanted = r"Final estimate: PPL = ([\d.]+)" if write else r"Mean +KLD: +([\d.]+)"
        match = re.search(wanted, found.stdout + found.stderr)
        assert match, (found.stdout + found.stderr)[-2000:]
        return float(match[1])

    def ours(self, model: Path, base: Path, *options: str) -> float:
        text = [] if base.suffix == ".kld" else ["-f", str(self.text)]
        found = subprocess.run(
            [sys.executable, "-m", "assay", "eval", model, "--kl", base, *text, "--chunks", str(self.chunks), "--worst",
             "0", "-t", str(self.threads), "--json", *options],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return float(json.loads(found.stdout)["kl"]["value"])


def row(what: str, theirs: float, ours: float) -> None:
    print(f"| {what} | {theirs:.6f} | {ours:.6f} | {ours / theirs:.4f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--llama-perplexity", type=Path, default=Path("llama-perplexity"))
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("-t", "--threads", type=int, default=1)
    args = parser.parse_args()
    bench = Bench(args.llama_perplexity, args.text, args.chunks, args.threads)
    print("| | llama-perplexity | assay eval --kl | ratio |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        kld, wide = Path(folder) / "base.kld", Path(folder) / "wide.kld"
        bench.theirs(args.base, kld, write=True)
        theirs = bench.theirs(args.model, kld, write=False)
        row("definition", theirs, bench.ours(args.model, kld, "--engine", "llamacpp"))
        exact = bench.ours(args.model, args.base, "--precision", "exact")
        floats = [Path(folder) / f"{path.stem}-f32.gguf" for path in (args.base, args.model)]
        for path, out in zip((args.base, args.model), floats, strict=True):
            subprocess.run([sys.executable, "-m", "assay", "quantize", path, out, "--type", "F32"], check=True)
        bench.theirs(floats[0], wide, write=True, cache="f32")
        row("float32 (`--precision exact`)", bench.theirs(floats[1], wide, write=False, cache="f32"), exact)
        row("as it is, 8-bit activations", theirs, bench.ours(args.model, args.base))


if __name__ == "__main__":
    main()
