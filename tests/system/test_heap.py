"""Freed memory is kept while something computes, and given back by the outermost."""

from __future__ import annotations

from typing import Any

import pytest

from assay.system import heap


class Library:
    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def mallopt(self, option: int, value: int) -> int:
        self.calls.append((option, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.calls.append((pad,))
        return 1


def test_only_the_outermost_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(heap, "_glibc", lambda: library)
    with heap.kept():
        with heap.kept():
            pass
        assert (0,) not in library.calls
    assert library.calls[-1] == (0,)


@pytest.mark.parametrize("found", [heap._glibc(), None])
def test_here_and_without_glibc(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda: found)
    with pytest.raises(ZeroDivisionError), heap.kept():
        _ = 1 / len([])
    assert heap._depth == 0
