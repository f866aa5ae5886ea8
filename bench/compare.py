"""assay and llama.cpp side by side on the same files: ratios with their spread, never bare times.

    python bench/compare.py smollm2.gguf tiny-q4km.gguf --peer-python ~/lcpp/bin/python
    python bench/compare.py tiny-q4km.gguf --long --neighbour --json out.json
    python bench/compare.py smollm2.gguf --clock cpu --threads 1        # on a machine that others use too

Each engine lives in its own process, with the model loaded; they take turns, measurement by measurement, so that
whatever else the machine does meets both alike. llama.cpp is reached through llama-cpp-python of `--peer-python`, with
flash attention on, as many threads, and an f16 cache. Ratios are assay over llama.cpp, turn by turn; a table shows
their median and their range.

With `--clock cpu` the time is that of the process on its cores instead of the wall. It is blind to waiting, so it is
fair only with one thread; it is what can be compared while the machine is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

# What both workers share: requests as JSON lines in, seconds out. `load`, `step(ids, start)` and `traced` are theirs.
COMMON = """
import json, sys, time
clock = time.process_time if sys.argv[3] == "cpu" else time.perf_counter
path, threads = sys.argv[1], int(sys.argv[2])

def ids(n):
    return [(i * 7919 + 11) % 30000 for i in range(n)]

def serve(load, step, traced=None):
    began = clock()
    load()
    step([1], 0)
    print(json.dumps(clock() - began), flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if what["do"] == "prefill":
            began = clock()
            step(ids(what["n"]), 0)
        else:
            depth, go = what["depth"], traced if what["do"] == "trace" else step
            if what["fresh"]:
                step(ids(depth), 0)
            go(ids(1), depth)
            began = clock()
            for i in range(what["n"]):
                go([ids(depth + i + 1)[-1]], depth + 1 + i)
        print(json.dumps(clock() - began), flush=True)
"""

ASSAY = (
    COMMON
    + """
import numpy as np
from assay.engines.base import PAGE, Chunk  # names that earlier versions have too
from assay.engines.cpu import CpuEngine
from assay.gguf import open_file
from assay.models import load as load_model

def load():
    global engine, outs
    model = load_model(open_file(path))
    engine = CpuEngine(model, threads=threads, n_pages=80)
    outs = [n.name for n in model.graph if n.name.startswith("l_out-")]

def step(tokens, start, keep=()):
    pages = np.arange(-(-(start + len(tokens)) // PAGE), dtype=np.int32)
    engine.forward([Chunk(np.array(tokens, np.int32), start, pages)], keep)

serve(load, step, lambda tokens, start: step(tokens, start, outs))
"""
)

LLAMA_CPP = (
    COMMON
    + """
import llama_cpp

def load():
    global llm
    llm = llama_cpp.Llama(path, n_ctx=2560, n_threads=threads, n_threads_batch=threads, n_batch=512, n_ubatch=512,
                          flash_attn=True, verbose=False)

def step(tokens, start):
    llm.n_tokens = start
    llm.eval(tokens)

serve(load, step)
"""
)

BURN = "import os\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"


class Worker:
    """An engine in a process of its own; `load_seconds` is from nothing to the first token."""

    def __init__(self, python: str, code: str, model: Path, threads: int, clock: str, *, here: bool = False) -> None:
        source = str(Path(__file__).resolve().parents[1] / "src")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
        command = [python, "-c", code, str(model), str(threads), clock]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=env if here else os.environ,
        )  # fmt: skip
        self.load_seconds = self._answer()

    def _answer(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]}: the engine ended unexpectedly")  # type: ignore[index]
        return float(json.loads(line))

    def ask(self, do: str, n: int, depth: int = 0, fresh: bool = True) -> float:
        """Tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "n": n, "depth": depth, "fresh": fresh}) + "\n")
        self.process.stdin.flush()
        return n / self._answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def summary(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "assay": statistics.median(ours),
        "llama.cpp": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "runs": [ours, theirs],
    }


def compare(model: Path, args: argparse.Namespace) -> dict[str, Any]:
    loads: tuple[list[float], list[float]] = ([], [])
    for _ in range(args.repeat):
        workers = [
            Worker(sys.executable, ASSAY, model, args.threads, args.clock, here=True),
            Worker(args.peer_python, LLAMA_CPP, model, args.threads, args.clock),
        ]
        for found, worker in zip(loads, workers, strict=True):
            found.append(1 / worker.load_seconds)
        if len(loads[0]) < args.repeat:
            for worker in workers:
                worker.close()
    ours, theirs = workers
    result: dict[str, Any] = {"model": model.name, "bytes": model.stat().st_size, "measures": {}}
    measures = result["measures"]
    measures["loads per second, to first token"] = summary(*loads)

    def turns(name: str, do: str, n: int, depth: int = 0) -> None:
        runs: tuple[list[float], list[float]] = ([], [])
        for worker in workers:
            worker.ask(do, min(n, 32), depth)  # warm
        for _ in range(args.repeat):
            for found, worker in zip(runs, workers, strict=True):
                found.append(worker.ask(do, n, depth, fresh=depth < 1000))
        measures[name] = summary(*runs)
        print(f"{model.name}: {name}: {measures[name]['ratio']:.2f}", file=sys.stderr)

    turns("prefill 512", "prefill", 512)
    turns("decode 64 after 128", "decode", 64, 128)
    if args.long:
        turns("decode 32 after 2000", "decode", 32, 2000)
    if args.neighbour:
        burner = subprocess.Popen([sys.executable, "-c", BURN])
        try:
            turns("decode 64 after 128, one core busy", "decode", 64, 128)
        finally:
            burner.kill()
            burner.wait()
        calm, busy = measures["decode 64 after 128"], measures["decode 64 after 128, one core busy"]
        result["kept_with_busy_core"] = {name: busy[name] / calm[name] for name in ("assay", "llama.cpp")}
    plain, traced = [], []
    for _ in range(2 * args.repeat):
        plain.append(ours.ask("decode", 64, 128))
        traced.append(ours.ask("trace", 64, 128))
    result["trace_cost"] = statistics.median([a / b - 1 for a, b in zip(plain, traced, strict=True)])
    for worker in workers:
        worker.close()
    _ = theirs
    return result


def markdown(results: list[dict[str, Any]]) -> str:
    lines = ["| file | measure | assay | llama.cpp | ratio | range |", "|---|---|---|---|---|---|"]
    for result in results:
        for name, row in result["measures"].items():
            low, high = row["range"]
            lines.append(
                f"| {result['model']} | {name} | {row['assay']:.1f} | {row['llama.cpp']:.1f} | "
                f"**{row['ratio']:.2f}** | {low:.2f} – {high:.2f} |"
            )
    for result in results:
        notes = [f"trace of all l_out: {result['trace_cost']:+.1%}"]
        if "kept_with_busy_core" in result:
            kept = ", ".join(f"{name} {share:.0%}" for name, share in result["kept_with_busy_core"].items())
            notes.append(f"speed kept while one core is busy: {kept}")
        lines.append(f"\n{result['model']}: {'; '.join(notes)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--long", action="store_true", help="decode after 2000 tokens, too")
    parser.add_argument("--neighbour", action="store_true", help="decode while another process burns a core, too")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args()
    results = [compare(model, args) for model in args.models]
    print(markdown(results))
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "clock": args.clock, "results": results}, indent=1))


if __name__ == "__main__":
    main()
