"""A folder that holds one log is read as that log; of several the user names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.verify.dumps.load import read_dump

LOG = "tokens: [1, 2]\nlayer 0 attn_out: [0.25, -1.5, 3.0]\n"


def test_the_one_log_of_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.txt").write_text(LOG)
    (tmp_path / "engine.c").write_text("int main() {}\n")
    found = read_dump(tmp_path)
    assert found.tokens == (1, 2) and len(found.observations) == 1
    assert found.observations == read_dump(tmp_path / "run.txt").observations


def test_of_several_logs_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a.log", "b.txt"):
        (tmp_path / name).write_text(LOG)
    with pytest.raises(AssayError, match=r"holds 2 logs \(a\.log, b\.txt\); name the one to read"):
        read_dump(tmp_path)
