"""How large the machine is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.system.machine import cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")


def test_a_core_counts_once_and_no_more_than_the_quota_pays_for(tmp_path: Path) -> None:
    mine = os.sched_getaffinity(0)
    assert cores(tmp_path) == len(mine)  # nothing is known: every thread counts as a core
    for n in mine:
        topology = tmp_path / f"devices/system/cpu/cpu{n}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-1\n")
    assert cores(tmp_path) == 1
    for n in mine:
        (tmp_path / f"devices/system/cpu/cpu{n}/topology/thread_siblings_list").write_text(f"{n}\n")
    assert cores(tmp_path) == len(mine)
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    for text, expected in (
        ("max 100000", len(mine)),
        ("50000 100000", 1),
        ("9000000 100000", len(mine)),
        ("", len(mine)),
    ):
        (tmp_path / "fs/cgroup/cpu.max").write_text(text + "\n")
        assert cores(tmp_path) == expected, text
    assert 1 <= cores() <= len(mine)
