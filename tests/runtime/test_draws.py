"""Random numbers by counter: NumPy's Philox is the witness, and every position stands alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.runtime.draws import SEEDS, Draws, fresh_seed, philox, seed_of

words = st.integers(0, 2**64 - 1)


@given(words, words)
def test_the_words_are_numpys(seed: int, position: int) -> None:
    """NumPy counts up before it makes a block, so its counter is one behind."""
    counter = ((1 << 256) - 1 if position == 0 else position - 1) % (1 << 256)
    witness = np.random.Philox(key=seed, counter=counter).random_raw(4)
    assert philox((seed, 0), (position, 0, 0, 0)) == tuple(int(word) for word in witness)


def test_the_papers_own_vectors() -> None:
    """Known answers that come with the Random123 distribution, for Philox4x64-10."""
    ones = 2**64 - 1
    assert philox((0, 0), (0, 0, 0, 0)) == (
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    )  # fmt: skip
    assert philox((ones, ones), (ones, ones, ones, ones)) == (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    )  # fmt: skip


@given(words, st.integers(0, 2**40))
def test_a_draw_depends_on_nothing_but_seed_and_position(seed: int, position: int) -> None:
    first = Draws(seed, position).random()
    Draws(seed, position + 1).random()
    assert Draws(seed, position).random() == first
    assert 0 <= first < 1


def test_the_numbers_are_spread_evenly_over_positions_and_seeds() -> None:
    for numbers in ([Draws(1, i).random() for i in range(4000)], [Draws(i, 1).random() for i in range(4000)]):
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert ((counts - 200) ** 2 / 200).sum() < 45  # chi-square with 19 degrees: one in a thousand is above 43.8


def test_neighbouring_seeds_are_strangers() -> None:
    a, b = ([Draws(seed, i).random() for i in range(2000)] for seed in (5, 6))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.08


def test_seeds_of_several_answers() -> None:
    assert [seed_of(7, i) for i in range(3)] == [7, 8, 9]
    assert seed_of(SEEDS - 1, 1) == 0
    assert seed_of(None, 3) is None
    assert fresh_seed() != fresh_seed()
