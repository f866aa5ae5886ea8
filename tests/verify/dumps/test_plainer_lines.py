"""Habits that one line shows by itself, and numbers before and behind names that count layers and positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.counted_prefixes import with_layers_named
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.plainer_lines import plainer


@pytest.mark.parametrize(
    ("printed", "plain"),
    [
        ("q [-2.5 .. 3.5]", "q min=-2.5 max=3.5"),
        ("[0.5, 0.25 .. 1.5, 2.5]", "[0.5, 0.25 .. 1.5, 2.5]"),  # both ends of a row
        ("x_0 [  64 x   8] sum=1.5", "x_0 sum=1.5"),
        ("ln1: L0=1.5 L1=2.5", "ln1 per layer: [1.5, 2.5]"),
        ("ln1: L1=1.5 L2=2.5", "ln1: L1=1.5 L2=2.5"),  # not all layers
        ("layers:  50%|#  | 1/2 [00:00<00:00, attn=0.5]", "layer 1: attn=0.5"),
        ("in 1.5 -> attn 2.5", "in 1.5 | attn 2.5"),
        ("top 403 (17.5), 261 (12.25)", "top 403:17.5, 261:12.25"),
        ("cand   270   2.5", "top logits: 270:2.5"),
        ("q 6865aa1a rms=1.5", "q rms=1.5"),
        ("q 1234567e5 rms=1.5", "q 1234567e5 rms=1.5"),  # a number
        ("x[::8] = 0.5 1.5", "x [0] 0.5 [8] 1.5"),
        ("x[2:20:4] = [0.5, 1.5]", "x [2] 0.5 [6] 1.5"),
        ("tokens[3] = {1, 5, 6}", "tokens: [1, 5, 6]"),
        ("t=3 argmax=17 max=9.5", "t=3 logits max=9.5"),
    ],
)
def test_a_line_is_rewritten(printed: str, plain: str) -> None:
    assert " ".join(plainer(printed).split()) == plain


def test_bare_numbers_are_a_position_and_a_layer_where_they_count() -> None:
    text = "\n".join(f"{pos}:{layer}:q 0.5" for pos in range(2) for layer in range(3))
    assert with_layers_named(text).split("\n")[4] == "pos 1 layer 1 q 0.5"
    clock = "\n".join(f"12:{minute}:q 0.5" for minute in (3, 7, 9, 20, 21, 50))
    assert with_layers_named(clock) == clock


def test_numbers_behind_several_names_are_layers() -> None:
    text = "\n".join(f"{name}_{layer} sum=1.5" for layer in range(2) for name in ("q", "x1", "x2"))
    assert with_layers_named(text).split("\n")[4] == "layer 1 x1 sum=1.5"
    heads = "\n".join(f"head_{i} sum=1.5" for i in range(4))
    assert with_layers_named(heads) == heads


def read(text: str) -> Dump:
    return read_log(Path("x.log"), text=text)


def test_a_call_of_one_id_behind_the_prompt_is_a_step() -> None:
    dump = read("forward([5, 6, 7])\nlayer 0 out: rms=1.5\nforward([9])\nlayer 0 out: rms=2.5\n")
    assert dump.tokens == (5, 6, 7) and [token for token, _ in dump.later] == [9]


def test_a_number_with_a_name_ends_before_a_bar() -> None:
    dump = read("tokens: 1 2 3\nlayer 0 out: r=2.5 | 0.5, 0.25, 0.125\n")
    (values,) = [o for o in dump.observations if o.kind == "first"]
    assert values.data == (0.5, 0.25, 0.125)


def test_a_title_names_the_statistic_of_named_numbers() -> None:
    dump = read("tokens: 1 2 3\nL2 norms, last position\nblock 0: attn 2.5 -> mlp 3.5 -> out 4.5\n")
    assert [(o.name, o.kind) for o in dump.observations] == [
        ("attn_out-0", "norm"), ("ffn_out-0", "norm"), ("l_out-0", "norm"),
    ]  # fmt: skip


def test_squares_and_sums_of_sizes_are_statistics() -> None:
    dump = read("tokens: 1 2 3\nlayer 0 out: sumsq=6.25 abs_sum=3.5\n")
    assert [(o.kind, o.data) for o in dump.observations] == [("norm", 2.5), ("abssum", 3.5)]
