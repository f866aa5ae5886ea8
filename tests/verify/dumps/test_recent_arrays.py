"""The cache of arrays that were read last: each is read once while there is room, and none can be changed."""

from __future__ import annotations

import numpy as np
import pytest

from assay.verify.dumps.formats.recent_arrays import RecentArrays


def test_an_array_is_read_once_while_there_is_room() -> None:
    recent, read = RecentArrays(room=3 * 80), list[str]()

    def get(name: str, values: int = 10) -> float:
        def now() -> np.ndarray:
            read.append(name)
            return np.full(values, ord(name), np.float64)

        return float(recent.get(name, now)[0])

    assert [get(name) for name in "abcabc"] == [97, 98, 99, 97, 98, 99] and read == [*"abc"]
    get("a")
    get("d")  # evicts b, which was not asked for the longest
    assert [get(name) for name in "acd"] == [97, 99, 100] and read == [*"abcd"]
    get("e", values=31)  # larger than the room: read each time, and nothing is evicted for it
    get("e", values=31)
    assert [get(name) for name in "acd"] == [97, 99, 100] and read == [*"abcdee"]
    assert get("b") == 98 and read == [*"abcdeeb"]


def test_a_kept_array_cannot_be_changed() -> None:
    found = RecentArrays().get("x", lambda: np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
