"""Is a confidence what it says? Of the causes named at 0.9 to 1.0, the share that is right, from graded cases.

python bench/calibration.py                                       # results in build/
python bench/calibration.py RESULTS.jsonl ... --write             # and write docs/lab/calibration.md and its plot

Reads the results of `bench/grammar_faults.py`, `bench/recurrent_faults.py` and `bench/score.py`: rows with a confidence
and a grade. A row without a cause makes no claim and is not counted; nor are right engines and faults without a name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import grading  # noqa: E402

BINS = ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.0))
RIGHT = ("right", "tied")
NEEDED = 97  # percent right of the verdicts at 0.9 and more


def claims(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float, list[dict[str, Any]]]]:
    """The rows with a cause, by the range of its confidence."""
    planted = [r for r in rows if r["kind"] not in ("healthy", "unknown")]
    named = [r for r in planted if r.get("confidence") and r["grade"] in (*RIGHT, "wrong")]
    return [
        (low, high, [r for r in named if low <= r["confidence"] < high or (high == 1.0 == r["confidence"])])
        for low, high in BINS
    ]


def mean_confidence(rows: Sequence[dict[str, Any]]) -> float:
    return float(sum(r["confidence"] for r in rows) / len(rows))


def reliability(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each range of confidence: how many causes were named, how sure they were, how many were right."""
    heads = ("confidence", "causes", "mean confidence", "right", "right or tied")
    out = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for low, high, mine in claims(rows):
        counts = [sum(r["grade"] in grades for r in mine) for grades in (("right",), RIGHT)]
        mean = f"{mean_confidence(mine):.2f}" if mine else "–"
        shares = " | ".join(f"{100 * n / len(mine):.1f} % ({n})" if mine else "–" for n in counts)
        out.append(f"| {low:.1f} to {high:.1f} | {len(mine)} | {mean} | {shares} |")
    return out


SIZE, MARGIN = 300, 44  # of the plot's square, and around it


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """The share that is right over the mean confidence, as SVG. A circle's area grows with the number of causes."""
    side = SIZE + 2 * MARGIN

    def at(x: float, y: float) -> tuple[float, float]:
        return MARGIN + SIZE * x, MARGIN + SIZE * (1 - y)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

    (x0, y0), (x1, y1) = at(0, 0), at(1, 1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" width="{side}" height="{side}"'
        ' font-family="sans-serif" font-size="11" fill="#333" role="img" aria-label="Reliability of confidences">',
        f'<rect width="{side}" height="{side}" fill="#fff"/>',
        f'<rect x="{x0}" y="{y1}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>',
        f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="#999" stroke-dasharray="4 4"/>',
        text(side / 2, side - 8, "mean confidence"),
        f'<g transform="rotate(-90 12 {side / 2})">{text(12, side / 2, "share that is right")}</g>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = at(tick, tick)
        out += [text(x, y0 + 15, f"{tick:g}"), text(x0 - 6, y + 4, f"{tick:g}", "end")]
    for _, _, mine in claims(rows):
        if mine:
            x, y = at(mean_confidence(mine), sum(r["grade"] == "right" for r in mine) / len(mine))
            radius = 3 + len(mine) ** 0.5 / 5
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#2a6fb0" opacity="0.8"/>')
            out.append(text(x - 12, y + 16, str(len(mine)), "end"))
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="graded cases, one JSON object a line")
    parser.add_argument("--write", action="store_true", help="write docs/lab/calibration.md and its plot")
    args = parser.parse_args()
    files = args.results or [ROOT / "build" / f"{name}-faults.jsonl" for name in ("grammar", "recurrent")]
    rows = [row for file in files for row in grading.read(file)]
    text = "\n".join(reliability(rows))
    print(text)
    if args.write:
        head = (
            "# Calibration\n\n"
            f"Made by `bench/calibration.py --write`, {date.today().isoformat()}, from {len(rows)} graded cases of "
            f"planted mistakes ({', '.join(file.stem for file in files)}). "
            f"A cause with a confidence of 0.9 or more should be right in at least {NEEDED} of 100 cases. "
            "Cases without a cause are not counted. "
            "*Tied*: the planted mistake is listed beside the cause, because both give the same values.\n\n"
            "![Share of right causes over their mean confidence; the number of causes stands beside each "
            "circle](calibration.svg)\n\n"
        )
        page = ROOT / "docs" / "lab" / "calibration.md"
        page.write_text(head + text + "\n")
        page.with_suffix(".svg").write_text(plot(rows))


if __name__ == "__main__":
    main()
