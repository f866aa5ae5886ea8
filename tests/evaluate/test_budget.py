"""Types by measurement: the knapsack against all choices there are, and a file that keeps to its budget."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli import main
from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.evaluate.budget import CANDIDATES, Sensitivity, choose
from assay.evaluate.pieces import cut
from assay.evaluate.predictors import EngineSource
from assay.gguf import open_file
from assay.models import load
from tests import tiny

KINDS = ("Q2_K", "Q4_K", "Q6_K", "Q8_0")


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(1e-6, 1)), min_size=1, max_size=4), st.floats(2.7, 8))
def test_no_choice_that_fits_is_much_better(tensors: list[tuple[int, float]], bits: float) -> None:
    """Costs fall by about 16 with every two bits, as rounding does. The price finds the best but for one tensor."""
    found = [
        Sensitivity(f"t{i}", (rows, 256), dict(zip(KINDS, (c, c / 16, c / 256, c / 4096), strict=True)))
        for i, (rows, c) in enumerate(tensors)
    ]
    chosen = choose(found, bits)
    weights = sum(rows * 256 for rows, _ in tensors)
    assert chosen.bits_per_weight <= bits
    assert chosen.cost == pytest.approx(sum(s.cost[chosen.types[s.name].name] for s in found))
    all_choices = [list(zip(found, kinds, strict=True)) for kinds in itertools.product(KINDS, repeat=len(found))]
    fitting = [pairs for pairs in all_choices if sum(s.bits(k) for s, k in pairs) <= bits * weights]
    best = min(sum(s.cost[k] for s, k in pairs) for pairs in fitting)
    largest = max(s.cost[chosen.types[s.name].name] for s in found)
    assert best <= chosen.cost + 1e-12
    assert chosen.cost <= best + largest


def test_too_small_a_budget() -> None:
    with pytest.raises(AssayError, match=r"at least 2\.62"):
        choose([Sensitivity("t", (4, 256), dict.fromkeys(KINDS, 1.0))], 2)


def test_a_swapped_tensor_is_the_file_with_that_tensor(tmp_path: Path) -> None:
    """Bit for bit; and afterwards everything is as before."""
    a, b = (tiny.make(tmp_path / f"{seed}.gguf", seed=seed, tied=False) for seed in (1, 2))
    first, second = (open_file(path) for path in (a, b))
    name = "blk.1.ffn_up.weight"

    def only(key: str, shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> tiny.Tensor:
        values = (second if key == name else first).decode(key)
        return tiny.Tensor(key, shape, tiny.by_name("F32"), values)

    both = tiny.make(tmp_path / "both.gguf", tied=False, tensor=only)
    piece = cut(list(range(3, 40)), 32)[0]
    engine = CpuEngine(load(first), n_pages=4)
    before = EngineSource(engine).rows(piece)
    with engine.swapped(name, second.raw(name).copy()):
        inside = EngineSource(engine).rows(piece)
    np.testing.assert_array_equal(inside, EngineSource(CpuEngine(load(open_file(both)), n_pages=4)).rows(piece))
    np.testing.assert_array_equal(EngineSource(engine).rows(piece), before)
    assert not np.array_equal(inside, before)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.make(tmp_path / "f32.gguf", n_embd=256, n_ff=256, tied=False)
    text = tmp_path / "text.txt"
    text.write_text("hello world the word in on a " * 100)
    out, page = tmp_path / "out.gguf", tmp_path / "where.html"
    arguments = [
        "quantize",
        str(model),
        str(out),
        "--budget",
        "3.5",
        "-f",
        str(text),
        "--windows",
        "1",
        "--html",
        str(page),
    ]
    assert main(arguments) == 0
    assert "expected KL" in capsys.readouterr().err
    with open_file(out) as file:
        matrices = [t for t in file.tensors.values() if len(t.shape) > 1]
        assert {t.type.name for t in matrices} <= set(CANDIDATES)
        assert 3.2 < 8 * sum(t.nbytes for t in matrices) / sum(t.n_elements for t in matrices) <= 3.5
    assert "blk.1.ffn_down.weight" in page.read_text()
    assert main(["quantize", str(model), str(out), "--budget", "3.5"]) == 2
    assert "name one with -f" in capsys.readouterr().err
