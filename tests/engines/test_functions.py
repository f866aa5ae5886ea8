"""The textbook functions: the shapes that the operation table promises, and what each contract says at its edges."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.engines.reference import functions as f
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import OPS, vision_ops
from assay.models.catalogue import ARCHITECTURES, VARIANTS, example

RNG = np.random.default_rng(3)


def test_every_operation_has_a_function_and_a_user() -> None:
    assert OPS.keys() == f.FUNCTIONS.keys()
    rows = {**ARCHITECTURES, **VARIANTS}.values()
    used = {node.op for row in rows for node in example(row)[1]}
    towers = {row.name for row in vision_ops.ROWS}  # which towers have (`tests/vision`)
    assert used == OPS.keys() - {"add_adapter"} - towers  # graphs with an adapter: `test_adapters.py`


class Random(Weights):
    """Random numbers for any tensor of a graph."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.dtype = np.dtype(np.float64)
        self.made = {name: np.random.default_rng(1).standard_normal(shape) for name, shape in shapes.items()}
        for name in (name for name in shapes if name.endswith("ssm_a")):  # the logarithm of a decay
            self.made[name] = -np.abs(self.made[name])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.made[name]

    rows = __getitem__


@pytest.mark.parametrize("title", [*ARCHITECTURES, *VARIANTS])
def test_values_have_the_shapes_of_the_table(title: str) -> None:
    """Every node of every example: what the function gives is what the shape rule says, and finite."""
    _, graph = example(({**ARCHITECTURES, **VARIANTS})[title])
    at = np.arange(7)
    env = {"inp_tokens": at * 31 % 256, "inp_pos": at, "inp_kpos": at}
    found = interpret(graph, Random(dict(graph.weights)), env, {node.name for node in graph})
    for node in graph:
        assert found[node.name].shape == tuple(7 if isinstance(d, str) else d for d in graph.shapes[node.name]), node
        if node.op != "group_mask":
            assert np.isfinite(found[node.name]).all(), node


def test_layer_norm_is_the_definition() -> None:
    x, w, b = RNG.standard_normal((3, 12)), RNG.standard_normal(12), RNG.standard_normal(12)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b
    assert np.allclose(f.layer_norm(x, w, b, eps=1e-5, n_head=0), expected, atol=1e-14)
    per_head = RNG.standard_normal((3, 4))  # each head has its own weights
    parts = [f.layer_norm(x[:, 4 * h : 4 * h + 4], per_head[h], eps=1e-5, n_head=0) for h in range(3)]
    assert np.allclose(f.layer_norm(x, per_head, eps=1e-5, n_head=3), np.concatenate(parts, 1), atol=1e-14)


def test_a_sink_takes_its_share_unscaled() -> None:
    x, sinks, at = RNG.standard_normal((2, 5, 5)), np.array([0.7, -40.0]), np.arange(5)
    plain = f.attn_softmax(x, at, at, scale=0.5)
    found = f.attn_softmax(x, at, at, sinks, scale=0.5)
    for h, t in np.ndindex(2, 5):
        seen = np.exp(0.5 * x[h, t, : t + 1])
        assert np.allclose(found[h, t, : t + 1], seen / (seen.sum() + math.exp(sinks[h])), rtol=1e-12)
    assert np.allclose(found[1], plain[1], atol=1e-15)  # a sink far below the scores is no sink


