"""The example emitters are compiled and run where their compilers are at hand, and assay reads what they wrote."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from assay.verify.dumps.load import load_dump

EMITTERS = Path(__file__).parents[1] / "docs" / "emitters"
VALUES = [[0.1, -2.5, 3e-7], [4.0, 5.25, -6.0]]

# language -> (program that must be there, command that builds, command that runs)
LANGUAGES: dict[str, tuple[str, list[str], list[str]]] = {
    "c": ("cc", ["cc", "-Wall", "-Wextra", "-Werror", "-o", "emit", "emit.c", "-lm"], ["./emit"]),
    "rust": ("rustc", ["rustc", "-D", "warnings", "-o", "emit", "emit.rs"], ["./emit"]),
    "go": ("go", ["go", "build", "-o", "emit", "emit.go"], ["./emit"]),
    "zig": ("zig", ["zig", "build-exe", "emit.zig", "-lc"], ["./emit"]),
    "js": ("node", ["cp", "emit.js", "emit.mjs"], ["node", "emit.mjs"]),
    "python": (sys.executable, [], [sys.executable, "emit.py"]),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_emitter(language: str, tmp_path: Path) -> None:
    program, build, run = LANGUAGES[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on this machine")
    for source in EMITTERS.iterdir():
        shutil.copy(source, tmp_path)
    for command in filter(None, (build, run)):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    dump = load_dump(tmp_path / "dump.jsonl")
    assert dump.engine == f"example-{language}" and dump.tokens == (1, 450)
    found = dump.values("embd")
    assert found is not None
    assert np.array_equal(found.astype(np.float32), np.array(VALUES, np.float32))
