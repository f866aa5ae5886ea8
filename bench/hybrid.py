"""Hybrid models and loading beside llama.cpp: every figure of docs/lab/hybrid.md, in one run.

    python bench/hybrid.py --llama ../llama.cpp                      # builds llama.cpp once; 2 hours on two idle cores
    python bench/hybrid.py --peer build/peer/peer --only speed       # prefill 512 and decode 64 of three shapes
    python bench/hybrid.py --peer build/peer/peer --only load --layers 4
    python bench/hybrid.py --peer build/peer/peer --clock cpu --threads 1 --repeat 3      # on a machine with other work

The files have random weights and the dimensions of Qwen3.5-0.8B, LFM2-1.2B and Granite-4.0-H-350M, as Q4_K_M
(bench/make_model.py). bench/compare.py and bench/load.py measure; the tables are theirs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import HERE, build_peer
from make_model import make_shape

HYBRIDS = ["qwen3.5-0.8b", "lfm2-1.2b", "granite-4-h-350m"]


def show(script: str, *options: object) -> None:
    """Run a script beside this one; its table goes to standard output."""
    subprocess.run([sys.executable, str(HERE / script), *map(str, options)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, help="llama.cpp's sources, to be built for this machine")
    parser.add_argument("--peer", type=Path, help="or the worker that was built of them before (build/peer/peer)")
    parser.add_argument("--only", choices=("speed", "load"), help="one of the two parts")
    parser.add_argument(
        "--shapes", type=lambda text: text.split(","), default=HYBRIDS, help=f"default {','.join(HYBRIDS)}"
    )
    parser.add_argument("--types", default="all", help="of the files to load; default all")
    parser.add_argument("--layers", type=int, default=22, help="of the files to load; default 22, TinyLlama's")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prompt; default 512")
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded in a turn; default 64")
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))), help="default 2")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeat", type=int, default=5, help="turns; default 5")
    args = parser.parse_args()
    peer = build_peer(args.llama) if args.llama else args.peer
    if peer is None:
        parser.error("--llama or --peer is needed")
    common = ["--peer", peer, "--clock", args.clock, "--repeat", args.repeat]
    if args.only != "load":
        for shape in args.shapes:
            with tempfile.TemporaryDirectory() as folder:
                path = make_shape(Path(folder) / f"{shape}.gguf", "Q4_K_M", shape)
                sizes = ["--prefill", args.prefill, "--decode", args.decode]
                show("compare.py", path, *common, "--threads", args.threads, *sizes)
    if args.only != "speed":
        for threads in sorted({1, args.threads}):
            print(f"\nloading and a prompt of 16 tokens, threads: {threads}", flush=True)
            show("load.py", *common, "--threads", threads, "--types", args.types, "--layers", args.layers)


if __name__ == "__main__":
    main()
