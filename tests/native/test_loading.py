"""Weights before and after they are packed: the first step reads the file, later ones the packed copy. Same bits."""

from __future__ import annotations

import gc
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from assay import _native
from assay.gguf.types import by_name

ROOT = Path(__file__).parents[2]
TYPES = [
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"),
    *(
        "MXFP4",
        "TQ1_0",
        "TQ2_0",
        "NVFP4",
        "Q1_0",
        "Q2_0",
        "IQ1_S",
        "IQ1_M",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ2_S",
        "IQ3_XXS",
        "IQ3_S",
        "IQ4_NL",
        "IQ4_XS",
    ),
]
ROWS, COLUMNS = 37, 512  # rows: not a multiple of a panel's
POOL = _native.Pool(2)


def blocks(name: str) -> NDArray[np.uint8]:
    """Any codes; the scales among them are below 1, so that sums stay finite."""
    kind = by_name(name)
    codes = np.random.default_rng(1).integers(0, 256, (ROWS, COLUMNS // kind.block_size, kind.type_size), np.uint8)
    if name == "F32":
        return np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32).view(np.uint8)
    if kind.block_size == 1:
        return np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float16).view(np.uint8)
    return (codes & 0x3B).reshape(ROWS, -1)


def product(weight: _native.Weight, kind: int, n: int, exact: bool) -> NDArray[np.float32]:
    """A table of tokens times the weight, n tokens at once."""
    cache = _native.Cache([(0, 4)], [("f16", True, 2, 16, 0)])
    program = _native.Program(POOL, cache, exact)
    table = np.random.default_rng(2).standard_normal((n, COLUMNS)).astype(np.float32).view(np.uint8)
    rows = _native.Weight(_native.Loader(POOL), table, by_name("F32").id, (1, n, COLUMNS), False, False)
    x, acts = program.value(COLUMNS, "tokens"), program.acts(COLUMNS, "tokens", _native.acts_format(kind, exact))
    program.embed(rows, False, x)
    program.prepare(x, acts)
    program.products(acts, [(weight, program.value(ROWS, "tokens", True), None, -1)])
    found = np.zeros(n * ROWS, np.float32)
    ids = np.arange(n, dtype=np.int32)
    program.run(
        ids,
        ids,
        np.array([[n, 0, 0, 1, 1]], np.int32),
        np.array([0], np.int32),
        np.empty((0, 4), np.int32),
        [found],
        False,
    )
    return found.reshape(n, ROWS)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_the_first_step_has_the_bits_of_later_ones(name: str, exact: bool) -> None:
    kind = by_name(name).id
    for n in (1, 3, 20):
        weight = _native.Weight(_native.Loader(POOL), blocks(name), kind, (1, ROWS, COLUMNS), True, False)
        first = product(weight, kind, n, exact)  # before it is packed: the loader waits for the first step
        assert weight.packed == (name != "Q8_K")
        later = product(weight, kind, n, exact)
        assert np.array_equal(first.view(np.uint32), later.view(np.uint32)) and np.isfinite(first).all() and first.any()


@pytest.mark.parametrize("n", [1, 2])
def test_infinite_halves_are_read_in_place(n: int) -> None:
    raw = blocks("F16").copy()
    raw.view(np.float16)[20, 7] = np.inf
    kind = by_name("F16").id
    weight = _native.Weight(_native.Loader(POOL), raw, kind, (1, ROWS, COLUMNS), True, False)
    first = product(weight, kind, n, False)
    assert not weight.packed and weight.bytes == 0
    later = product(weight, kind, n, False)
    assert np.array_equal(first, later, equal_nan=True) and not np.isfinite(first[:, 20]).any()
    assert np.isfinite(np.delete(first, 20, axis=1)).all()


def test_memory_counts_before_it_is_filled() -> None:
    weight = _native.Weight(_native.Loader(POOL), blocks("Q8_0"), by_name("Q8_0").id, (1, ROWS, COLUMNS), True, False)
    promised = weight.bytes
    assert promised >= blocks("Q8_0").size and weight.packed and weight.bytes == promised


def test_weights_may_go_before_they_are_packed() -> None:
    kind, loader = by_name("Q4_0").id, _native.Loader(POOL)
    weights = [_native.Weight(loader, blocks("Q4_0"), kind, (1, ROWS, COLUMNS), True, False) for _ in range(40)]
    assert weights[3].packed  # packing has begun, and the others wait behind it
    del weights
    gc.collect()
    last = _native.Weight(loader, blocks("Q4_0"), kind, (1, ROWS, COLUMNS), True, False)
    assert last.packed


def test_a_build_for_this_machine_finds_its_fastest_set(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "fastest"
    subprocess.run([compiler, "-std=c++20", ROOT / "native/kernels/fastest.cpp", "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip() == _native.isas()[0]
