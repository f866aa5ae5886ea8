"""Memory and cores of this machine, on every system."""

from __future__ import annotations

import os
from pathlib import Path


def memory() -> int:
    """Bytes of main memory; 8 GiB if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def cores(system: Path = Path("/sys")) -> int:
    """Physical cores that this process may use, at most its CPU quota.

    Second hardware threads do not count: they add nothing when memory or the vector units are the bottleneck.
    """
    try:
        threads = os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1

    def text(path: str) -> str:
        try:
            return (system / path).read_text().strip()
        except OSError:
            return ""

    found = len({text(f"devices/system/cpu/cpu{n}/topology/thread_siblings_list") or n for n in threads})
    quota, _, period = text("fs/cgroup/cpu.max").partition(" ")
    paid = -(-int(quota) // int(period)) if quota.isdigit() and period.isdigit() and int(period) else found
    return max(1, min(found, paid))
