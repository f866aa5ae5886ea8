"""The C++ self-checks of the native code, built and run: every instruction set that this machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from assay import _native

ROOT = Path(__file__).parents[2]


def build() -> Path:
    """The folder of the built checks: that of the installed module if there is one, where most is compiled already."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("the self-checks are built with cmake, which is not installed")
    for cache in ROOT.glob("build/*/CMakeCache.txt"):
        made = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(), re.M)
        if not made or made[1] != str(ROOT) or "sanitize" in cache.parent.name:
            continue
        command = [cmake, "--build", str(cache.parent), "--target", "native_tests"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return cache.parent
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("the self-checks are built with a C++ compiler, which is not installed")
    folder = ROOT / "build" / "selfcheck"
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), "-DASSAY_MODULE=OFF"],
        [cmake, "--build", str(folder), "--target", "native_tests", "-j", "2"],
    ):
        subprocess.run(command, check=True, capture_output=True)
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
