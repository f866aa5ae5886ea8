"""A list of a row's first and last values is split where the definition's row says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.matching.both_ends import split_both_ends
from assay.verify.dumps.observation import Observation
from tests import tiny

ROW = np.arange(1.0, 33.0)


@pytest.mark.parametrize(
    ("data", "first", "last"),
    [
        ((1, 2, 3, 30, 31, 32), 3, 3),
        ((1, 2, 32), 2, 1),
        ((1, 2, 3, 4), 4, 0),  # all of them are first values
        ((1, 2, 3, 29, 31, 32), 6, 0),  # neither
    ],
)
def test_a_list_is_split_at_the_place_where_the_end_begins(
    tmp_path: Path, data: tuple[float, ...], first: int, last: int
) -> None:
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf")))
    seen = Observation("l_out-0", "first", data, rows=(0, 1), template="layer # out")
    out, notes = split_both_ends([seen], model, lambda names: dict.fromkeys(names, ROW[None]), 1)
    assert [len(o.data) for o in out] == [n for n in (first, last) if n]
    assert bool(notes) == bool(last)
