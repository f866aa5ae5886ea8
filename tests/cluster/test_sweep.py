"""Sweeps: the same bits on one process and on many, killed half way and resumed."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay import cli
from assay.cli.cluster_options import sweep_progress
from assay.cluster.sweep import Task, WorkerLost, sweep
from assay.cluster.worker_pool import LocalPool, ProcessWorker, worker_pool
from assay.errors import AssayError
from tests import planting
from tests.synthetic import make_kquant
from tests.tiny import make

HERE = "tests.cluster.test_sweep"


def prepare(shared: Mapping[str, Any], where: Mapping[str, Any]) -> dict[str, Any]:
    with open(where["log"], "a") as log:
        print("prepared", file=log)
    return {**shared, **where}


def square(shared: dict[str, Any], given: Mapping[str, Any]) -> float:
    with open(shared["log"], "a") as log:
        print(given["n"], file=log)
    if given["n"] == shared.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    if given["n"] == shared.get("wrong"):
        raise AssayError(f"{given['n']}: is wrong")
    return given["n"] * 0.1


def tasks(tmp_path: Path, n: int = 12, **shared: Any) -> list[Task]:
    where = {"log": str(tmp_path / "log")}
    return [Task(f"{HERE}:square", shared, {"n": i}, where, f"number {i}") for i in range(n)]


def lines(tmp_path: Path) -> list[str]:
    return (tmp_path / "log").read_text().split()


def test_results_come_in_order_and_are_kept(tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    expected = [i * 0.1 for i in range(12)]
    assert (
        sweep(tasks(tmp_path), LocalPool(3), tmp_path, lambda done, total, who: shown.append((done, total))) == expected
    )
    assert lines(tmp_path).count("prepared") <= 3 and sorted(set(shown)) == [(i, 12) for i in range(13)]
    (tmp_path / "log").unlink()
    assert sweep(tasks(tmp_path, 13), LocalPool(1), tmp_path) == [*expected, 12 * 0.1]
    assert lines(tmp_path) == ["prepared", "12"], "what was there is not computed again"
    for file in tmp_path.rglob("*.json"):
        file.write_text("{")
        break
    assert sweep(tasks(tmp_path), LocalPool(1), tmp_path) == expected, "a torn result is computed again"


def test_the_bar_has_a_line_for_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show = sweep_progress()
    show(0, 4, {"node b": "windows 16 to 31", "node a": "windows 0 to 15"})
    first = terminal.getvalue()
    assert first.split("\n")[1:] == ["  node a: windows 0 to 15", "  node b: windows 16 to 31", ""]
    assert "0 of 4" in first.split("\n")[0]
    show(4, 4, {"node a": "windows 48 to 63"})
    assert terminal.getvalue().removeprefix(first) == "\r\033[3A\033[J", "it leaves nothing behind"


def test_a_task_that_kills_is_not_tried_for_ever(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match=r"number 5: 3 workers died while computing it"):
        sweep(tasks(tmp_path, deadly=5), LocalPool(2), tmp_path)
    assert lines(tmp_path).count("5") == 3
    with pytest.raises(AssayError, match=r"^7: is wrong$"):
        sweep(tasks(tmp_path, wrong=7), LocalPool(2), tmp_path)


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    class Mortal(LocalPool):
        deaths = 0

        def start_worker(self, number: int) -> ProcessWorker:
            worker = super().start_worker(number)
            inner, n = worker.ask, 0

            def ask(task: Mapping[str, Any]) -> Any:
                nonlocal n
                n += 1
                if n == 3 and number == 0 and self.deaths < 2:
                    self.deaths += 1
                    worker.process.kill()
                return inner(task)

            worker.ask = ask  # type: ignore[method-assign]
            return worker

    assert sweep(tasks(tmp_path), Mortal(2), tmp_path) == [i * 0.1 for i in range(12)]


def test_addresses() -> None:
    assert worker_pool("local:3").n == 3
    with pytest.raises(AssayError, match="local:N"):
        worker_pool("local:x")
    with pytest.raises(WorkerLost):
        worker = ProcessWorker("p")
        worker.process.kill()
        worker.ask({})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sweep")
    text = folder / "text.txt"
    text.write_text("".join(f"hello the world on and on in a word {i}\n" for i in range(60)))
    return make(folder / "m.gguf", n_ctx=256), text


def _eval(model: tuple[Path, Path], capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    path, text = model
    assert cli.main(["eval", str(path), "-f", str(text), "--window", "32", "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {key: found[key] for key in ("perplexity", "nll", "tokens", "windows", "worst")}


def test_eval_has_the_bits_of_one_process(
    model: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = _eval(model, capsys)
    spread = ["--cluster", "local:4", "--results", str(tmp_path)]
    assert _eval(model, capsys, *spread) == one
    results = sorted(tmp_path.rglob("*.json"))
    assert len(results) > 3
    for file in results[::2]:  # half of it was lost
        file.unlink()
    assert _eval(model, capsys, *spread) == one
    based = ["--kl", str(model[0]), "--base-engine", "reference"]
    assert _eval(model, capsys, *based, "--chunks", "20") == _eval(model, capsys, *based, "--chunks", "20", *spread)


def test_questions_have_the_answers_of_one_process(
    model: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [{"query": f"hello the {i}", "choices": ["word", "world on", "in a word"], "gold": i % 3} for i in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = []
    for more in ([], ["--cluster", "local:2", "--results", str(tmp_path / "sweep")]):
        assert cli.main(["eval", str(model[0]), "--choices", str(file), "--json", *more]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] and len(list((tmp_path / "sweep").rglob("*.json"))) == 2


@pytest.mark.slow
def test_check_and_kit(model: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, spread = str(model[0]), ["--cluster", "local:2", "--results", str(tmp_path / "sweep")]

    def out(*args: str) -> tuple[int, dict[str, Any]]:
        code = cli.main([*args, "--json"])
        return code, json.loads(capsys.readouterr().out)

    assert out("check", path, "--lengths", "1,5") == out("check", path, "--lengths", "1,5", *spread)
    kit, results = tmp_path / "kit", tmp_path / "results"
    cli.main(["kit", path, "-o", str(kit)])
    results.mkdir()
    (results / "text.json").write_text('{"tokenizer": [[1]]}')
    capsys.readouterr()
    graded = out("kit", "--score", str(kit), str(results))
    assert graded == out("kit", "--score", str(kit), str(results), *spread) and graded[0] == 1


@pytest.mark.slow
def test_diagnose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten values and an rms of every node: each hypothesis is a run, and the workers share them."""
    path = make_kquant(tmp_path / "k.gguf")
    case = planting.second(path, "rope-type")
    (tmp_path / "dump").mkdir()
    dump = planting.last(case, tmp_path / "dump", planting.TOKENS, planting.STEPS)
    spread = ["--cluster", "local:2", "--results", str(tmp_path / "sweep")]
    alone = cli.main(["diagnose", str(path), str(dump), "--json"]), json.loads(capsys.readouterr().out)
    shared = cli.main(["diagnose", str(path), str(dump), "--json", *spread]), json.loads(capsys.readouterr().out)
    assert shared == alone
    assert list((tmp_path / "sweep").rglob("*.json")), "something was done elsewhere"
