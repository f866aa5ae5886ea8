"""Building the C++ self-checks of the native code, in the folder of the installed module if there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def missing() -> str:
    """The tool that building needs and that is not installed; empty where there is all."""
    if shutil.which("cmake") is None:
        return "cmake"
    return "" if any(map(shutil.which, ("c++", "g++", "clang++"))) else "a C++ compiler"


def build() -> Path | None:
    """The folder of the built checks; None where a tool is missing. Most is compiled already beside a module."""
    if missing() == "cmake":
        return None
    for cache in ROOT.glob("build/*/CMakeCache.txt"):
        made = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(), re.M)
        if not made or made[1] != str(ROOT) or "sanitize" in cache.parent.name:
            continue
        command = ["cmake", "--build", str(cache.parent), "--target", "native_tests"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return cache.parent
    if missing():
        return None
    folder = ROOT / "build" / "selfcheck"
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(folder), "-DASSAY_MODULE=OFF"],
        ["cmake", "--build", str(folder), "--target", "native_tests", "-j", "2"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return folder
