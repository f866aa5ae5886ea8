"""No request holds up the others: `/health` and an honest stream go on while the worst of each kind arrive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn")

from bench import stall
from bench.soak import Target

# What held the event loop or the interpreter's lock for seconds before, or would if its limit did not hold.
WORST = (
    "490,000 texts", "60,000 texts", "hidden arrays", "300,000 fractions", "260,000 ids to read",
    "arguments of a million arrays", "30,000 biases", "a whole trace", "scores of prompts", "64 large tools",
    "unread streams",
)  # fmt: skip
LONG = 2.0  # seconds. Each of them took 3 to 10 s; the figure of docs/reference/security.md is far below


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    found = stall.serve(tmp_path_factory.mktemp("stall"))
    yield found
    assert found.end() == 0


def test_the_worst_requests_stall_nobody(target: Target) -> None:
    rows = stall.measure(target, list(WORST), 0.4)
    for row in rows:
        for idle, busy in zip(row.idle, row.busy, strict=True):
            assert busy < max(LONG, 6 * idle), str(row)
    assert target.memory() < 600 << 20


def test_every_kind_of_request_is_in_the_corpus() -> None:
    """Each route that takes a body is attacked by some kind."""
    from fuzz.requests import EVERYWHERE

    from assay.serve.api.routes import ROUTES

    assert {route.path for route in ROUTES if route.request} <= set(EVERYWHERE)


def test_bodies_of_the_corpus_fit_the_limit_on_bytes() -> None:
    """Otherwise a kind would only show that long bodies are refused."""
    import random

    from fuzz.requests import KINDS

    from assay.serve.limits import ServerLimits

    for name, make in KINDS.items():
        assert len(make(random.Random(1))[1]) <= ServerLimits().body, name
