"""Simple relations between what was found and what was expected."""

from __future__ import annotations

import numpy as np

from assay.verify.diagnosis.relations import describe


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
