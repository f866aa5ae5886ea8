"""How large the machine is, on every system that Python runs on."""

from __future__ import annotations

import os
from pathlib import Path


def memory() -> int:
    """Bytes of main memory; 8 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def cores(system: Path = Path("/sys")) -> int:
    """Cores that this process may use. A core's second thread does not count, because it adds nothing where memory or
    the vector units are the bound; and where a quota pays for less, no more than that."""
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
