"""A library that puts faults in the way of system calls."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("faulty_calls.c")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("faults are put in by a library that a C compiler makes")
    out = tmp_path_factory.mktemp("shim") / "faulty.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", out, SOURCE, "-ldl"], check=True)
    return str(out)
