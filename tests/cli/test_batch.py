"""`assay run --batch`: many prompts in, answers in their order, and what happens to what cannot be answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Assay, environment

LINES: list[Any] = [
    "hello the world",
    {"id": "second", "prompt": "on and on", "temperature": 0, "max_tokens": 3},
    {"id": 3, "messages": [{"role": "user", "content": "hello"}], "max_new_tokens": 5, "seed": 9},
    {"id": None, "ids": [5, 6, 7]},
    {"prompt": [5, 6, 7], "logprobs": 1},
]
OPTIONS = ("-n", "8", "--seed", "4", "--temp", "1.5", "--ignore-eos")


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "prompts.jsonl", LINES)


def test_answers_are_those_of_single_runs(here: Assay, model: Path, prompts: Path, tmp_path: Path) -> None:
    done = here("run", model, "--batch", prompts, "-o", tmp_path / "out.jsonl", *OPTIONS)
    assert done.returncode == 0, done.stderr
    found = answers(tmp_path / "out.jsonl")
    assert [(a["index"], a["id"]) for a in found] == [(0, None), (1, "second"), (2, 3), (3, None), (4, None)]
    assert [a["tokens"] for a in found] == [8, 3, 5, 8, 8]
    alone = json.loads(here("run", model, "-p", "hello the world", "--json", *OPTIONS).stdout)
    assert (found[0]["ids"], found[0]["text"], found[0]["seed"]) == (alone["ids"], alone["text"], 4)
    by_ids = json.loads(here("run", model, "--ids", "5,6,7", "--json", *OPTIONS).stdout)
    assert found[3]["ids"] == found[4]["ids"] == by_ids["ids"]
    assert len(found[4]["logprobs"][0]["top"]) == 1
    assert found[2]["seed"] == 9


def test_through_pipes(here: Assay, model: Path, prompts: Path) -> None:
    done = here("run", model, "--batch", "-", "-o", "-", *OPTIONS, stdin=prompts.read_bytes() + b"\n  \n")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == [0, 1, 2, 3, 4]
    assert here("run", model, "--batch", prompts, *OPTIONS).stdout == done.stdout


def test_lines_that_cannot_be_answered_keep_their_place(here: Assay, model: Path, tmp_path: Path) -> None:
    bad = [b"{", b"[1]", b"\xff", b'"\\ud800"', b"1", b"{}", b'{"id": 7, "prompt": "a", "ids": [1]}', b'{"ids": 5}',
           b'{"prompt": "a", "colour": 1}', b'{"ids": [99999]}', b'{"prompt": {"a": 1}}', b'{"messages": "hi"}',
           b'{"messages": []}', b'{"prompt": "a", "params": 1}', b"[" * 9999, b'{"ids": ["a"]}',
           b'{"prompt": "a", "top_p": 7}', b'{"messages": [{"role": 5}]}', b'{"prompt": "a", "stop": 5}',
           b'{"prompt": "a", "logprobs": "x"}', b'{"prompt": "a", "logit_bias": {"x": 1}}',
           b'{"prompt": "a", "grammar": 5}', b'{"prompt": "a", "json_schema": 5}', b'{"prompt": "a", "seed": -5}',
           b'{"prompt": "a", "logit_bias": 5}', b'{"prompt": "a", "dry_breakers": 5, "dry_multiplier": 1}']  # fmt: skip
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join([*bad, b'"fine"']))
    done = here("run", model, "--batch", path, "-o", tmp_path / "out.jsonl", *OPTIONS)
    assert done.returncode == 2
    assert f"{len(bad)} of {len(bad) + 1} lines could not be answered" in done.stderr
    assert "Traceback" not in done.stderr
    found = answers(tmp_path / "out.jsonl")
    assert [bool(a.get("error")) for a in found] == [True] * len(bad) + [False]
    assert found[6]["id"] == 7
    assert len(found[-1]["ids"]) == 8


def test_resumed_at_every_byte_of_its_output(here: Assay, model: Path, prompts: Path, tmp_path: Path) -> None:
    """Wherever a run was cut off, the file ends up the same."""
    out = tmp_path / "out.jsonl"
    assert here("run", model, "--batch", prompts, "-o", out, *OPTIONS).returncode == 0
    whole = out.read_bytes()
    for cut in [0, 1, *range(50, len(whole), 97), len(whole) - 1, len(whole)]:
        out.write_bytes(whole[:cut])
        done = here("run", model, "--batch", prompts, "-o", out, "--resume", "--json", *OPTIONS)
        assert done.returncode == 0, done.stderr
        assert out.read_bytes() == whole, f"cut at {cut}"
        assert json.loads(done.stdout)["skipped"] == whole[:cut].count(b"\n")
    out.unlink()
    assert here("run", model, "--batch", prompts, "-o", out, "--resume", *OPTIONS).returncode == 0
    assert out.read_bytes() == whole


def test_a_file_of_something_else_is_not_written_over(here: Assay, model: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for content, message in (
        ("precious notes\n", "line 1 is not an answer of a batch"),
        ('{"index": 0, "id": "other"}\n', "answers 'other' (expected None)"),
        ("".join(f'{{"index": {i}, "id": {json.dumps(name)}}}\n' for i, name in
                 enumerate([None, "second", 3, None, None, None])), "more answers than there are prompts"),
    ):  # fmt: skip
        out.write_text(content)
        done = here("run", model, "--batch", prompts, "-o", out, "--resume", *OPTIONS)
        assert done.returncode == 2
        assert message in done.stderr
        assert out.read_text() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "x", "-p", "hi"), "not allowed with argument"),
        (("-p", "hi", "-o", "x"), "-o: needs --batch"),
        (("-p", "hi", "--resume"), "--resume: needs --batch"),
        (("--batch", "-", "--resume"), "--resume: needs the file"),
        (("--batch", "no/such/file"), "no/such/file: No such file"),
    ],
)
def test_arguments_that_do_not_go_together(here: Assay, model: Path, arguments: tuple[str, ...], message: str) -> None:
    done = here("run", model, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_ctrl_c_keeps_what_is_written(model: Path, tmp_path: Path) -> None:
    """Thousands of lines, a few of which are answered when the signal comes; the run can be resumed."""
    path, out = write(tmp_path / "many.jsonl", ["hello"] * 20_000), tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "run", str(model), "--batch", str(path), "-o", "-", *OPTIONS],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), bufsize=0,  # `communicate` sees no buffer
    )  # fmt: skip
    assert process.stdout
    first = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    out.write_bytes(b"".join(first) + rest)
    found = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [a["index"] for a in found] == list(range(len(found)))
    assert 3 <= len(found) < 20_000
