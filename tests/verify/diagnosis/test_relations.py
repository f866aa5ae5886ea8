"""Simple relations between what was found and what was expected."""

from __future__ import annotations

import numpy as np

from assay.verify.diagnosis.relations import describe, extent, extent_of_rows


def test_relations() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 64))
    w = 0.5 + rng.random(64)

    def kinds(y: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> set[str]:
        return {r.kind for r in describe(y, x, weight=w)}

    assert "ratio" in kinds(1.37 * x)
    assert "row ratio" in kinds(x * np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert "weight" in kinds(x / w) and "weight" in kinds(x * w)
    assert "offset" in kinds(x + 0.5)
    assert "permuted" in kinds(x[:, ::-1])
    assert "zero tail" in kinds(np.where(np.arange(64) < 40, x, 0))
    assert "first block" in kinds(np.where(np.arange(64) < 32, x, -x))
    assert "position 0" in kinds(np.where(np.arange(4)[:, None] == 0, x, -x))
    assert "rows moved" in kinds(x[[0, 0, 1, 2]])
    assert not kinds(rng.standard_normal((4, 64)))


def test_where_nothing_simple_holds_the_affected_part_is_said() -> None:
    rng = np.random.default_rng(3)
    right = rng.standard_normal((6, 4, 8))
    found = right.copy()
    found[3:, [0, 2], 4:] += rng.standard_normal((3, 2, 4))
    said = extent(found, right)
    assert said is not None
    assert said.text.startswith("differs in rows 3 to 5 of 6, heads 0, 2 of 4, values of each 4 to 7 of 8; ")
    assert extent(right, right) is None


def test_observed_rows_that_differ_are_said() -> None:
    said = extent_of_rows({7: False, 8: False, 9: True}, np.array([1.0, -2.0, 3.0]), np.array([2.0, -4.0, 6.0]))
    assert said is not None
    assert said.text.startswith("differs in rows 9 of the observed 7 to 9; the correlation with the right values is 1 ")
    assert said.text.endswith("the size 0.5 times theirs")
