"""A short run of every fuzzer: what `make fuzz` does for minutes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.__main__ import _one
from fuzz.readers import REPLIES, Reader, readers, temporary

NAMES = ["gguf", "split", "dump", "log", "template", "text", "reply", "listing", "request", "body", "grammar", "frame"]
NAMES += ["mmproj", "picture"]


@pytest.fixture(scope="module")
def all_readers() -> Iterator[dict[str, Reader]]:
    with temporary() as folder:
        yield readers(Path(folder))


@pytest.mark.parametrize("name", NAMES)
def test_nearly_right_inputs_are_read_or_refused(all_readers: dict[str, Reader], name: str) -> None:
    if name not in all_readers:
        pytest.skip("the extra `vision` is not installed")
    counts: Counter[str] = Counter()
    rng = random.Random(f"tests/{name}")
    for _ in range(60):
        _one(all_readers[name], rng, counts)
    assert counts["inputs"] == 60
    assert not [key for key in counts if key.startswith("fault")], counts


def test_a_fault_is_seen() -> None:
    """The fuzzer itself: an exception that is no refusal counts as a fault."""
    counts: Counter[str] = Counter()
    _one(Reader("x", lambda _: 0, lambda x: 1 // x), random.Random(1), counts)  # type: ignore[arg-type,return-value]
    assert counts["inputs"] == 1 and counts["fault ZeroDivisionError"] == 1


def test_replies_without_a_mutation_are_taken(all_readers: dict[str, Reader]) -> None:
    """Otherwise every reply is refused at its first field, and the rest of the client is never reached."""
    for i, reply in enumerate(REPLIES):
        all_readers["reply"].read((i, reply))
