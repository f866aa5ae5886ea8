"""assay and llama.cpp side by side on the same files: ratios with their spread, never bare times.

    python bench/compare.py smollm2.gguf tiny-q4km.gguf --llama ../llama.cpp
    python bench/compare.py --types all --llama ../llama.cpp --threads 1,2,4          # files in TinyLlama's shape, made
    python bench/compare.py tiny-q4km.gguf --llama ../llama.cpp --depths 2000,8192 --neighbour --json out.json
    python bench/compare.py tiny-q4km.gguf --llama ../llama.cpp --depths 32000 --kv-type q8_0 --only-depths
    python bench/compare.py smollm2.gguf --clock cpu --threads 1        # on a machine with other work

Each engine runs in its own process, with the model loaded. They take turns, measurement by measurement, so that other
work on the machine affects both alike. `--llama` names llama.cpp's sources (or ik_llama.cpp's, where their interface is
the same): they are built for this machine with all its instruction sets, and the table names them. Without it,
llama.cpp is that of llama-cpp-python in `--peer-python`. Flash attention is on, the cache is f16 unless `--kv-type`
says otherwise. `--depths` measures prefill and decode after that many tokens, which are computed once. Ratios are assay
over llama.cpp, turn by turn; a table shows their median and their range, in bold where assay is behind.

`--clock cpu` measures CPU time of the process instead of wall clock. It does not see waiting, so it is fair only with
one thread. Use it while the machine is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from make_model import make

HERE = Path(__file__).resolve().parent
# Types that both engines multiply, and the usual mixes.
PLAIN = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
BOOKS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0")
TYPES = (*PLAIN, *BOOKS, "Q3_K_M", "Q4_K_M", "Q5_K_M")

# Code that both workers share. A worker prints what it is and the seconds to the first token, then reads requests as
# lines and prints seconds (bench/peer documents them). Each worker defines `load`, `step(ids, start)` and `traced`.
COMMON = """
import sys, time
clock = time.process_time if sys.argv[3] == "cpu" else time.perf_counter
path, threads, n_ctx, kv_type = sys.argv[1], int(sys.argv[2]), int(sys.argv[4]), sys.argv[5]

def token(i):
    return (i * 7919 + 11) % 1000

def ids(n):
    return [token(i) for i in range(n)]

def serve(load, step, traced=None):
    began = clock()
    print(load())
    step([1], 0)
    print(clock() - began, flush=True)
    for line in sys.stdin:
        do, n, depth, fresh = line.split()
        n, depth = int(n), int(depth)
        if fresh == "1" and depth:
            step(ids(depth), 0)
        if do == "prefill":
            began = clock()
            step(ids(n), depth)
        else:
            go = traced if do == "trace" else step
            go(ids(1), depth)
            began = clock()
            for i in range(n):
                go([token(depth + i)], depth + 1 + i)
        print(clock() - began, flush=True)
"""

ASSAY = (
    COMMON
    + """
import numpy as np
from assay.engines.contract import PAGE, Chunk  # names that earlier versions have too
from assay.engines.cpu import CpuEngine
from assay.gguf import open_file
from assay.models import load as load_model

