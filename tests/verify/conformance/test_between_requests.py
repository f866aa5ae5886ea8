"""Engines with a fault that only shows between requests, one planted in each: the check finds it and says which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.contract import Array, Chunk, Emit, Output
from assay.engines.cpu import CpuEngine
from assay.engines.reference import ReferenceEngine, _PagedCache
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.conformance.between_requests import PAGES, in_company
from tests.models import others
from tests.tiny import make

KINDS = ("lfm2", "qwen35", "mamba2", "rwkv6")
TOKENS = [int(i) for i in np.random.default_rng(2).integers(0, others.N_VOCAB, 40)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("company")
    for name in KINDS:
        others.make(name, folder / f"{name}.gguf")
    make(folder / "llama.gguf")
    return {name: load(open_file(folder / f"{name}.gguf")) for name in (*KINDS, "llama")}


def asked(engine: Any, model: Model) -> dict[str, str]:
    """The situations that fail, with what is said."""
    return {row.name: row.detail for row in in_company(engine, model, TOKENS) if not row.passed}


class Pads(ReferenceEngine):
    """A batch is padded to its longest chunk, and the rows of padding enter the states of the others."""

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        found = super().forward(batch, keep, emit)
        longest = max(chunk.n_tokens for chunk in batch)
        for chunk in batch:
            if rest := longest - chunk.n_tokens:
                table = np.append(chunk.pages, [self.n_pages - 2, self.n_pages - 1]).astype(np.int32)
                super().forward([Chunk(np.zeros(rest, np.int32), chunk.end, table, state_slot=chunk.state_slot)])
                self._lengths[chunk.state_slot] = chunk.end
        return found


class Mixes(ReferenceEngine):
    """The states of a batch are written one place too far: each sequence gets its neighbour's."""

    def forward(self, batch: Sequence[Chunk], keep: Collection[str] = (), emit: Emit | None = None) -> list[Output]:
        found = super().forward(batch, keep, emit)
        slots = [chunk.state_slot for chunk in batch]
        states = [self._states[slot] for slot in slots]
        self._states.update(zip(slots, [*states[1:], states[0]], strict=True))
        return found


class Keeps(_PagedCache):
    def load(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.state[name] if name in self.state else np.zeros(shape, dtype)


@pytest.mark.parametrize("name", [*KINDS, "llama"])
def test_right_engines_pass(name: str, models: dict[str, Model]) -> None:
    model = models[name]
    rows = list(in_company(ReferenceEngine(model, n_pages=PAGES), model, TOKENS))
    assert [row.passed for row in rows] == [True, True] and rows[1].name.endswith("beside a request of 37")
    for precision in ("exact", "fast"):
        engine = CpuEngine(model, n_pages=PAGES, threads=2, precision=precision)
        assert [row.detail for row in in_company(engine, model, TOKENS)] == ["the same bits"] * 2


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_is_not_cleared(name: str, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.engines.reference._PagedCache", Keeps)
    found = asked(ReferenceEngine(models[name], n_pages=PAGES), models[name])
    assert list(found) == ["5 tokens, after another request"]
    (said,) = found.values()
    assert said.startswith("differs from cache_") and "before" in said.split(" on,")[0] and "(st-leak" in said


@pytest.mark.parametrize("name", KINDS)
def test_padding_that_enters_a_state(name: str, models: dict[str, Model]) -> None:
    found = asked(Pads(models[name], n_pages=PAGES + 2), models[name])
    assert list(found) == ["5 tokens, beside a request of 37"]
    (said,) = found.values()
    assert "at decoded token 1" in said and "the same length gives the same" in said and "st-pad-enters" in said


@pytest.mark.parametrize("name", KINDS)
def test_a_neighbours_state(name: str, models: dict[str, Model]) -> None:
    found = asked(Mixes(models[name], n_pages=PAGES), models[name])
    assert list(found) == ["5 tokens, beside a request of 37"]
    assert "depends on the neighbour's tokens" in next(iter(found.values()))


def test_the_check_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`assay check` has both situations; a leak makes it fail, and every check of a fresh engine passes."""
    from assay.cli import main

    others.make("mamba2", tmp_path / "m.gguf")
    command = ["check", str(tmp_path / "m.gguf"), "--engine", "reference", "--lengths", "2"]
    assert main(command) == 0
    assert "pass  5 tokens, beside a request of 37: the same bits" in capsys.readouterr().out
    monkeypatch.setattr("assay.engines.reference._PagedCache", Keeps)
    assert main(command) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0] for line in failed] == [
        "FAIL  2 tokens, the same request twice", "FAIL  5 tokens, after another request",
    ]  # fmt: skip
