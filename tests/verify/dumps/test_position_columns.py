"""Tables with a column for each position are lists of one statistic; tables of elements stay as they are."""

from __future__ import annotations

import pytest

from assay.verify.dumps.printed.position_columns import with_position_columns_as_lists

NAMED = "what,layer,t0,t1,t2\nnorm(emb),,1.5,2.5,3.5\nnorm(attn),0,0.5,0.25,0.125"
TITLED = (
    "L2 of the residual stream, per token\n\n| layer | tok 0 | tok 1 | tok 2 |\n"
    "|--:|--:|--:|--:|\n| 1 | 0.5 | 1.5 | 2.5 |"
)


def test_the_statistic_of_a_row_names_the_list() -> None:
    lines = with_position_columns_as_lists(NAMED).split("\n")
    assert lines == ["norm(emb) by token 1.5 2.5 3.5", "layer 0 norm(attn) by token 0.5 0.25 0.125"]


def test_the_title_names_the_statistic() -> None:
    lines = with_position_columns_as_lists(TITLED).split("\n")
    assert lines[-1] == "layer 1 residual stream norm by token 0.5 1.5 2.5"


@pytest.mark.parametrize(
    "text",
    [
        "what,layer,v0,v1,v2\nattn,0,0.5,1.5,2.5",  # elements
        "what,layer,t0,t1,t2\nattn,0,0.5,1.5,2.5",  # nothing says which number
        "what,t0,t2,t4\nnorm,0.5,1.5,2.5",  # not counted one by one
        "t0,t1,t2\n0.5,1.5,2.5",  # no column for words
        "the norm at tok 0, tok 1",
    ],
)
def test_other_tables_stay(text: str) -> None:
    assert with_position_columns_as_lists(text) == text
