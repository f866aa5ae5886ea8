"""The order of a rotary head, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.dumps.observation import Observation, from_hf, hf_order, measure, to_hf


@given(st.integers(1, 40))
def test_hf_order_is_a_permutation_with_an_inverse(half: int) -> None:
    x = np.arange(2 * half * 3.0).reshape(1, -1)
    assert sorted(hf_order(2 * half)) == list(range(2 * half))
    assert np.array_equal(from_hf(to_hf(x, 2 * half), 2 * half), x)


def test_a_printed_standard_deviation_is_numpys_or_torchs() -> None:
    """They divide by n and by n - 1; another number is compared with the nearer one."""
    x = np.random.default_rng(3).normal(size=(1, 40))
    for printed, expected in ((x.std(), x.std()), (x.std(ddof=1), x.std(ddof=1)), (2.0, x.std(ddof=1))):
        assert measure(Observation("embd", "std", float(printed)), x, 0)[0] == pytest.approx(expected, rel=1e-14)
