"""`assay bench`: the speed of a model on this machine, and its share of the hardware peak.

Two peaks are measured in the same run. Memory read bandwidth bounds decoding, which reads every weight for every token.
The integer dot product rate of the cores bounds prefill.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.cli import common
from assay.cli.number_types import MOST_TOKENS, lengths, whole
from assay.errors import AssayError

if TYPE_CHECKING:
    from assay.engines.contract import Engine
    from assay.models import Model

HELP = "measure prefill and decode speed, memory and load time"
EXAMPLE = """
assay bench smollm2
assay bench model.gguf -p 128,512 -d 128,2000 -n 64 -r 5 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_argument(parser)
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "-p", "--prefill", type=lengths, default=[512], metavar="N,…", help="prompt lengths in tokens; default 512"
    )
    group.add_argument(
        "-d",
        "--depth",
        type=lengths,
        default=[128],
        metavar="N,…",
        help="context lengths at which to decode; default 128",
    )
    group.add_argument(
        "-n", "--decode", type=whole(1, MOST_TOKENS), default=64, metavar="N", help="tokens to decode; default 64"
    )
    group.add_argument("-r", "--repeat", type=whole(1), default=5, metavar="N", help="repetitions; default 5")
    common.add_engine_arguments(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    args.model = path = common.model_path(args)  # downloaded before the clock starts
    start = time.perf_counter()
    needed = max([*args.prefill, *(depth + args.decode for depth in args.depth)])
    args.ctx_size = args.ctx_size or max(needed, 32)
    if args.ctx_size < needed:
        raise AssayError(f"--ctx-size: too small for the lengths asked (found {args.ctx_size}, expected {needed})")
    opened = common.opened(args)
    model, engine = opened.model, opened.engine(answering=True)
    step(engine, [1], 0)
    load_seconds = time.perf_counter() - start
    result: dict[str, Any] = {
        "model": str(path),
        "file_bytes": model.file.size,
        "engine": {
            "name": engine.name,
            "precision": engine.arithmetic.precision,
            "kv_type": engine.arithmetic.kv_type,
            "threads": engine.threads,
            "isa": engine.isa,
        },
        "load_to_first_token_s": load_seconds,
        "memory": memory(engine),
    }
    result["prefill"] = {str(n): spread(n, partial(prefill, engine, n), args.repeat) for n in args.prefill}
    result["decode"] = {
        str(depth): spread(args.decode, partial(decode, engine, depth, args.decode), args.repeat)
        for depth in args.depth
    }
    result["memory_after"] = memory(engine)
    if engine.name == "cpu":
        result["machine"] = ceilings(model, engine, result)
    common.emit(args, result, lambda: table(result))
    return 0


# -- measuring -----------------------------------------------------------------------------------------------------


def step(engine: Engine, ids: Sequence[int], start: int) -> None:
    import numpy as np

    from assay.engines.contract import Chunk, pages_for

    pages = np.arange(pages_for(start + len(ids)), dtype=np.int32)
    engine.forward([Chunk(np.array(ids, np.int32), start, pages, prompt=len(ids) - 1)])


def tokens(engine: Engine, count: int) -> list[int]:
    """Ids spread over the vocabulary; speed does not depend on their meaning."""
    return [(i * 7919 + 11) % engine.model.hparams.n_vocab for i in range(count)]


def prefill(engine: Engine, count: int) -> float:
    """Seconds for a prompt of `count` tokens."""
    ids = tokens(engine, count)
    start = time.perf_counter()
    step(engine, ids, 0)
    return time.perf_counter() - start


def decode(engine: Engine, depth: int, count: int) -> float:
    """Seconds for `count` tokens one by one, after `depth` of them."""
    ids = tokens(engine, depth + count)
    step(engine, ids[:depth], 0)
    start = time.perf_counter()
    for i in range(depth, depth + count):
        step(engine, ids[i : i + 1], i)
    return time.perf_counter() - start


def spread(count: int, measure: Callable[[], float], repeat: int) -> dict[str, Any]:
    """Tokens per second: median and range of the repetitions."""
    measure()  # warm up: the first run also pays for page faults
    speeds = [count / measure() for _ in range(repeat)]
    return {"tok_s": statistics.median(speeds), "min": min(speeds), "max": max(speeds), "runs": speeds}


def memory(engine: Engine) -> dict[str, int]:
    """Resident bytes of this process, and the engine's own account of its memory."""
    found = asdict(engine.memory)
    try:
        with open("/proc/self/status") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        found |= {
            "resident": int(fields["VmRSS"].split()[0]) * 1024,
            "file_mapped": int(fields["RssFile"].split()[0]) * 1024,
        }
    except (OSError, KeyError):
        pass
    return found


def work(model: Model) -> tuple[int, int, int]:
    """Weights multiplied per prompt token, weights of the head, and bytes of weights read per decoded token."""
    from assay.graph import Trait

    body = head = size = 0
    for node in model.graph:
        if not node.has(Trait.PRODUCT):
            continue
        info = model.file.tensors[node.weights[0]]
        count, nbytes = info.n_elements, info.nbytes
        if node.has(Trait.EXPERTS):
            count = count * model.hparams.n_expert_used // model.hparams.n_expert
            nbytes = nbytes * model.hparams.n_expert_used // model.hparams.n_expert
        size += nbytes
        if node.name.startswith("result_"):
            head += count
        else:
            body += count
    return body, head, size


def ceilings(model: Model, engine: Engine, result: dict[str, Any]) -> dict[str, Any]:
    """Hardware peaks with the same number of threads, and the shares that the measured speeds reach."""
    from assay import _native

    peak = _native.measure_dot_peak(engine.threads, 0.5)
    bandwidth = _native.measure_read_bandwidth(engine.threads, 1 << 28, 0.5)
    body, head, size = work(model)
    return {
        "cpus": os.cpu_count(),
        "dot_ops_s": peak,
        "read_bytes_s": bandwidth,
        "bytes_per_token": size,
        "prefill_share_of_dot_peak": {
            n: 2 * (body + head / int(n)) * row["tok_s"] / peak for n, row in result["prefill"].items()
        },
        "decode_share_of_read_bandwidth": {
            depth: size * row["tok_s"] / bandwidth for depth, row in result["decode"].items()
        },
    }


def table(result: dict[str, Any]) -> str:
    engine = result["engine"]
    lines = [
        f"{result['model']}  ({result['file_bytes'] / 1e6:.0f} MB)",
        f"engine {engine['name']}, " + ", ".join(f"{k} {v}" for k, v in engine.items() if v and k != "name"),
        f"load to first token {result['load_to_first_token_s']:.2f} s, "
        f"resident {result['memory_after'].get('resident', 0) / 1e6:.0f} MB",
    ]
    machine = result.get("machine")
    if machine:
        lines.append(
            f"machine {machine['dot_ops_s'] / 1e9:.0f} G integer operations/s, "
            f"reads {machine['read_bytes_s'] / 1e9:.1f} GB/s"
        )
    lines.append(f"{'':>18} {'tok/s':>8}  {'range':>17}  share of the machine")
    for kind, share, what in (
        ("prefill", "prefill_share_of_dot_peak", "of the dot-product peak"),
        ("decode", "decode_share_of_read_bandwidth", "of the read bandwidth"),
    ):
        for n, row in result[kind].items():
            part = f"{machine[share][n]:.0%} {what}" if machine else ""
            span = f"{row['min']:.1f} – {row['max']:.1f}"
            lines.append(
                f"{kind + (' ' if kind == 'prefill' else ' at ') + n:>18} {row['tok_s']:8.1f}  {span:>17}  {part}"
            )
    return "\n".join(lines)
