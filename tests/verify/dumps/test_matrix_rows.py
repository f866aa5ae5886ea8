"""Numbered rows below a heading with a shape are rows of tokens, or of heads and tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.matrix_rows import with_matrix_rows_named

IDS = "tokens = {12, 20, 7}\n"
ROWS = ("0.5, 0.25", "1.5, 2", "1, 3")


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("ffn_out.0 (3 x 2)", "  [{i}] {{{v}}}"),
        ("ffn_out layer 0: shape (3, 2)", "row {i}: [{v}]"),
        ("layer 0 ffn_out [3x2]:", "{i}: [{v}]"),
        ("ffn_out.0 3 x 2", "#{i} ({v})"),
    ],
)
def test_rows_of_tokens(head: str, row: str) -> None:
    text = IDS + "\n".join([head, *(row.format(i=i, v=v) for i, v in enumerate(ROWS))])
    found = read_log(Path("log"), (), text).observations
    assert [(o.name, o.data, o.rows) for o in found] == [
        ("ffn_out-0", (0.5, 0.25), (0, 1)), ("ffn_out-0", (1.5, 2.0), (1, 2)), ("ffn_out-0", (1.0, 3.0), (2, 3)),
    ]  # fmt: skip


@pytest.mark.parametrize("stacked", [True, False])
def test_rows_of_heads(stacked: bool) -> None:
    """The mask says whether the tokens of a head are next to each other, or the heads of a token."""
    rows = {(h, t): [round((h + 1) / (k + 2), 3) if k <= t else 0 for k in range(3)] for h in (0, 1) for t in range(3)}
    order = [(h, t) for h in (0, 1) for t in range(3)] if stacked else [(h, t) for t in range(3) for h in (0, 1)]
    lines = [f"  [{i}] {{{', '.join(map(str, rows[place]))}}}" for i, place in enumerate(order)]
    out = with_matrix_rows_named(IDS + "probs.0 (6 x 3)\n" + "\n".join(lines)).split("\n")[2:]
    assert [line.split(":")[0].strip() for line in out] == [f"head {h} pos {t}" for h, t in order]


@pytest.mark.parametrize(
    "text",
    [
        IDS + "q.0 (2 x 2)\n[0] {0.5, 0.25}\n[1] {1.5, 2.5}",  # of other rows
        IDS + "q.0 (3 x 2)\n[0] {0.5, 0.25}\n[1] {1.5, 2.5}",  # one is missing
        IDS + "q.0 (3 x 2)\n[1] {0.5, 0.25}\n[2] {1.5, 2.5}\n[3] {1.5, 2.5}",
        "q.0 (3 x 2)\n[0] {0.5, 0.25}\n[1] {1.5, 2.5}\n[2] {1.5, 2.5}",  # the tokens are not known
    ],
)
def test_others_stay(text: str) -> None:
    assert with_matrix_rows_named(text) == text
