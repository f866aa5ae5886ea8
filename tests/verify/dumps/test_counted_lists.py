"""Numbers in brackets behind a name: lengths of lists are left out; elements, layers and parts stay."""

from __future__ import annotations

import pytest

from assay.verify.dumps.printed.counted_lists import without_lengths

LENGTHS = {
    "att_h0[1]: 1.000000\natt_h0[2]: 0.25 0.75\natt_h0[3]: 0.25 0.5 0.25\natt_h0[4]: 0.1 0.2 0.3 0.4\n": (
        "att_h0: [1.000000]\natt_h0: 0.25 0.75\natt_h0: 0.25 0.5 0.25\natt_h0: 0.1 0.2 0.3 0.4\n"
    ),
    "xb[64]: 0.5 1.5 ... 2.5\nhb[172]: 0.5 1.5 .. 2.5\nkk[32]: 0.5 1.5 … 2.5\natt[1]: 1.0\n": (
        "xb: 0.5 1.5 ... 2.5\nhb: 0.5 1.5 .. 2.5\nkk: 0.5 1.5 … 2.5\natt: [1.0]\n"
    ),
    "w (2) = {0.5, 0.25}\nw (3) = {0.5, 0.25, 1.5}\nw (4) = {0.5, 0.25, 1, 2}\nw (1) = {0.5}": (
        "w  = {0.5, 0.25}\nw  = {0.5, 0.25, 1.5}\nw  = {0.5, 0.25, 1, 2}\nw  = {0.5}"
    ),
    "[ff] prompt (4): 1, 291, 376, 400": "[ff] prompt: 1, 291, 376, 400",
    "run input ids[3] = [1, 9, 7]": "run input ids = [1, 9, 7]",
    "INFO tokens (3 tokens): 1 9 7": "INFO tokens: 1 9 7",
    "pos 1 L0 probs[2] = [0.5, 0.5]\npos 2 L0 probs[3] = [0.5, 0.25, 0.25]\npos 0 L0 probs[1] = [1.0]\n"
    "pos 1 L1 probs[2] = [0.75, 0.25]": (
        "pos 1 L0 probs = [0.5, 0.5]\npos 2 L0 probs = [0.5, 0.25, 0.25]\npos 0 L0 probs = [1.0]\n"
        "pos 1 L1 probs = [0.75, 0.25]"
    ),
}


@pytest.mark.parametrize("printed", LENGTHS)
def test_lengths_are_left_out(printed: str) -> None:
    assert [" ".join(line.split()) for line in without_lengths(printed).split("\n")] == [
        " ".join(line.split()) for line in LENGTHS[printed].split("\n")
    ]


@pytest.mark.parametrize(
    "printed",
    [
        "x[0] = 0.5\nx[1] = 1.5\nx[2] = 2.5\nx[3] = 3.5",  # elements
        "q[1]: 0.5 0.25 1.5\nq[2]: 0.5 0.25 1.5\nq[3]: 0.5 0.25 1.5",  # layers
        "q[12]: 0.5 0.25 ... 1.5\nk[12]: 0.5 0.25 ... 1.5\nv[12]: 0.5 0.25 ... 1.5",  # one layer
        "out.prefix(2): [0.5, 1.5]\nout.suffix(2): [0.5, 1.5]\nmid.prefix(2): [0.5, 1.5]",  # which part it is
        "x[1]: 0.5\nx[1]: 1.5\nx[1]: 2.5",
        "prompt (2): 1, 291, 376, 400",  # a number of its own
    ],
)
def test_other_numbers_stay(printed: str) -> None:
    assert without_lengths(printed) == printed
