"""The driver: runs one memory-limited process for each reader, counts inputs, and keeps every input that failed."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

SECONDS = 10  # an input
CPU_SECONDS = 2.0  # of this process for an input: more is a stall
GROWTH = 96 << 20  # bytes that a process may grow by between its first tenth of inputs and its last one
LARGEST = ("slowest_ms", "growth_mb")  # figures of which the largest counts, not the sum
# Fuzzers in other languages: each takes --seed and --inputs or --minutes; its last line has its counts as JSON.
OTHERS = {"markdown": ("node", "fuzz/markdown.mjs")}
MEMORY = 1 << 30  # bytes beyond what starting takes
FOUND = Path("build/fuzz")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="for all readers together (default 2)")
    parser.add_argument("--inputs", type=int, default=0, help="of each reader, instead of a time")
    parser.add_argument("--reader", action="append", help="only this one; repeatable")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", help="add the counts to those in this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    return worker(args) if args.worker else drive(args)


def drive(args: argparse.Namespace) -> int:
    from fuzz.readers import readers, temporary

    with temporary() as folder:
        names = args.reader or [*readers(Path(folder)), *(name for name in OTHERS if _is_here(name))]
    seed = args.seed or random.SystemRandom().randrange(1, 2**31)
    each = args.minutes * 60 * args.jobs / len(names)
    print(f"seed {seed}, {len(names)} readers, {args.inputs or f'{each:.0f} s of'} inputs each", flush=True)
    waiting, running, totals, bad = list(names), [], Counter[str](), 0
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name = waiting.pop(0)
            own = [sys.executable, "-m", "fuzz", "--worker", "--reader", name]
            command = [*OTHERS.get(name, own), "--seed", str(seed)]
            command += ["--inputs", str(args.inputs)] if args.inputs else ["--minutes", str(each / 60)]
            running.append((name, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        for name, process in list(running):
            if process.poll() is None:
                continue
            running.remove((name, process))
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            counts = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
            if process.returncode or not counts:
                bad += 1
                print(f"{name:<10} DIED with {process.returncode}; its seed is in {FOUND}/{name}.last", flush=True)
            for key, n in counts.items():
                totals[key] = max(totals[key], n) if key in LARGEST else totals[key] + n
            totals[f"reader {name}"] += counts.get("inputs", 0)
            print(f"{name:<10} {counts}", flush=True)
        time.sleep(0.1)
    faults = sum(n for key, n in totals.items() if key.startswith("fault")) + bad
    print(f"{totals['inputs']} inputs, {totals['refused']} refused, {faults} not taken well", flush=True)
    print(f"slowest {totals['slowest_ms']} ms of processor time, growth {totals['growth_mb']} MB at most", flush=True)
    if args.json:
        _add(Path(args.json), totals, faults)
    return 1 if faults else 0


def _add(path: Path, totals: Counter[str], faults: int) -> None:
    kept = Counter(json.loads(path.read_text())) if path.exists() else Counter()
    kept.update({key: n for key, n in totals.items() if key == "inputs" or key.startswith("reader")})
    for key in LARGEST:
        kept[key] = max(kept[key], totals[key])
    kept["not taken well"] += faults
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def _is_here(name: str) -> bool:
    program, script = OTHERS[name]
    return Path(script).exists() and shutil.which(program) is not None


class TooLate(BaseException):
    """An input exceeded its time limit."""


class Stalled(Exception):
    """An input took long, although it was answered."""


def _resident() -> int:
    """Bytes of memory in use."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return 0


def _late(*_: Any) -> None:
    raise TooLate


def _limit_memory() -> None:
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    except (ImportError, OSError, ValueError):
        return


def worker(args: argparse.Namespace) -> int:
    from fuzz.readers import readers, temporary

    (name,) = args.reader
    FOUND.mkdir(parents=True, exist_ok=True)
    with temporary() as folder:
        reader = readers(Path(folder))[name]
        for i in range(20):  # whatever is loaded late is loaded before memory is counted
            _one(reader, random.Random(i), Counter())
        _limit_memory()
        counts: Counter[str] = Counter()
        started, until = time.monotonic(), time.monotonic() + args.minutes * 60
        first = 0  # bytes in use after a tenth of the inputs: caches are full then
        with open(FOUND / f"{name}.last", "wb", buffering=0) as last:
            while counts["inputs"] < args.inputs if args.inputs else time.monotonic() < until:
                seed = f"{args.seed}/{name}/{counts['inputs']}"
                os.pwrite(last.fileno(), seed.encode().ljust(80), 0)
                _one(reader, random.Random(seed), counts, seed)
                done = (
                    counts["inputs"] / args.inputs if args.inputs else (time.monotonic() - started) / args.minutes / 60
                )
                if not first and done > 0.1:
                    first = _resident()
        grown = _resident() - first
        counts["growth_mb"] = max(grown >> 20, 0)
        if first and grown > GROWTH:
            counts["fault growth"] += 1
    print(json.dumps(counts), flush=True)
    return 0


def _one(reader: Any, rng: random.Random, counts: Counter[str], seed: str = "") -> None:
    """Make and read one input; an input that fails is kept under the name of its seed."""
    item = reader.make(rng)
    counts["inputs"] += 1
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    started = time.process_time()
    try:
        try:
            reader.read(item)
        finally:
            took = time.process_time() - started
            counts["slowest_ms"] = max(counts["slowest_ms"], int(took * 1000))
        if took > CPU_SECONDS:
            raise Stalled(f"{took:.1f} s of processor time")
    except reader.refusals as error:
        counts["refused"] += 1
        if "\n" in str(error) or any(c in str(error) for c in "\x1b\x07\r"):
            counts["lines with controls"] += 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = type(error).__name__
        counts[f"fault {kind}"] += 1
        if seed:
            place = FOUND / seed.replace("/", "-")
            place.with_suffix(".input").write_text(repr(item), "utf-8", "surrogatepass")
            place.with_suffix(".trace").write_text(traceback.format_exc())
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main())
