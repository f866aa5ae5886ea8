"""Arguments that name a cluster, and the launchers and worker pools made from them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from assay.cli.number_types import whole
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
        help="compute on a Ray cluster (default: RAY_ADDRESS, else a new local one); `local[:N]`: N local processes",
    )  # fmt: skip
    parser.add_argument(
        "--insecure-cluster", action="store_true", help="allow a Ray cluster without token authentication"
    )
    if sweep:
        parser.add_argument(
            "--results", metavar="DIR", help="folder of finished results, from which an interrupted sweep resumes"
        )


def address(args: argparse.Namespace) -> str | None:
    """`local`, or the address of a Ray cluster; None starts a Ray cluster on this machine."""
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
    """The launcher of replicas: processes of this machine, or actors of a Ray cluster."""
    from assay.cluster.launchers import LocalLauncher, local_processes

    if local_processes(args.cluster) is not None:
        return LocalLauncher
    from assay.cluster.ray_cluster import RayLauncher, join

    found = join(address(args), insecure=args.insecure_cluster)
    gpus = 1.0 if args.engine == "cuda" else 0.0
    return lambda: RayLauncher(found, cpus=float(args.threads or 1), gpus=gpus)


def bounds(text: str) -> Bounds:
    """An argument type: `3`, or `1:4` for one to four replicas, autoscaled by queue time."""
    from assay.cluster.fleet import Bounds

    low, _, high = text.partition(":")
    try:
        least, most = (whole(1, 1024)(part) for part in (low, high or low))
    except argparse.ArgumentTypeError:
        least, most = 1, 0
    if least > most:
        raise argparse.ArgumentTypeError(f"expected N or MIN:MAX, each 1 to 1024 (found {text!r:.60})")
    return Bounds(least, most)


def share(text: str) -> float:
    """An argument type: a number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1 (found {text!r:.60})")
    return value


def sweep_progress() -> Callable[[int, int, Mapping[str, str]], None]:
    """Progress of a sweep on a terminal: a bar, and one line per worker with its task. Erased at the end."""
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
    """Refuse options that need a cluster."""
    for name, value in given.items():
        if value and args.cluster is None:
            raise AssayError(f"--{name}: needs --cluster")
