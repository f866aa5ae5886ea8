"""A column that names the call of each row, and tables below a title."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.printed.call_columns import with_calls_headed
from assay.verify.dumps.printed.log_reader import read_log

FORMS = [
    ("# prompt=[9, 88, 131] decode=[60, 101]", "call,layer,node,rms,x0", ("prefill", "dec1", "dec2"), ","),
    ("prompt ids: 9 88 131\ngenerated ids: 60 101", "phase;layer;node;rms;x0", ("prompt", "step 1", "step 2"), ";"),
    ("tokens 9 88 131\n# fed: 60, 101", "pass\tlayer\tnode\trms\tx0", ("pp", "tg0", "tg1"), "\t"),
    ("ids = 9 88 131\nfollowed by = 60 101", "step|layer|node|rms|x0", ("0", "1", "2"), "|"),
]


def table(ids: str, head: str, calls: tuple[str, ...], mark: str) -> str:
    lines = [ids, head]
    for i, call in enumerate(calls):
        for layer in range(2):
            for node in ("q", "ffn_out"):
                lines.append(mark.join([call, str(layer), node, f"{i + 0.5:.4f}", f"{-i - 0.25:.4f}"]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("ids", "head", "calls", "mark"), FORMS)
def test_the_rows_of_decode_steps_are_told_apart(ids: str, head: str, calls: tuple[str, ...], mark: str) -> None:
    dump = read_log(Path("x.csv"), text=table(ids, head, calls, mark))
    assert [token for token, _ in dump.later] == [60, 101]
    assert all(len(found) == len(dump.observations) for _, found in dump.later)


@pytest.mark.parametrize(
    ("ids", "calls"),
    [
        ("# prompt=[9, 88, 131] decode=[60]", ("prefill", "dec1", "dec2")),  # fewer ids than steps
        ("# prompt=[9, 88, 131] decode=[60, 101]", ("a", "b", "c")),
        ("# prompt=[9, 88, 131] decode=[60, 101]", ("prefill", "dec2", "dec1")),
    ],
)
def test_other_columns_stay(ids: str, calls: tuple[str, ...]) -> None:
    text = table(ids, "call,layer,node,rms,x0", calls, ",")
    assert with_calls_headed(text) == text


def test_a_title_above_the_header_is_no_header() -> None:
    rows = [f"{n:<12}{layer:>4}{-0.5 - layer:>13.6f}{2.5:>13.6f}" for layer in range(3) for n in ("q", "attn", "ffn")]
    lines = ["ids: 5 6 7", "values of the LAST input token", "", "what       layer         mean          std", *rows]
    dump = read_log(Path("x.txt"), text="\n".join(lines) + "\n")
    assert {o.kind for o in dump.observations} == {"mean", "std"}
