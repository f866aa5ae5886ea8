"""`assay chat` through a pipe, and in a terminal with a real Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from assay.cli.conversations import read_history, write_history
from tests import tiny
from tests.cli.conftest import Assay, environment

ARGS = ("--temp", "0", "-n", "6")


def talk(here: Assay, model: Path, text: str, *args: str) -> dict[str, Any]:
    done = here("chat", model, *ARGS, *args, "--json", stdin=text)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def asked(found: dict[str, Any]) -> list[str]:
    return [m["content"] for m in found["messages"] if m["role"] == "user"]


def test_a_line_is_a_turn(here: Assay, model: Path) -> None:
    found = talk(here, model, "hello\n\nworld\n", "--system", "be brief")
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert asked(found) == ["hello", "world"]
    assert [m["content"] for m in found["messages"] if m["role"] == "assistant"] == [
        turn["text"] for turn in found["turns"]
    ]
    assert found["turns"][1]["cached_tokens"] >= 32  # the first turn is not computed again
    shown = here("chat", model, *ARGS, "--system", "be brief", stdin="hello\n\nworld\n").stdout
    assert shown == "".join(turn["text"] + "\n" for turn in found["turns"])


def test_answers_do_not_depend_on_the_cache(here: Assay, model: Path) -> None:
    """The second answer equals that of a run that sees the whole conversation for the first time."""
    both = talk(here, model, "hello\nworld\n")
    again = talk(here, model, "hello\nother\n/regen\n/reset\nhello\nworld\n")
    assert again["messages"] == both["messages"]


def test_several_lines(here: Assay, model: Path) -> None:
    text = 'one\\\ntwo\n"""three\n/reset\n"""\n"""four"""\nend\\'
    assert asked(talk(here, model, text)) == ["one\ntwo", "three\n/reset", "four", "end"]


def test_commands(here: Assay, model: Path) -> None:
    found = talk(here, model, "a\n/reset\nb\n/system be kind\nc\n/regen\n/exit\nd\n")
    assert found["messages"][0] == {"role": "system", "content": "be kind"}
    assert asked(found) == ["c"]
    assert len(found["turns"]) == 4  # a, b, c, and c again
    assert found["turns"][2]["text"] == found["turns"][3]["text"]
    done = here("chat", model, *ARGS, stdin="/help\n/regen\n/zork\n/history\n")
    assert done.stdout == ""
    assert "/reset" in done.stderr
    assert "no message to answer yet" in done.stderr
    assert "/zork: no such command" in done.stderr


def test_faults_are_one_line(here: Assay, model: Path, base_model: Path) -> None:
    for args, stdin, message in (
        ((model,), "x" * 2000 + "\n", "do not fit the context"),
        ((model,), b"\xff\n", "not valid UTF-8"),
        ((base_model,), "hi\n", "has no chat template"),
    ):
        done = here("chat", *args, *ARGS, stdin=stdin)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr


def test_settings_while_it_goes_on(here: Assay, model: Path) -> None:
    plain = talk(here, model, "hello\n")
    shorter = talk(here, model, "/set predict 2\n/set parameter num_predict 3\n/set temperature 0\nhello\n")
    assert shorter["turns"][0]["tokens"] == 3
    assert plain["turns"][0]["tokens"] == 6
    done = here("chat", model, *ARGS, stdin="/set temp hot\n/set zork 1\n/set top_p 3\n/set\n/set stats on\nhi\n")
    assert "temp: expected a number (found 'hot')" in done.stderr
    assert "zork: no such setting" in done.stderr
    assert "top_p: expected a number from 0 to 1 (found 3)" in done.stderr
    assert "repeat_penalty" in done.stderr
    assert "ended by" in done.stderr
    assert "ended by" not in here("chat", model, *ARGS, stdin="hi\n").stderr


def test_conversations_are_kept_and_brought_back(
    here: Assay, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    whole = talk(here, model, "hello\nworld\n")
    talk(here, model, "hello\n/save greeting\n")
    assert talk(here, model, "/load greeting\nworld\n")["messages"] == whole["messages"]
    done = here("chat", model, *ARGS, stdin="/load\n/load zork\n/save ../x\n/laod greeting\n")
    assert done.stderr.splitlines() == [
        "greeting",
        "/load: zork: no such conversation; there are greeting",
        "/save: give a name of letters and digits, or a file.json",
        "/laod: no such command; did you mean /load?",
    ]
    (tmp_path / "bad.json").write_text("[1]")
    assert "is not a conversation" in here("chat", model, *ARGS, stdin=f"/load {tmp_path}/bad.json\n").stderr


class Terminal:
    """`assay chat` on a pseudo-terminal of its own, as a person has it."""

    def __init__(self, *args: str | Path, verb: str = "chat", **env: str) -> None:
        self.main, side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay", verb, *args],
            stdin=side,
            stdout=side,
            stderr=side,
            env={**environment(), "TERM": "dumb", **env},
            start_new_session=True,
        )
        os.close(side)
        self.seen = ""

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        """Read until the pattern comes, after what was waited for before."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            come = select.select([self.main], [], [], max(0.0, end - time.monotonic()))[0]
            assert come, f"{pattern!r} did not come: {self.seen[-500:]!r}"
            try:
                self.seen += os.read(self.main, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the process ended before {pattern!r}: {self.seen!r}") from None
        self.before = self.seen[: found.end()]
        self.seen = self.seen[found.end() :]

    def type(self, text: str) -> None:
        os.write(self.main, text.encode())

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C until it is heard: Python's readline sleeps through one that comes just before it waits for a key."""
        for seconds in (2, 4, 8):
            os.kill(self.process.pid, signal.SIGINT)
            with contextlib.suppress(AssertionError):
                self.wait_for(pattern, seconds)
                return
        raise AssertionError(f"{pattern!r} did not come after Ctrl-C: {self.seen[-500:]!r}")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_the_answer_and_keeps_the_session(tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "long.gguf", n_ctx=100_000)
    terminal = Terminal(path, "--temp", "2", "--seed", "1", "--ignore-eos", "-c", "0")
    terminal.wait_for("Ctrl-C stops an answer")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("hello")
    terminal.wait_for(r"[^\s]{3}")  # the answer has begun
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("ended by interrupted")
    terminal.wait_for("> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    terminal.interrupt("> ")  # at the prompt it only drops the line
    terminal.type("/history\n")
    terminal.wait_for("user: hello\r?\nassistant: .")  # the partial answer is part of the conversation
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=20) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_run_without_a_prompt_converses_and_remembers_what_was_typed(model: Path, tmp_path: Path) -> None:
    for key, seen in (("hello there", "hello there"), ("\x1b[A\x1b[A", "hello there")):  # later: cursor up
        terminal = Terminal(model, *ARGS, verb="run", ASSAY_HOME=str(tmp_path), TERM="xterm")
        terminal.wait_for("lists the commands")
        terminal.wait_for("> ")
        terminal.type(key)
        terminal.wait_for(seen)
        terminal.type("\n")
        terminal.wait_for("> ")
        terminal.type("/bye\n")
        assert terminal.process.wait(timeout=20) == 0
    assert (tmp_path / "chat_history").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_paste_of_several_lines_is_one_turn_and_is_recalled_whole(model: Path, tmp_path: Path) -> None:
    readline = pytest.importorskip("readline")
    if "libedit" in (readline.__doc__ or ""):
        pytest.skip("libedit has no bracketed paste")
    paste = "\x1b[200~first line\rsecond line\x1b[201~\r"
    for key in (paste, "\x1b[A\x1b[A\x1b[A\r"):  # later: cursor up, over /bye and /history
        terminal = Terminal(model, *ARGS, ASSAY_HOME=str(tmp_path), TERM="xterm")
        terminal.wait_for("lists the commands")
        terminal.wait_for("> ")
        terminal.type(key)
        terminal.wait_for("second line")
        terminal.wait_for("> ")
        terminal.type("/history\r")
        terminal.wait_for(r"user: first line\r?\nsecond line\r?\nassistant: ")
        terminal.wait_for("> ")
        terminal.type("/bye\r")
        assert terminal.process.wait(timeout=20) == 0
    kept = read_history(tmp_path / "chat_history")
    assert kept == ["first line\nsecond line", "/history", "/bye", "first line\nsecond line", "/history", "/bye"]


def test_the_history_file_takes_any_text(tmp_path: Path) -> None:
    path = tmp_path / "history"
    entries = ["plain", "two\nlines", '"quoted"', '"not json', "[1]", "日本語\n🙂", "\\n is no line end"]
    write_history(path, entries)
    assert read_history(path) == entries
    path.write_bytes(b'ok\n"broken\n\xff\xfe\n\n[[[[\n"\\ud800"\n')
    assert read_history(path)[:2] == ["ok", '"broken']
    assert read_history(tmp_path / "missing") == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_an_answer_breaks_at_words_on_a_terminal(model: Path, tmp_path: Path) -> None:
    grammar = 'root ::= "word words hello world the a in on er hello world the a word words"'
    for more, broken in ((["--no-wrap"], False), ([], True)):
        terminal = Terminal(model, "-p", "x", "--grammar", grammar, *more, verb="run", TERM="xterm", COLUMNS="30")
        terminal.wait_for("words\r\n")
        lines = terminal.before.removesuffix("\r\n").split("\r\n")
        assert (len(lines) > 1) == broken
        terminal.process.wait(timeout=20)
