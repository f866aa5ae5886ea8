"""The tutorial, followed to the letter: every command is run, every line of output is compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial" / "broken-engine.md"


def steps() -> list[tuple[str, str]]:
    """("console", text) and ("diff", text) in their order."""
    return re.findall(r"```(console|diff)\n(.*?)```", PAGE.read_text(), re.DOTALL)


def commands(block: str) -> list[tuple[str, str]]:
    """Each command of a block, with what the page says it prints."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def alike(expected: str, found: str) -> bool:
    """A line of three dots stands for any lines."""
    pieces = [re.escape(piece.strip("\n")) for piece in re.split(r"^\.\.\.$", expected, flags=re.MULTILINE)]
    return re.fullmatch(r"\s*" + r"\n.*?".join(pieces) + r"\s*", found, re.DOTALL) is not None


def apply(diff: str, text: str) -> str:
    """Each run of lines with a minus becomes the run with a plus behind it."""
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", diff, re.MULTILINE):
        before, after = (re.sub(r"^.", "", part, flags=re.MULTILINE) for part in (old, new))
        assert text.count(before) == 1, f"the engine does not hold once:\n{before}"
        text = text.replace(before, after)
    return text


def test_dots_stand_for_lines_and_nothing_else() -> None:
    assert alike("a\n...\nc\n", "a\nb\nb\nc\n") and alike("a\n...\n", "a\n\nb\n")
    assert not alike("a\n...\nc\n", "a\nb\n") and not alike("a\n", "a\nb\n")


def test_the_page_fixes_the_engine_it_shows() -> None:
    engine = (ROOT / "docs" / "tutorial" / "engine.py").read_text()
    assert len(engine.splitlines()) <= 100
    for kind, text in steps():
        if kind == "diff":
            compile(apply(text, engine), "engine.py", "exec")


@pytest.mark.slow
def test_the_tutorial(smollm2: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    shutil.copy(ROOT / "docs" / "tutorial" / "engine.py", tmp_path)
    (tmp_path / "model.gguf").symlink_to(smollm2)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, words in (("python", ""), ("assay", "-m assay ")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (bin_folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    codes = []
    for kind, text in steps():
        if kind == "diff":
            engine = tmp_path / "engine.py"
            engine.write_text(apply(text, engine.read_text()))
            continue
        for command, expected in commands(text):
            done = subprocess.run(command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert alike(expected, done.stdout), f"$ {command}\n{done.stdout}{done.stderr}"
            codes.append(done.returncode)
    assert codes.count(1) == 1 and codes[-1] == 0 and set(codes) == {0, 1}