@pytest.mark.parametrize(("heads", "slopes"), [
    (4, [2**-2, 2**-4, 2**-6, 2**-8]),
    (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    (1, [2**-8]),
])  # fmt: skip
def test_slopes_of_alibi(heads: int, slopes: list[float]) -> None:
    assert np.allclose(f.alibi_slopes(heads, 8.0), slopes, rtol=1e-15)
    at = np.arange(3)
    score = np.log(f.attn_softmax(np.zeros((heads, 3, 3)), at, at, scale=1.0, max_bias=8.0)[:, 2])
    assert np.allclose(score[:, 2] - score[:, 0], 2 * np.array(slopes))


@given(st.integers(1, 12), st.integers(0, 30), st.booleans(), st.sampled_from([0, 4]))
def test_what_a_query_sees(window: int, first: int, causal: bool, chunk: int) -> None:
    at = np.arange(first, first + 12)
    seen = ~f.attn_mask(at, at, window=window, causal=causal, chunk=chunk)
    for i, p in enumerate(at):
        near = p - window < at if causal else np.abs(at - p) <= window // 2
        own = at >= p // chunk * chunk if chunk else True
        assert np.array_equal(seen[i], near & own & ((at <= p) | (not causal)))
        assert seen[i, i]


@given(st.integers(0, 2**32))
def test_groups_by_their_two_best(seed: int) -> None:
    """By the plain reading, with many ties among them."""
    x = np.random.default_rng(seed).integers(0, 4, (1, 12)).astype(np.float64)
    score = [sum(sorted(x[0, 3 * g : 3 * g + 3])[-2:]) for g in range(4)]
    best = sorted(range(4), key=lambda g: (-score[g], g))[:2]
    found = f.group_mask(x, groups=4, used=2)
    assert np.array_equal(np.isfinite(found[0]), [i // 3 in best for i in range(12)])
    assert np.array_equal(found[np.isfinite(found)], x[np.isfinite(found)])


def test_the_clamped_gate() -> None:
    gate, up = np.array([9.0, 7.0, -9.0, 0.5]), np.array([9.0, -9.0, 0.5, 7.0])
    g, v = np.array([7.0, 7.0, -9.0, 0.5]), np.array([7.0, -7.0, 0.5, 7.0])  # the gate is not clamped below
    assert np.allclose(f.glu_oai(gate, up, alpha=1.702, limit=7.0), g / (1 + np.exp(-1.702 * g)) * (v + 1), rtol=1e-14)


def test_temperature_steps_with_the_position() -> None:
    x = np.ones((4, 2, 3))
    found = f.pos_scale(x, np.array([0, 9, 10, 25]), beta=0.1, unit=10, offset=0)
    assert np.allclose(found[:, 0, 0], [1, 1, 1 + 0.1 * math.log(2), 1 + 0.1 * math.log(3)])
    assert f.pos_scale(x, np.array([9] * 4), beta=0.1, unit=10, offset=1)[0, 0, 0] > 1


def test_one_head_is_given_to_all() -> None:
    a, b = RNG.standard_normal((2, 6)), RNG.standard_normal((2, 1, 4))
    found = f.concat(a, b, n_head=3)
    assert found.shape == (2, 3, 6)
    assert all(np.array_equal(found[:, h], np.concatenate([a[:, 2 * h : 2 * h + 2], b[:, 0]], 1)) for h in range(3))


def test_heads_apart_and_together() -> None:
    x, w = RNG.standard_normal((5, 6)), RNG.standard_normal((3, 4, 2))
    assert np.array_equal(f.merge_heads(f.split_heads(x, n_head=3)), x)
    found = f.head_linear(f.split_heads(x, n_head=3), w)
    assert np.allclose(found, np.einsum("hoi,thi->hto", w, x.reshape(5, 3, 2)), atol=1e-14)


def test_only_the_values_from_the_offset_turn() -> None:
    x, at = RNG.standard_normal((4, 2, 10)), np.arange(4)
    kw = {"n_rot": 4, "base": 100.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0,
          "beta_fast": 32.0, "beta_slow": 1.0, "n_ctx_orig": 0}  # fmt: skip
    found = f.rope(x, at, n_head=2, mode="norm", offset=6, **kw)
    assert np.array_equal(found[..., :6], x[..., :6])
    assert np.allclose(found[..., 6:], f.rope(x[..., 6:], at, n_head=2, mode="norm", **kw))


def test_formulas_name_their_operands() -> None:
    """The table's definition mentions every attribute that has no default."""
    for op in OPS.values():
        for key, default in op.attrs.items():
            if repr(default) == "required" and key not in ("n_head", "eps", "n_rot", "scale", "kind", "groups"):
                assert re.search(rf"\b{key}\b", op.formula), (op.name, key)