def load():
    global engine, outs
    model = load_model(open_file(path))
    engine = CpuEngine(model, threads=threads, n_pages=-(-n_ctx // PAGE), kv_type=kv_type)
    outs = [n.name for n in model.graph if n.name.startswith("l_out-")]
    return engine.isa

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
    kind = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}[kv_type]
    llm = llama_cpp.Llama(path, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, n_batch=512, n_ubatch=512,
                          flash_attn=True, type_k=kind, type_v=kind, verbose=False)
    return llama_cpp.llama_print_system_info().decode()

def step(tokens, start):
    llm.n_tokens = start
    llm.eval(tokens)

serve(load, step)
"""
)

BURN = "import os\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"


def build_peer(sources: Path, target: str = "peer") -> Path:
    """llama.cpp and the worker over it, built for this machine; beside this checkout's other builds.

    On x86 by clang where it is installed and CXX does not say otherwise: GCC 12's `_tile_loadconfig` tells the
    optimiser of 8 of the 64 bytes that it reads, and llama.cpp's AMX kernels then end in an illegal instruction.
    """
    folder = HERE.parent / "build" / "peer"
    clang = platform.machine() == "x86_64" and "CXX" not in os.environ and shutil.which("clang++")
    compiler = ["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++"] if clang else []
    for command in (
        ["cmake", "-S", str(HERE / "peer"), "-B", str(folder), f"-DLLAMA={sources.resolve()}", *compiler],
        ["cmake", "--build", str(folder), "--target", target, "-j", str(len(os.sched_getaffinity(0)))],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{sources}: llama.cpp does not build; the compiler says:\n{done.stderr[-2000:]}")
    return folder / target


class Worker:
    """An engine in a process of its own; `load_seconds` is from nothing to the first token, `features` what it uses."""

    def __init__(self, command: list[str], given: list[str], *, here: bool = False, isa: str = "") -> None:
        env = dict(os.environ)
        if here:
            env["PYTHONPATH"] = os.pathsep.join([str(HERE.parent / "src"), env.get("PYTHONPATH", "")])
        if isa:
            env["ASSAY_ISA"] = isa
        self.process = subprocess.Popen(
            [*command, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=env,
        )  # fmt: skip
        self.name = command[0]
        self.features = self._line()
        self.load_seconds = float(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the engine ended unexpectedly")
        return line.strip()

    def ask(self, do: str, n: int, depth: int = 0, fresh: bool = True) -> float:
        """Tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{do} {n} {depth} {int(fresh)}\n")
        self.process.stdin.flush()
        return n / float(self._line())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def summary(ours: list[float], *others: list[float]) -> dict[str, Any]:
    """Medians, and ratios turn by turn: over llama.cpp, and over assay with another instruction set if there is one."""
    ratios = [[a / b for a, b in zip(ours, other, strict=True)] for other in others]
    found = {
        "assay": statistics.median(ours),
        "llama.cpp": statistics.median(others[0]),
        "ratio": statistics.median(ratios[0]),
        "range": [min(ratios[0]), max(ratios[0])],
        "runs": [ours, *others],
    }
    return {**found, "over": statistics.median(ratios[1])} if len(others) > 1 else found


def compare(model: Path, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    assay = [sys.executable, "-c", ASSAY]
    given = [str(model), str(threads), args.clock, str(max([1536, *args.depths]) + 1024), args.kv_type]
    loads: list[list[float]] = [[], [], []] if args.over else [[], []]
    for _ in range(args.repeat):
        workers = [Worker(assay, given, here=True), Worker(args.peer, given)]
        if args.over:
            workers.append(Worker(assay, given, here=True, isa=args.over))
        for found, worker in zip(loads, workers, strict=True):
            found.append(1 / worker.load_seconds)
        if len(loads[0]) < args.repeat:
            for worker in workers:
                worker.close()
    ours, theirs = workers[:2]
    result: dict[str, Any] = {
        "model": model.name, "bytes": model.stat().st_size, "threads": threads, "measures": {},
        "features": {"assay": ours.features, "llama.cpp": theirs.features},
    }  # fmt: skip
    measures = result["measures"]
    measures["loads per second, to first token"] = summary(*loads)

    def turns(name: str, do: str, n: int, depth: int = 0, *, filled: bool = False) -> None:
        runs: list[list[float]] = [[] for _ in workers]
        for worker in workers:
            worker.ask(do, min(n, 8), depth, fresh=not filled)  # warm
        for _ in range(args.repeat):
            for found, worker in zip(runs, workers, strict=True):
                found.append(worker.ask(do, n, depth, fresh=depth < 1000))
        measures[name] = summary(*runs)
        print(f"{model.name}: {threads} threads: {name}: {measures[name]['ratio']:.2f}", file=sys.stderr)

    calm = f"decode {args.decode} after 128"
    if not args.only_depths:
        turns(f"prefill {args.prefill}", "prefill", args.prefill)
        turns(calm, "decode", args.decode, 128)
    for depth in sorted(args.depths):
        turns(f"decode {args.decode} after {depth}", "decode", args.decode, depth)
        turns(f"prefill {args.prefill} after {depth}", "prefill", args.prefill, depth, filled=True)
    if args.neighbour:
        burner = subprocess.Popen([sys.executable, "-c", BURN])
        try:
            turns(f"{calm}, one core busy", "decode", args.decode, 128)
        finally:
            burner.kill()
            burner.wait()
        busy = measures[f"{calm}, one core busy"]
        result["kept_with_busy_core"] = {name: busy[name] / measures[calm][name] for name in ("assay", "llama.cpp")}
    if args.trace:
        pairs = [(ours.ask("decode", 64, 128), ours.ask("trace", 64, 128)) for _ in range(2 * args.repeat)]
        result["trace_cost"] = statistics.median([plain / traced - 1 for plain, traced in pairs])
    for worker in workers:
        worker.close()
    return result


def markdown(results: list[dict[str, Any]], over: str) -> str:
    head = ["file", "threads", "measure", "assay", "llama.cpp", "ratio", "range", *([f"over {over}"] if over else [])]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for result in results:
        for name, row in result["measures"].items():
            low, high = row["range"]
            mark = "**" if row["ratio"] < 1 else ""
            cells = [result["model"], str(result["threads"]), name, f"{row['assay']:.1f}", f"{row['llama.cpp']:.1f}",
                     f"{mark}{row['ratio']:.2f}{mark}", f"{low:.2f} – {high:.2f}"]  # fmt: skip
            lines.append(f"| {' | '.join([*cells, *([format(row['over'], '.2f')] if over else [])])} |")
    for name, used in results[0]["features"].items():
        lines.append(f"\n{name} uses {used}")
    for result in results:
        notes = []
        if "trace_cost" in result:
            notes.append(f"trace of all l_out: {result['trace_cost']:+.1%}")
        if "kept_with_busy_core" in result:
            kept = ", ".join(f"{name} {share:.0%}" for name, share in result["kept_with_busy_core"].items())
            notes.append(f"speed kept while one core is busy: {kept}")
        if notes:
            lines.append(f"\n{result['model']}: {'; '.join(notes)}")
    return "\n".join(lines)


def files(args: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """The files named, then one of each type wanted; a made file is gone when the next is asked for."""
    yield from args.models
    for name in TYPES if args.types == ["all"] else args.types:
        path = make(folder / f"{name}.gguf", name, n_layer=args.layers)
        yield path
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--types", type=lambda text: text.split(","), default=[], help="files to make, or `all`")
    parser.add_argument("--layers", type=int, default=22, help="of the files made")
    parser.add_argument("--llama", type=Path, help="llama.cpp's sources, to be built for this machine")
    parser.add_argument("--peer", type=Path, help="or the worker that was built of them before (build/peer/peer)")
    parser.add_argument("--peer-python", default=sys.executable, help="else: an interpreter with llama-cpp-python")
    parser.add_argument(
        "--threads", type=lambda text: [int(n) for n in text.split(",")], default=[len(os.sched_getaffinity(0))]
    )
    parser.add_argument("--over", default="", metavar="ISA", help="also over assay with this instruction set")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded in a turn")
    parser.add_argument("--trace", action="store_true", help="what a trace of all l_out nodes costs, too")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument(
        "--depths", type=lambda text: [int(n) for n in text.split(",")], default=[], help="of context, measured too"
    )
    parser.add_argument("--kv-type", choices=("f16", "q8_0"), default="f16", help="of the cache, in both engines")
    parser.add_argument("--only-depths", action="store_true", help="nothing without context")
    parser.add_argument("--neighbour", action="store_true", help="decode while another process burns a core, too")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args()
    built = build_peer(args.llama) if args.llama else args.peer
    args.peer = [str(built)] if built else [args.peer_python, "-c", LLAMA_CPP]
    with tempfile.TemporaryDirectory() as folder:
        results = [compare(model, n, args) for model in files(args, Path(folder)) for n in args.threads]
    print(markdown(results, args.over))
    if args.json:
        args.json.write_text(json.dumps({"clock": args.clock, "results": results}, indent=1))


if __name__ == "__main__":
    main()
