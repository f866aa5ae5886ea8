"""Roundings stay within half a unit."""

from __future__ import annotations

import numpy as np

from assay.engines.reference.functions import gelu_tanh
from assay.graph import Node
from assay.models import Model
from assay.verify.judge.arithmetic import ARITHMETICS, operand, q8_0, q8_k, round_to, summed


def test_roundings() -> None:
    x = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    assert np.abs(round_to(x, "bf16") - x).max() <= np.abs(x).max() * 2**-8
    assert np.array_equal(round_to(x, "f16"), x.astype(np.float16).astype(np.float32))
    for quantise, n in ((q8_0, 32), (q8_k, 256)):
        step = np.abs(x.reshape(-1, n)).max(-1) / 127
        assert (np.abs(quantise(x) - x).reshape(-1, n).max(-1) <= 0.51 * step + 1e-3 * step * 127).all()
        assert not quantise(np.zeros_like(x)).any()


def test_a_table_of_halves_is_allowed_both_of_its_roundings(model: Model) -> None:
    """Roundings of the input and of the result are allowed in either direction: one value of a row may dominate it."""
    x = np.random.default_rng(4).uniform(-3, 8, (1, 5000))
    node = Node("ffn_gelu-0", "act", ("x",), attrs={"act": "gelu_tanh"})
    table = next(a for a in ARITHMETICS if a.gelu_table)
    exact, seen = gelu_tanh(x), gelu_tanh(operand(table, model.file, node, 0, x))
    looked_up = round_to(gelu_tanh(round_to(x, "f16")), "f16")
    allowed = np.abs(summed(table, model.file, model.graph, node, seen, exact, None) - exact)
    assert (np.abs(looked_up - exact) <= allowed + 1e-12).all() and allowed.max() < 0.01
