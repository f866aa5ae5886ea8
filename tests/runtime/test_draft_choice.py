"""`--draft auto`: the fastest of several ways to draft is kept, the others are closed, and no token changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import assay
from assay.runtime import draft_choice
from assay.runtime.speculation import Drafter, Speculator
from tests import draft_files


class Drafts(Drafter):
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({"none": 10.0, "ngram": 10.2, "mtp": 10.3, "small": 9.0}, "none"),
        ({"none": 10.0, "ngram": 14.0, "mtp": 14.3, "small": 9.0}, "ngram"),
        ({"none": 10.0, "ngram": 10.0, "mtp": 15.0, "small": 15.1}, "mtp"),
        ({"none": 10.0, "ngram": 10.0, "mtp": 15.0, "small": 20.0}, "small"),
    ],
)
def test_a_way_that_costs_more_must_be_faster(rates: dict[str, float], best: str) -> None:
    made = {name: Speculator(Drafts()) for name in rates}
    seen = iter(rates.values())
    anything: Any = None
    found, line = draft_choice.choose(
        anything, anything, {name: lambda name=name: made[name] for name in rates}, lambda *_: next(seen)
    )
    assert found is made[best] and line.startswith(f"--draft auto: {best} (")
    for name, speculator in made.items():
        assert isinstance(speculator.drafter, Drafts) and speculator.drafter.closed == (name != best)


def test_the_answer_is_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way is made to win once, on a file with a head and beside a draft model."""
    path = draft_files.make(tmp_path / "hybrid.gguf")
    given: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temp": 0.9, "seed": 4}
    with assay.load(path, engine="cpu", threads=1, lookahead=False) as plain:
        expected = plain.generate("hello hello", **given).ids
    for best in ("none", "ngram", "mtp", str(path)):
        order = iter(("none", "ngram", "mtp", str(path)))
        rates = lambda *a, best=best, order=order, timed=draft_choice.tokens_per_second: (  # noqa: E731
            timed(*a) * 0 + (2.0 if next(order) == best else 1.0)
        )
        with monkeypatch.context() as patch:
            patch.setattr(draft_choice, "tokens_per_second", rates)
            with assay.load(path, engine="cpu", threads=1, draft=f"auto:{path}") as model:
                assert model.opened.draft_choice.startswith(f"--draft auto: {best} (")
                assert model.generate("hello hello", **given).ids == expected
