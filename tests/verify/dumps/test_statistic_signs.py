"""Statistics in signs stand before the values of a row, and head columns of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.observation import STATISTICS
from assay.verify.dumps.printed.columns import column_kind
from assay.verify.dumps.printed.log_reader import read_log

SIGNS = {
    "norm": ("|.|", "||.||", "‖·‖", "∥·∥", "||x||", "‖x‖₂", "∥x∥₂", "||x||_2", "|·|₂", "|*|", "ℓ2", "ℓ₂", "L₂", "‖·‖_F",
             "√Σx²", "√(Σx²)", "sqrt(sum(x^2))", "nrm"),
    "absmax": ("|x|max", "|.|max", "max|x|", "max |.|", "‖x‖∞", "max|·|"),
    "absmean": ("mean|x|", "avg|.|", "|x|_mean"),
    "abssum": ("Σ|x|", "‖x‖₁", "|x|₁"),
    "sum": ("Σ", "∑", "Σx"),
    "mean": ("µ", "μ", "x\u0304", "⟨x⟩", "E[x]", "Ø"),
    "std": ("σ",),
    "rms": ("√⟨x²⟩", "sqrt(mean(x^2))", "√E[x²]"),
}  # fmt: skip
CASES = [(sign, kind) for kind, signs in SIGNS.items() for sign in signs]


def shown(line: str) -> list[tuple[str, tuple[float, ...]]]:
    found = read_log(Path("x.log"), text=f"tokens: [1, 2, 3]\n{line}\n").observations
    return [(o.kind, tuple(o.target())) for o in found if o.name == "attn_out-0"]


@pytest.mark.parametrize(
    "form", ["L0 attn_out  n=96  {}= 6.25  0.75 -0.5 2.5 ..  -1.125", "L0 attn_out {}: 6.25  0.75 -0.5 2.5 .. -1.125"]
)
@pytest.mark.parametrize(("sign", "kind"), CASES)
def test_a_sign_before_values(sign: str, kind: str, form: str) -> None:
    assert shown(form.format(sign)) == [(kind, (6.25,)), ("first", (0.75, -0.5, 2.5)), ("last", (-1.125,))]


@pytest.mark.parametrize(("sign", "kind"), [("Σx²", "norm"), ("‖x‖²", "norm"), ("σ²", "std")])
def test_squares(sign: str, kind: str) -> None:
    assert shown(f"L0 attn_out {sign}= 6.25  0.75 -0.5 2.5")[0] == (kind, (2.5,))


@pytest.mark.parametrize(("sign", "kind"), [case for case in CASES if "|" in case[0] or not case[0].isascii()])
def test_a_sign_heads_a_column(sign: str, kind: str) -> None:
    assert column_kind(sign) == kind


@pytest.mark.parametrize(
    "line", ["| a | 1.5 | 2.5 |", "|-|-|-|", "a | b | c", "<s> 1.5 2.5", "x <y> 1.5", "[1|2|3]", "'<|im_end|>' 1.5 2.5"]
)
def test_bars_of_tables_are_no_signs(line: str) -> None:
    assert not any(o.kind in STATISTICS for o in read_log(Path("x.log"), text=f"L0 attn_out: {line}\n").observations)
