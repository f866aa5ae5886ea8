"""The order of a rotary head, and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.dumps.observation import from_hf, hf_order, to_hf


@given(st.integers(1, 40))
def test_hf_order_is_a_permutation_with_an_inverse(half: int) -> None:
    x = np.arange(2 * half * 3.0).reshape(1, -1)
    assert sorted(hf_order(2 * half)) == list(range(2 * half))
    assert np.array_equal(from_hf(to_hf(x, 2 * half), 2 * half), x)
