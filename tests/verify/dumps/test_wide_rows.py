"""Tables aligned by blanks: rows wider than the first ones, and lines between the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.dumps.printed.log_reader import read_log

NODES = ("q", "k", "v", "ffn_norm", "ffn_out")
MEANS = ("Qcur_proj", "Kcur_proj", "Vcur", "ffn_norm", "ffn_out")


def table(head: str, row: str, between: str, repeated: bool) -> str:
    """Three tokens and four layers; the numbers of later layers need more columns than those of the first."""
    lines = ["ids: 5 6 7"]
    for pos in range(3):
        lines += [head] if repeated or not pos else []
        for layer in range(4):
            for i, name in enumerate(NODES):
                value = -(10.0**layer) * (1 + pos + i / 8)
                lines.append(row.format(pos=pos, layer=layer, name=name, a=value, b=-value * 2, c=-value / 3, n=64))
        lines += [between.format(pos=pos)] if between else []
    return "\n".join(lines)


FORMS = (
    (
        "pos lay  buf         count           min          max         rms",
        "{pos:3d} {layer:3d}  {name:<10}{n:7d}{a:14.5f}{b:13.5f}{c:12.6f}",
    ),
    (
        "tok layer tensor        min        max        rms",
        "{pos:<3d} {layer:<5d} {name:<8} {a:9.3f}  {b:9.3f}  {c:9.4f}",
    ),
    (
        "row blk what          n      min      max      rms",
        "{pos:>3d} {layer:>3d} {name:<10} {n:4d} {a:8.2f} {b:8.2f} {c:8.3f}",
    ),
)
BETWEEN = ("", "    >>> pos {pos}  argmax out 38 (12.32267)", "  best 17 = 4.5, next 3 = 2.25", "done {pos}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("repeated", [False, True])
def test_every_row_is_taken(form: tuple[str, str], between: str, repeated: bool) -> None:
    found = read_log(Path("log"), (), table(*form, between, repeated)).observations
    rows = {(o.name, o.kind, o.rows) for o in found if o.kind in ("min", "max", "rms")}
    for pos in range(3):
        for layer in range(4):
            for name in MEANS:
                for kind in ("min", "max", "rms"):
                    assert (f"{name}-{layer}", kind, (pos, pos + 1)) in rows, (name, layer, kind, pos)
    shown = {(o.name, o.rows): o.data for o in found if o.kind == "min"}
    assert shown["ffn_out-3", (2, 3)] == pytest.approx(-3500, rel=1e-5)
