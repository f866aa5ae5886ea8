"""The driver: runs one memory-limited process for each reader, counts inputs, and keeps every input that failed."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

SECONDS = 10  # an input
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
        names = args.reader or list(readers(Path(folder)))
    seed = args.seed or random.SystemRandom().randrange(1, 2**31)
    each = args.minutes * 60 * args.jobs / len(names)
    print(f"seed {seed}, {len(names)} readers, {args.inputs or f'{each:.0f} s of'} inputs each", flush=True)
    waiting, running, totals, bad = list(names), [], Counter[str](), 0
    while waiting or running:
        while waiting and len(running) < args.jobs:
            name = waiting.pop(0)
            command = [sys.executable, "-m", "fuzz", "--worker", "--reader", name, "--seed", str(seed)]
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
                totals[key] += n
            totals[f"reader {name}"] += counts.get("inputs", 0)
            print(f"{name:<10} {counts}", flush=True)
        time.sleep(0.1)
    faults = sum(n for key, n in totals.items() if key.startswith("fault")) + bad
    print(f"{totals['inputs']} inputs, {totals['refused']} refused, {faults} not taken well", flush=True)
    if args.json:
        _add(Path(args.json), totals, faults)
    return 1 if faults else 0


def _add(path: Path, totals: Counter[str], faults: int) -> None:
    kept = Counter(json.loads(path.read_text())) if path.exists() else Counter()
    kept.update({key: n for key, n in totals.items() if key == "inputs" or key.startswith("reader")})
    kept["not taken well"] += faults
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


class TooLate(BaseException):
    """An input exceeded its time limit."""


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
        until = time.monotonic() + args.minutes * 60
        with open(FOUND / f"{name}.last", "wb", buffering=0) as last:
            while counts["inputs"] < args.inputs if args.inputs else time.monotonic() < until:
                seed = f"{args.seed}/{name}/{counts['inputs']}"
                os.pwrite(last.fileno(), seed.encode().ljust(80), 0)
                _one(reader, random.Random(seed), counts, seed)
    print(json.dumps(counts), flush=True)
    return 0


def _one(reader: Any, rng: random.Random, counts: Counter[str], seed: str = "") -> None:
    """Make and read one input; an input that fails is kept under the name of its seed."""
    item = reader.make(rng)
    counts["inputs"] += 1
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        reader.read(item)
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
