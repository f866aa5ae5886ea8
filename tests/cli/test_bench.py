"""`assay bench` reports speeds with their spread, memory, and shares of the machine that are shares."""

from __future__ import annotations

import json
from pathlib import Path

from tests import tiny
from tests.cli.conftest import Assay

QUICK = ("-p", "8,40", "-d", "16", "-n", "4", "-r", "2")


def test_json(here: Assay, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "m.gguf", type="Q8_0", n_expert=4)
    done = here("bench", path, *QUICK, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert list(found["prefill"]) == ["8", "40"]
    for row in (*found["prefill"].values(), *found["decode"].values()):
        assert 0 < row["min"] <= row["tok_s"] <= row["max"]
        assert len(row["runs"]) == 2
    assert found["engine"]["name"] == "cpu"
    assert found["memory_after"]["weights"] <= 1.15 * path.stat().st_size
    machine = found["machine"]
    assert 0 < machine["prefill_share_of_dot_peak"]["40"] < 1
    assert 0 < machine["decode_share_of_read_bandwidth"]["16"] < 1
    # Half of the experts are read for a token.
    assert machine["bytes_per_token"] < path.stat().st_size


def test_text_and_faults(here: Assay, tmp_path: Path) -> None:
    path = tiny.make(tmp_path / "m.gguf")
    done = here("bench", path, *QUICK, "--engine", "reference")
    assert done.returncode == 0
    assert "prefill 40" in done.stdout
    assert "decode at 16" in done.stdout
    for wrong in (("-p", "0"), ("-p", "8,x"), ("-n", "0"), ("-c", "16")):
        done = here("bench", path, *QUICK, *wrong)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
