"""Progress on stderr: a bar that leaves nothing behind on a terminal, and a few lines in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from assay.cli import main
from assay.cli.progress import Bar, Lines, drawn
from assay.system.stages import StageStep, each, note, shown_by
from tests.cli.conftest import environment


def screen(raw: str) -> list[str]:
    """The lines that a terminal shows after these characters: carriage return and erase-to-end are obeyed."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[K|\r\n|\r|\n|[^\r\n\x1b]+|\x1b\[[0-9;?]*[A-Za-z]", raw):
        if part in ("\n", "\r\n"):
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif not part.startswith("\x1b"):
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


def on_terminal(*arguments: str | Path) -> str:
    """The screen of a terminal on which `assay` ran with a bar that does not wait half a second to appear."""
    code = (
        "import sys, assay.cli.progress as p; p._DELAY_S = p._PACE_S = -1; from assay.cli import main; sys.exit(main())"
    )
    screen_end, side = pty.openpty()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=side, stderr=side, env=environment()) as process:
        os.close(side)
        seen = b""
        while True:
            try:
                block = os.read(screen_end, 65536)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            seen += block
    os.close(screen_end)
    assert process.returncode == 0, seen
    return seen.decode()


def test_an_answer_is_not_glued_to_the_loading_bar(model: Path) -> None:
    raw = on_terminal("run", model, "-p", "Hello", "-n", "4", "--temp", "0")
    assert "loading tiny.gguf" in raw, "the bar was drawn"
    shown = screen(raw)
    assert not any("loading" in line or " of " in line for line in shown), shown
    plain = subprocess.run(
        [sys.executable, "-m", "assay", "run", model, "-p", "Hello", "-n", "4", "--temp", "0"],
        capture_output=True, env=environment(), stdin=subprocess.DEVNULL, check=True,
    ).stdout.decode()  # fmt: skip
    assert "\n".join(shown).rstrip() == plain.rstrip()


def test_results_of_a_check_stand_on_lines_of_their_own(model: Path) -> None:
    raw = on_terminal("check", model, "--engine", "cpu", "--lengths", "2")
    assert "comparing with the definition" in raw
    shown = [line for line in screen(raw) if line]
    assert all(line.startswith(("pass  ", "6 of 6 checks passed")) for line in shown), shown


def test_a_note_erases_the_bar_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.cli.progress._DELAY_S", -1)
    out = io.StringIO()
    with shown_by(Bar(out)):
        for i in each(range(4), "comparing", "nodes"):
            if i == 2:
                note("2 nodes differ")
    assert "comparing" in out.getvalue()
    assert screen(out.getvalue()) == ["2 nodes differ", ""]


def test_a_pipe_gets_a_line_of_long_work_and_none_of_short_work() -> None:
    out = io.StringIO()
    lines = Lines(out)
    for seconds in (0.0, 1.0, 1.9):
        lines.step(StageStep("comparing", 1, 10, "nodes", seconds))
    assert out.getvalue() == ""
    for done in range(2, 9):
        lines.step(StageStep("comparing", done, 10, "nodes", 2.0 + done))
    assert out.getvalue() == "comparing: 2 of 10 nodes, 0:16 left\n", "at most one line in ten seconds"


def test_a_bar_fits_its_terminal_and_obeys_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = drawn(StageStep("loading \x1b[31mevil.gguf", 5_000_000, 10_000_000, "B", 4.0))
    assert len(line) < 40 and "\x1b" not in line
    assert drawn(StageStep("asking", 0, 0, "", 65.0)) == "asking 1:05"


class Heard:
    """A listener that keeps the labels of stages with a total, and whether the last step of each was its end."""

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, int]] = {}

    def step(self, step: StageStep) -> None:
        self.stages[step.label] = (step.done, step.total)

    def end(self) -> None: ...

    def note(self, text: str) -> None: ...


LONG = {
    "kit MODEL -o OUT": ["measuring the noise of arithmetic", "computing probes"],
    "kit --score KIT KIT": ["grading"],
    "check MODEL --engine cpu --lengths 2": ["comparing with the definition"],
    "eval MODEL -f TEXT --window 32 --chunks 2": ["loading tiny.gguf", "scoring the text"],
    "imatrix MODEL -f TEXT -o OUT.gguf --window 32 --chunks 2": ["collecting importance"],
    "quantize MODEL OUT.gguf --type Q8_0": ["quantising to Q8_0"],
    "trace MODEL -p hello -o OUT.npz --engine reference": ["tracing on reference"],
    "diff MODEL OUT.npz": ["comparing with the definition"],
    "diff MODEL OUT.gguf": ["comparing weights", "comparing activations", "comparing logits"],
    "diagnose MODEL WRONG --html OUT.html": ["comparing with the definition", "writing the report"],
    "bisect OUT.npz WRONG -m MODEL": ["comparing with the definition"],
}


def test_every_long_verb_tells_its_stages(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "text.txt"
    words.write_text("hello world the word in on a hello world " * 12)
    for command, expected in LONG.items():
        if "WRONG" in command and not (tmp_path / "wrong.npz").exists():
            values = dict(np.load(tmp_path / "out.npz"))
            np.savez(tmp_path / "wrong.npz", **values | {"l_out-0": 2 * values["l_out-0"]})
        names = {
            "MODEL": model, "TEXT": words, "KIT": tmp_path / "out", "WRONG": tmp_path / "wrong.npz",
            **{f"OUT{end}": tmp_path / f"out{end}" for end in ("", ".gguf", ".npz", ".html")},
        }  # fmt: skip
        heard = Heard()
        monkeypatch.setattr("assay.cli.on_stderr", lambda heard=heard: heard)
        code = main([str(names.get(word, word)) for word in command.split()])
        assert code in (0, 1, 2 if "--score" in command else 0), (command, capsys.readouterr())
        assert set(expected) <= set(heard.stages), (command, heard.stages)
        assert all(0 <= done <= total for done, total in heard.stages.values() if total), (command, heard.stages)
