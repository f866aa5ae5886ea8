"""The native module called wrongly: every mistake is a Python exception, none is a crash."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import _native

F32, Q8_0 = 0, 8
POOL = _native.Pool(2)
LOADER = _native.Loader(POOL)


def cache(n_pages: int = 4, *windows: tuple[int, int]) -> _native.Cache:
    last = len(windows)
    return _native.Cache([(0, n_pages), *windows], [("f16", True, 2, 16, last), ("f16", False, 2, 16, last)])


def weight(rows: int = 8, columns: int = 32) -> _native.Weight:
    raw = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32).view(np.uint8)
    return _native.Weight(LOADER, raw, F32, (1, rows, columns), True, False)


def program() -> _native.Program:
    """Looks tokens up and multiplies: 8 tokens known, 8 numbers out."""
    p = _native.Program(POOL, cache(), True)
    x, acts = p.value(32, "tokens"), p.acts(32, "tokens", "f32")
    p.embed(weight(), False, x)
    p.prepare(x, acts)
    p.products(acts, [(weight(), p.value(8, "tokens", True), None, -1)])
    return p


def batch(**changes: Any) -> tuple[Any, ...]:
    given: dict[str, Any] = {
        "tokens": np.array([1, 2], np.int32),
        "positions": np.array([0, 1], np.int32),
        "chunks": np.array([[2, 0, 0, 1, 1]], np.int32),
        "pages": np.array([3], np.int32),
        "states": np.empty((0, 3), np.int32),
        "externals": [np.zeros(16, np.float32)],
        "interruptible": False,
    }
    return tuple({**given, **changes}.values())


def test_a_right_call() -> None:
    arguments = batch()
    program().run(*arguments)
    assert np.abs(arguments[5][0]).sum() > 0


@pytest.mark.parametrize("pages", [(-1, 0), (0, 4), (4, 0), (0, -1)])
def test_pages_that_do_not_exist_are_not_copied(pages: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cache: no page"):
        cache(4).copy_page(*pages, 0)
    with pytest.raises(ValueError, match="cache: no page"):
        cache(9, (8, 4)).copy_page(*pages, 1)
    with pytest.raises(ValueError, match="no such group"):
        cache(4).copy_page(0, 1, 1)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"tokens": np.array([1, 8], np.int32)}, ValueError),
        ({"tokens": np.array([1, -1], np.int32)}, ValueError),
        ({"tokens": np.array([1.0, 2.0])}, TypeError),
        ({"tokens": np.array([1, 2], np.int64)}, TypeError),
        ({"tokens": np.array([1, 2, 3], np.int32)}, ValueError),
        ({"positions": np.array([0], np.int32)}, ValueError),
        ({"chunks": np.array([[2, 0, 0, 1]], np.int32)}, ValueError),
        ({"chunks": np.array([[3, 0, 0, 1, 1]], np.int32)}, ValueError),
        ({"chunks": np.array([[2, 31, 0, 1, 1]], np.int32)}, ValueError),
        ({"chunks": np.array([[2, 0, 1, 1, 1]], np.int32)}, ValueError),
        ({"chunks": np.array([[2, 0, 0, 1, 3]], np.int32)}, ValueError),
        ({"chunks": np.array([[2, -1, 0, 1, 1]], np.int32)}, ValueError),
        ({"chunks": np.array([[2, 2**31 - 1, 0, 1, 1]], np.int32)}, ValueError),
        ({"chunks": np.zeros((0, 5), np.int32)}, ValueError),
        ({"pages": np.array([4], np.int32)}, ValueError),
        ({"pages": np.array([-1], np.int32)}, ValueError),
        ({"states": np.zeros((1, 3), np.int32)}, ValueError),
        ({"externals": []}, ValueError),
        ({"externals": [np.zeros(15, np.float32)]}, ValueError),
        ({"externals": [np.zeros(32, np.float32)[::2]]}, TypeError),
        ({"externals": [np.zeros(16)]}, TypeError),
    ],
)
def test_wrong_batches(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        program().run(*batch(**changes))


@pytest.mark.parametrize("shape", [(1, 8, 33), (1, 9, 32), (2, 8, 32), (0, 8, 32), (1, -8, 32), (1, 8, 0)])
@pytest.mark.parametrize("kind", [F32, Q8_0, 4, 99, 2**32 - 1])
def test_wrong_weights(shape: tuple[int, int, int], kind: int) -> None:
    with pytest.raises(ValueError):
        _native.Weight(LOADER, np.zeros(8 * 32 * 4, np.uint8), kind, shape, True, False)


def test_wrong_caches() -> None:
    for groups, pool in (
        ([(0, 0)], ("f16", True, 1, 8, 0)),
        ([(0, 1)], ("f17", True, 1, 8, 0)),
        ([(0, 1)], ("f16", True, 0, 8, 0)),
        ([(0, 1)], ("q8_0", True, 1, 8, 0)),
        ([(0, 1)], ("f16", True, 1, 8, 1)),
        ([(0, 1)], ("f16", True, 1, 8, -1)),
        ([(0, 1), (8, 0)], ("f16", True, 1, 8, 1)),
        ([(0, 1), (-8, 1)], ("f16", True, 1, 8, 1)),
        ([(8, 1)], ("f16", True, 1, 8, 0)),
        ([], ("f16", True, 1, 8, 0)),
    ):
        with pytest.raises(ValueError):
            _native.Cache(groups, [pool])
    with pytest.raises(MemoryError, match="no room for"):
        _native.Cache([(0, 2**31 - 1)], [("f32", True, 1 << 10, 1 << 10, 0)])


small = st.integers(-2, 9)


@given(st.data())
def test_any_program(data: st.DataObject) -> None:
    """Steps with any operands, then a run: a ValueError or IndexError, or numbers; never anything else."""
    windowed = data.draw(st.booleans())
    p = _native.Program(POOL, cache(4, *[(8, 2)] * windowed), data.draw(st.booleans()))
    widths = st.sampled_from([1, 2, 8, 16, 32, 64])
    domains = st.sampled_from(["tokens", "outputs", "keys", "scores"])
    externals = 0
    for _ in range(6):
        external = data.draw(st.booleans())
        p.value(data.draw(widths), data.draw(domains), external)
        externals += external
    p.acts(32, data.draw(domains), data.draw(st.sampled_from(["q8", "f32"])))
    vector = _native.Vector(np.ones(data.draw(widths), np.float32))

    def mask() -> _native.Mask:
        row = data.draw(st.sampled_from([None, vector]))
        return _native.Mask(1.0, data.draw(small), data.draw(small), data.draw(st.booleans()), row, row)

    steps: list[Any] = [
        lambda: p.embed(weight(), data.draw(st.booleans()), data.draw(small)),
        lambda: p.rms_norm(data.draw(small), vector, 1e-5, data.draw(small), data.draw(small)),
        lambda: p.layer_norm(data.draw(small), vector, vector, 1e-5, data.draw(small), data.draw(small)),
        lambda: p.bias(data.draw(small), vector, data.draw(small)),
        lambda: p.gain(data.draw(small), vector, data.draw(small)),
        lambda: p.act(data.draw(small), "gelu_tanh", data.draw(small)),
        lambda: p.glu_split(data.draw(small), "silu", data.draw(small), data.draw(small)),
        lambda: p.glu_oai(data.draw(small), data.draw(small), 1.702, 7.0, data.draw(small)),
        lambda: p.clamp(data.draw(small), -1.0, 1.0, data.draw(small)),
        lambda: p.concat(*(data.draw(small) for _ in range(6))),
        lambda: p.pos_scale(data.draw(small), 0.1, data.draw(small), data.draw(small), data.draw(small)),
        lambda: p.pool_rows(
            data.draw(small), data.draw(st.sampled_from(["mean", "first", "last", "?"])), data.draw(small)
        ),
        lambda: p.group_mask(data.draw(small), data.draw(small), data.draw(small), data.draw(small)),
        lambda: p.expert_rows(
            data.draw(st.sampled_from(["expert_bias", "expert_gain", "?"])), data.draw(small), data.draw(small), vector,
            data.draw(small),
        ),
        lambda: p.binary(
            data.draw(st.sampled_from(["add", "glu", "div", "gather", "expert_scale", "?"])),
            data.draw(small), data.draw(small), data.draw(small),
        ),
        lambda: p.unary(
            data.draw(st.sampled_from(["scale", "softcap", "softmax", "argsort", "row_sum", "clamp_min", "?"])),
            data.draw(small), 1.0, data.draw(small),
        ),
        lambda: p.slice(data.draw(small), data.draw(small), data.draw(small), data.draw(small)),
        lambda: p.expert_sum(data.draw(small), data.draw(small)),
        lambda: p.rope_table([1.0] * data.draw(st.integers(0, 9)), 1.0, data.draw(small)),
        lambda: p.rope(*(data.draw(small) for _ in range(4)), True, data.draw(small)),
        lambda: p.cache_write(data.draw(small), data.draw(small)),
        lambda: p.cache_read(data.draw(small), data.draw(small)),
        lambda: p.output_rows(data.draw(small), data.draw(small)),
        lambda: p.prepare(data.draw(small), data.draw(small)),
        lambda: p.kq(data.draw(small), data.draw(small), data.draw(small), data.draw(small), data.draw(small)),
        lambda: p.attn_softmax(data.draw(small), mask(), data.draw(small)),
        lambda: p.kqv(data.draw(small), data.draw(small), data.draw(small), data.draw(small)),
        lambda: p.products(data.draw(small), [(weight(), data.draw(small), None, data.draw(small))]),
        lambda: p.glu_products(
            data.draw(small), weight(), weight(), data.draw(small), data.draw(small), data.draw(small), "silu"
        ),
        lambda: p.expert_product(data.draw(small), data.draw(small), weight(), data.draw(small)),
        lambda: p.attention(
            data.draw(small), data.draw(small), data.draw(small), data.draw(small), 0.0, mask(), data.draw(small),
            data.draw(small), data.draw(small),
        ),
    ]  # fmt: skip
    for _ in range(8):
        try:
            data.draw(st.sampled_from(steps))()
        except (ValueError, IndexError):
            continue
    there: dict[str, Any] = {"externals": [np.zeros(4096, np.float32)] * externals}
    if windowed:  # after 40 tokens, with a table for each group
        there["chunks"] = np.array([[2, 40, 0, 2, 1]], np.int32)
        there["pages"] = np.array([3, 2, data.draw(st.integers(-1, 2)), data.draw(st.integers(-1, 2))], np.int32)
        there["positions"] = np.array([40, 41], np.int32) - data.draw(st.integers(0, 1))
    with contextlib.suppress(ValueError, RuntimeError):
        p.run(*batch(**there))
