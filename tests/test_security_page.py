"""docs/reference/security.md names every limit with the value that the code has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from assay.system.box import LIMITS

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "security.md").read_text()
UNITS = {"MiB": 1 << 20, "KiB": 1 << 10, "s": 1, "": 1}


def test_every_limit_of_the_server() -> None:
    pytest.importorskip("prometheus_client")
    from assay.serve.limits import ServerLimits

    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+ ?\w*) \|", PAGE, re.M))
    for limit in fields(ServerLimits):
        number, _, unit = rows[limit.name].partition(" ")
        assert float(number) * UNITS[unit] == limit.default, limit.name


def test_every_box() -> None:
    for name, limits in LIMITS.items():
        row = f"| `{name}` | {limits.memory >> 20} MiB | {limits.seconds:g} s | {limits.processes} |"
        assert row in PAGE, row


def test_the_figures_are_there() -> None:
    assert "_FIGURES" not in PAGE
