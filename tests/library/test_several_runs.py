"""Runs of one engine that differ: where first, by how much, and whether it follows the batch, the position or time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay import cli
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.gguf import open_file
from assay.library.several_runs import RunsComparison, compare_runs
from assay.models import load
from assay.verify.dumps.tracing import take_trace
from tests import tiny

IDS = [1, 260, 270, 12, 265, 7]
Change = Callable[[dict[str, np.ndarray]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    path = tiny.make(tmp_path_factory.mktemp("runs") / "m.gguf", n_embd=32, n_ff=32)
    model = load(open_file(path))
    trace = take_trace(ReferenceEngine(model), IDS, nodes="^(attn_norm|attn_out|l_out|result_output)")
    return path, {o.name: o.array().astype(np.float32) for o in trace.observations}


def written(folder: Path, run: tuple[Path, dict[str, np.ndarray]], changes: list[Change | None]) -> list[str]:
    paths = []
    for i, change in enumerate(changes):
        arrays = {name: value.copy() for name, value in run[1].items()} | {"tokens": np.array(IDS)}
        if change is not None:
            change(arrays)
        np.savez(folder / f"run{i}.npz", **arrays)
        paths.append(str(folder / f"run{i}.npz"))
    return paths


def at(name: str, *rows: int, size: float = 0.1) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name][list(rows) if rows else slice(None)] *= np.float32(1 + size)

    return change


def noisy(arrays: dict[str, np.ndarray]) -> None:
    """Another order of sums."""
    rng = np.random.default_rng(len(arrays))
    for name, value in arrays.items():
        if name not in ("tokens", "steps"):
            arrays[name] = value * (1 + 1e-7 * rng.standard_normal(value.shape)).astype(np.float32)


def test_runs_that_agree(run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    same = compare_runs(written(tmp_path, run, [None, None, None]))
    assert same and "3 runs agree at 7 nodes, 7 of them to the last digit" in repr(same)
    honest = compare_runs(written(tmp_path, run, [None, noisy, None]))
    assert honest and "times the honest noise of float32" in repr(honest)


FOLLOWS: dict[str, tuple[list[Change | None], str, str, str]] = {
    "one position": (
        [None, at("attn_out-0", 3), None, at("attn_out-0", 3, size=0.2)],
        "ABAC",
        "position",
        "on token 3",
    ),
    "a tail": ([None, None, None, at("l_out-0", 4, 5)], "AAAB", "position", "on tokens 4 to 5"),
    "once changed": ([None, None, at("l_out-0"), at("l_out-0")], "AABB", "time", "runs 1 to 2 agree, and runs 3 to 4"),
    "two buffers": ([None, at("l_out-0"), None, at("l_out-0")], "ABAB", "time", "return every 2 runs"),
    "a race": ([None, at("l_out-0"), None, None, at("l_out-0", size=0.3)], "ABAAC", "nothing", "a race, or memory"),
}


@pytest.mark.parametrize("case", FOLLOWS)
def test_what_it_follows(run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, case: str) -> None:
    changes, groups, follows, words = FOLLOWS[case]
    found = compare_runs(written(tmp_path, run, changes))
    assert not found and found.first is not None
    assert (found.first.groups, found.follows()) == (groups, follows) and words in repr(found)


def test_it_follows_the_batch(run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    def decoded(arrays: dict[str, np.ndarray]) -> None:
        arrays["steps"] = np.array([4, 1, 1])
        at("attn_out-1", 4, 5)(arrays)

    found = compare_runs(written(tmp_path, run, [None, decoded, None, decoded]))
    assert found.follows() == "batch" and "A is fed as 6; B is fed as 4+1+1" in repr(found)


def test_an_old_step_that_is_repeated_and_the_definition(
    run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    def repeated(arrays: dict[str, np.ndarray]) -> None:
        arrays["attn_out-1"][4] = arrays["attn_out-1"][3]

    found = compare_runs(written(tmp_path, run, [None, repeated, None]), run[0])
    assert found.first is not None and found.first.name == "attn_out-1" and found.first.stale == (4, 3)
    assert [words.split()[0] for _, words in found.judged] == ["right", "wrong"]


def test_not_a_number_in_one_run(run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    found = compare_runs(written(tmp_path, run, [None, at("l_out-1", 2, size=np.nan), None]))
    assert found.first is not None and found.first.name == "l_out-1" and "NaN or Inf in some runs" in repr(found)


def test_half_precision_has_its_own_noise(run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    def half(arrays: dict[str, np.ndarray]) -> None:
        for name in run[1]:
            arrays[name] = arrays[name].astype(np.float16).astype(np.float32)

    def nearly(arrays: dict[str, np.ndarray]) -> None:
        half(arrays)
        for name in run[1]:
            arrays[name] = (arrays[name] * np.float32(1 + 2**-11)).astype(np.float16).astype(np.float32)

    assert compare_runs(written(tmp_path, run, [half, nearly]))
    assert not compare_runs(written(tmp_path, run, [None, nearly]))


def test_the_command(
    run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = written(tmp_path, run, [None, at("l_out-0"), None])
    assert cli.main(["diff", "--runs", *paths, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["first"] == "l_out-0" and told["groups"] == "ABA" and not told["agree"]
    assert cli.main(["diff", str(run[0]), "--runs", paths[0], paths[2]]) == 0
    assert cli.main(["diff", "--runs", paths[0]]) == 2 and "2 to 64 runs" in capsys.readouterr().err
    assert cli.main(["diff", paths[0]]) == 2


def test_runs_of_other_tokens_are_refused(run: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    def other(arrays: dict[str, np.ndarray]) -> None:
        arrays["tokens"] = np.array([1, 2, 3, 4, 5, 6])

    with pytest.raises(AssayError, match="different tokens"):
        compare_runs(written(tmp_path, run, [None, other]))
    assert isinstance(compare_runs(written(tmp_path, run, [None]), repeat=2), RunsComparison)
