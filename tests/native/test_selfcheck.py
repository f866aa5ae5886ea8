"""The C++ self-checks of the native code, built and run: every instruction set that this machine has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from assay import _native
from tests.native import self_checks


def build() -> Path:
    folder = self_checks.build()
    if folder is None:
        pytest.skip(f"the self-checks are built with {self_checks.missing()}, which is not installed")
    return folder


@pytest.mark.slow
def test_the_team_of_threads() -> None:
    found = subprocess.run([build() / "test_pool"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("check", ["test_rows", "test_kernels"])
def test_selfcheck(check: str) -> None:
    found = subprocess.run([build() / check], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-4000:]
    for isa in _native.isas():
        assert isa in found.stdout
