"""What a dump says against itself."""

from __future__ import annotations

import pytest

from assay.verify.dumps.contradictions import contradictions
from assay.verify.dumps.observation import Dump, Observation


def say(**kinds: object) -> Dump:
    return Dump("x", observations=tuple(Observation("l_out-0", k, v, foreign=k) for k, v in kinds.items()))


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"min": 1.0, "max": 0.5}, "the min 1 exceeds the max 0.5"),
        ({"mean": 2.0, "rms": 1.0}, "the mean 2 exceeds the rms 1"),
        ({"rms": 3.0, "min": -1.0, "max": 2.0}, "the rms 3 exceeds the largest value 2"),
        ({"first": (0.1, -7.0), "min": -6.0}, "below the minimum of -6"),
        ({"values": [[1.0, 2.0]], "sum": 4.0}, "the sum is said to be 4 but the values give 3"),
    ],
)
def test_contradictions(kinds: dict[str, object], words: str) -> None:
    (line,) = contradictions(say(**kinds))
    assert words in line


def test_consistent_statements_are_no_contradiction() -> None:
    assert not contradictions(say(min=-1.0, max=2.0, mean=0.1, rms=1.0, first=(0.5, 2.0), sum=3.0))
