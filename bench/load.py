"""From nothing to the first token of a prompt, assay and llama.cpp in turns: files in TinyLlama's shape, type by type.

    python bench/load.py --peer build/peer/peer                              # every type, a prompt of 16 tokens
    python bench/load.py --llama ../llama.cpp --types Q8_0,IQ2_XXS --tokens 1
    python bench/load.py --peer build/peer/peer --clock cpu --threads 1      # on a machine with other work

Each measurement is a process of its own. The clock starts when the process has loaded its code: it covers opening the
file, making the engine and computing the prompt. The file is read before each, so that it is in the page cache. Ratios
are assay's speed over llama.cpp's, turn by turn; a table shows their median and range, in bold where assay is behind.
`--llama` and `--clock` mean what they mean in bench/compare.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import HERE, TYPES, build_peer
from make_model import make

ASSAY = """
import sys, time
import numpy as np
from assay.engines.contract import PAGE, Chunk
from assay.engines.cpu import CpuEngine
from assay.gguf import open_file
from assay.models import load

path, threads, clock, n_ctx, kv_type, n = sys.argv[1:]
clock = time.process_time if clock == "cpu" else time.perf_counter
began = clock()
engine = CpuEngine(load(open_file(path)), threads=int(threads), n_pages=-(-int(n_ctx) // PAGE), kv_type=kv_type)
print(engine.isa)
tokens = np.array([(i * 7919 + 11) % 1000 for i in range(int(n))], np.int32)
engine.forward([Chunk(tokens, 0, np.arange(-(-int(n) // PAGE), dtype=np.int32))])
print(clock() - began, flush=True)
"""


def seconds(command: list[str], given: list[str]) -> float:
    """One process: from nothing to the first token."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, *given], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{command[0]}: it did not load {given[0]}: {done.stderr[-500:]}")
    return float(done.stdout.split("\n")[1])


def warm(path: Path) -> None:
    """Read the file, so that all of it is in the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def measure(path: Path, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    given = [str(path), str(args.threads), args.clock, "2560", "f16", str(tokens)]
    engines = [[sys.executable, "-c", ASSAY], [str(args.peer)]]
    runs: list[list[float]] = [[], []]
    for turn in range(args.repeat + 1):  # the first one is not counted
        order = (0, 1) if turn % 2 else (1, 0)
        for i in order:
            warm(path)
            found = seconds(engines[i], given)
            if turn:
                runs[i].append(found)
    ratios = [theirs / ours for ours, theirs in zip(*runs, strict=True)]
    return {
        "tokens": tokens, "assay": statistics.median(runs[0]), "llama.cpp": statistics.median(runs[1]),
        "ratio": statistics.median(ratios), "range": [min(ratios), max(ratios)], "runs": runs,
    }  # fmt: skip


def row(name: str, size: int, found: list[dict[str, Any]]) -> str:
    cells = [name, f"{size / 1e6:,.0f}"]
    for m in found:
        mark = "**" if m["ratio"] < 1 else ""
        low, high = m["range"]
        cells += [f"{m['assay']:.2f}", f"{m['llama.cpp']:.2f}"]
        cells.append(f"{mark}{m['ratio']:.2f}{mark} ({low:.2f} – {high:.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=lambda text: text.split(","), default=["all"], help="files to make, or `all`")
    parser.add_argument("--layers", type=int, default=22, help="of the files; default 22")
    parser.add_argument(
        "--tokens", type=lambda text: [int(n) for n in text.split(",")], default=[16], help="of a prompt; default 16"
    )
    parser.add_argument("--llama", type=Path, help="llama.cpp's sources, to be built for this machine")
    parser.add_argument("--peer", type=Path, help="or the worker that was built of them before (build/peer/peer)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args()
    args.peer = build_peer(args.llama) if args.llama else args.peer
    if args.peer is None:
        parser.error("--llama or --peer is needed")
    head = ["type", "file, MB"]
    for n in args.tokens:
        head += [f"assay, s, {n} token{'s' * (n > 1)}", "llama.cpp, s", "ratio"]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in TYPES if args.types == ["all"] else args.types:
            path = make(Path(folder) / f"{name}.gguf", name, n_layer=args.layers)
            results[name] = [measure(path, n, args) for n in args.tokens]
            print(row(name, path.stat().st_size, results[name]), flush=True)
            path.unlink()
    if args.json:
        args.json.write_text(json.dumps({"clock": args.clock, "threads": args.threads, "results": results}, indent=1))


if __name__ == "__main__":
    main()
