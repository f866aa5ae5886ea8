"""Naming a cluster on the command line: where replicas and the workers of a sweep run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from assay.errors import AssayError
from assay.system import machine
from assay.system.terminal import harmless

if TYPE_CHECKING:
    from assay.cluster.fleet import Bounds
    from assay.cluster.launchers import Launcher
    from assay.cluster.sweep import WorkerPool


def add_cluster_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, sweep: bool = True) -> None:
    parser.add_argument(
        "--cluster", nargs="?", const="", metavar="ADDRESS",
        help="compute on a Ray cluster (RAY_ADDRESS, else one of this machine), or `local[:N]`: N processes here",
    )  # fmt: skip
    parser.add_argument(
        "--insecure-cluster", action="store_true", help="join a Ray cluster that has no token authentication"
    )
    if sweep:
        parser.add_argument(
            "--results", metavar="DIR", help="where finished parts are kept, so that a killed sweep goes on"
        )


def address(args: argparse.Namespace) -> str | None:
    """`local`, or a Ray cluster's address; None: a Ray of this machine."""
    return args.cluster or os.environ.get("RAY_ADDRESS") or None


def worker_pool(args: argparse.Namespace) -> WorkerPool:
    """The workers of a sweep."""
    from assay.cluster.worker_pool import LocalPool
    from assay.cluster.worker_pool import worker_pool as pool_at

    made = pool_at(address(args) or "", insecure=args.insecure_cluster)
    if isinstance(made, LocalPool):  # the processes share the cores of this machine
        os.environ.setdefault("ASSAY_SWEEP_THREADS", str(max(1, machine.cores() // made.n)))
    return made


def launcher(args: argparse.Namespace) -> Callable[[], Launcher]:
    """What starts the replicas: processes of this machine, or actors of a Ray cluster."""
    from assay.cluster.launchers import LocalLauncher, local_processes

    if local_processes(args.cluster) is not None:
        return LocalLauncher
    from assay.cluster.ray_cluster import RayLauncher, join

    found = join(address(args), insecure=args.insecure_cluster)
    gpus = 1.0 if args.engine == "cuda" else 0.0
    return lambda: RayLauncher(found, cpus=float(args.threads or 1), gpus=gpus)


def bounds(text: str) -> Bounds:
    """`3`, or `1:4`: from one to four, by how long requests wait."""
    from assay.cluster.fleet import Bounds

    low, _, high = text.partition(":")
    if not low.isdigit() or not (high or low).isdigit() or not 1 <= int(low) <= int(high or low) <= 1024:
        raise argparse.ArgumentTypeError(f"expected N or LEAST:MOST (found {text!r})")
    return Bounds(int(low), int(high or low))


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1 (found {text!r})")
    return value


def sweep_progress() -> Callable[[int, int, Mapping[str, str]], None]:
    """Progress of a sweep on stderr: how much is done, and a line for what each worker does. Gone when all is."""
    drawn, lines, begun = 0.0, 0, time.monotonic()

    def show(done: int, total: int, who: Mapping[str, str]) -> None:
        nonlocal drawn, lines
        now = time.monotonic()
        if not sys.stderr.isatty() or (done < total and now - drawn < 0.1):
            return
        drawn = now
        width, height = shutil.get_terminal_size()
        left = f", {(now - begun) / done * (total - done):.0f} s left" if done else ""
        rows = [f"{'█' * round(20 * done / total):·<20} {done} of {total}{left}"]
        rows += [f"  {harmless(f'{name}: {what}')}" for name, what in sorted(who.items())][: height - 2]
        up = f"\033[{lines}A" if lines else ""
        lines = len(rows) if done < total else 0
        text = "".join(f"{row[: width - 1]}\n" for row in rows) if done < total else ""
        print(f"\r{up}\033[J{text}", end="", file=sys.stderr, flush=True)

    return show


def needs_cluster(args: argparse.Namespace, **given: object) -> None:
    """Refuse what has no meaning on one machine."""
    for name, value in given.items():
        if value and args.cluster is None:
            raise AssayError(f"--{name}: needs --cluster")
