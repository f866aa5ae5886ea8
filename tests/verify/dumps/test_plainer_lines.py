"""Habits that one line shows by itself, and numbers before and behind names that count layers and positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.counted_headings import with_positions_marked
from assay.verify.dumps.printed.counted_prefixes import with_layers_named
from assay.verify.dumps.printed.debugger_values import with_debugger_values
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.plainer_lines import plainer
from assay.verify.dumps.printed.steps_on_lines import with_steps_headed


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
        ('=> 298("▁g")=16.95  268("▁b")=16.11  400("do")=13.56', "top logits: 298:16.95, 268:16.11, 400:13.56"),
        ('=> 1("a")=1.5  2("b")=2.5  3("c")=0.5', '=> 1("a")=1.5 2("b")=2.5 3("c")=0.5'),  # no falling numbers
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


@pytest.mark.parametrize(
    ("heading", "marked"),
    [
        ("PROMPT pos={} id=3", "== pos {} id 3 =="),
        ("tok {} (id 144)", "== pos {} id 144 =="),
        ("DECODE pos={} id=4", "== pos {} id 4 =="),
        ("pos {}", "== pos {} =="),
        ("tok {} = 3", "== pos {} id 3 =="),
        ("position {}: token 3", "== pos {} id 3 =="),
    ],
)
def test_a_line_that_names_a_position_alone_is_a_heading(heading: str, marked: str) -> None:
    text = "\n".join(f"{heading.format(i)}\nq rms=1.5" for i in range(3))
    assert with_positions_marked(text).split("\n")[::2] == [marked.format(i) for i in range(3)]


@pytest.mark.parametrize(
    "text",
    [
        "tok 0 (id 3)\ntok 1 (id 4)\nq rms=1.5",  # a list of the tokens
        "pos 0\nq rms=1.5\npos 2\nq rms=1.5",  # not one by one
        "pos 3\nq rms=1.5\npos 4\nq rms=1.5",  # not from 0
        "pos 0\nq rms=1.5",  # one says nothing of counting
    ],
)
def test_it_is_none_where_it_does_not_count(text: str) -> None:
    assert with_positions_marked(text) == text


def test_a_legend_names_the_cells_below() -> None:
    legend = "# layer: rms after mixer | rms after ffn | [first three]"
    text = f"{legend}\n  0: 1.5 | 2.5 | [0.5, 1.5, 2]\n  1: 3.5 | 4.5 | [1.5, 2, 3]"
    assert with_positions_marked(text).split("\n")[1:] == [
        "  layer 0: rms after mixer 1.5 | rms after ffn 2.5 | first three [0.5, 1.5, 2]",
        "  layer 1: rms after mixer 3.5 | rms after ffn 4.5 | first three [1.5, 2, 3]",
    ]


def test_a_legend_names_no_other_number_of_cells() -> None:
    text = "# layer: attn | ffn\n  0: 1.5 | 2.5 | 3.5\n  7: 1.5 | 2.5"
    assert with_positions_marked(text) == text


def test_lines_of_decode_steps_get_a_heading_of_their_step() -> None:
    text = "\n".join(
        f"phase=decode step={step} tok={token} layer={layer} rms=1.5"
        for step, token in ((1, 64), (2, 9))
        for layer in (0, 1)
    )
    assert with_steps_headed(text).split("\n") == [
        "--- decode step 1, token 64 ---",
        "phase=decode layer=0 rms=1.5",
        "phase=decode layer=1 rms=1.5",
        "--- decode step 2, token 9 ---",
        "phase=decode layer=0 rms=1.5",
        "phase=decode layer=1 rms=1.5",
    ]


def test_a_step_begins_where_the_words_of_a_line_come_again() -> None:
    text = "call=decode id=7 q 1.5\ncall=decode id=7 k 2.5\ncall=decode id=7 q 3.5"
    assert [line for line in with_steps_headed(text).split("\n") if line.startswith("---")] == [
        "--- decode step 1, token 7 ---",
        "--- decode step 2, token 7 ---",
    ]


@pytest.mark.parametrize("line", ["phase=decode pos=3 id=7 q 1.5", "phase=prompt id=7 q 1.5", "phase=decode id=7"])
def test_other_lines_keep_their_token(line: str) -> None:
    assert with_steps_headed(line) == line


def test_steps_of_lines_are_read_behind_the_prompt() -> None:
    prompt = "tokens: [5, 6, 7]\nphase=prompt layer 0 out: rms=1.5\n"
    steps = "".join(f"phase=decode step={i} token={t} layer 0 out: rms={i}.25\n" for i, t in ((1, 9), (2, 8)))
    assert [token for token, _ in read(prompt + steps).later] == [9, 8]


def test_numbers_of_calls_are_steps_where_the_fed_ids_are_listed() -> None:
    records = [f'{{"node": "{node}-0", "step": {i}, "rms": {i}.5}}' for i in range(3) for node in ("q", "k")]
    dump = read("\n".join(['{"prompt": [5, 6, 7], "feed": [9, 8]}', *records]))
    assert dump.tokens == (5, 6, 7) and [(token, len(shown)) for token, shown in dump.later] == [(9, 2), (8, 2)]
    other = "\n".join(['{"prompt": [5, 6, 7], "feed": [9]}', *records])
    assert with_steps_headed(other) == other  # an id for one step of two


def test_a_letter_holds_the_values_of_the_node_that_the_record_names() -> None:
    records = [f'{{"ev": "{name}", "layer": 0, "v": [0.5, 1.5]}}' for name in ("attn_norm", "ffn_norm", "ffn_out")]
    assert [o.name for o in read("\n".join(records)).observations] == ["attn_norm-0", "ffn_norm-0", "ffn_out-0"]
    assert read('{"layer": 0, "v": [0.5, 1.5]}\n').observations[0].name == "Vcur-0"


def test_experts_and_their_weights_leave_the_rest_of_the_line() -> None:
    dump = read("-- layer 1 routing\npos 0 gate_logits -4.5 2.5 1.5 -> e6*0.375  e2*0.625\n")
    assert [(o.name, o.data) for o in dump.observations] == [
        ("ffn_moe_logits-1", (-4.5, 2.5, 1.5)),
        ("ffn_moe_weights_norm-1", (0.375, 0.625)),
    ]


def test_ids_beside_falling_numbers_are_the_best_logits() -> None:
    assert read("pos 0 (in 12): 212 3.043  61 2.503  128 2.439\n").observations[0].kind == "top"
    assert "top" not in plainer("pos 0 (in 12): 212 3.043  61 2.503  128 2.939")


@pytest.mark.parametrize(
    ("commands", "read_as"),
    [
        (("p *&x[0]@2", "p *&x[3*8]@2"), ["x pos 0: [0.5, 1.5]", "x pos 3: [0.5, 1.5]"]),
        (("(gdb) p *(x + 1*8)@2", "(gdb) print x[2*8]@2"), ["x pos 1: [0.5, 1.5]", "x pos 2: [0.5, 1.5]"]),
    ],
)
def test_rows_stand_in_the_commands_of_a_debugger(commands: tuple[str, ...], read_as: list[str]) -> None:
    text = "\n".join(f"{command}\n${i + 1} = {{0.5, 1.5}}" for i, command in enumerate(commands))
    assert with_debugger_values(text).split("\n") == read_as


def test_a_debugger_that_shows_elements_shows_no_rows() -> None:
    text = "p *&x[2*8]@2\n$1 = {0.5, 1.5}\np *&x[2*4]@2\n$2 = {0.5, 1.5}"  # no one length of a row
    assert with_debugger_values(text) == text


def test_one_id_in_brackets_behind_the_word_for_a_step_is_fed() -> None:
    dump = read(
        "prefill [5, 6, 7]\nlayer 0 out: rms=1.5\nstep 1 [9]\nlayer 0 out: rms=2.5\nstep 2 [8]\nlayer 0 out: rms=3.5\n"
    )
    assert [token for token, _ in dump.later] == [9, 8]
