"""Is a confidence what it says? Of the causes named at 0.9 to 1.0, the share that is right, from graded cases.

python bench/calibration.py                                       # results in build/
python bench/calibration.py RESULTS.jsonl ... --write             # and write docs/lab/calibration.md

Reads the results of `bench/grammar_faults.py` and `bench/recurrent_faults.py`: rows with a confidence and a grade. A
row without a cause makes no claim and is not counted.
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


def reliability(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each range of confidence: how many causes were named, how sure they were, how many were right."""
    heads = ("confidence", "causes", "mean confidence", "right")
    out = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    claims = [r for r in rows if r.get("confidence") and r["grade"] in (*RIGHT, "wrong")]
    for low, high in BINS:
        mine = [r for r in claims if low <= r["confidence"] < high or (high == 1.0 == r["confidence"])]
        right = sum(r["grade"] in RIGHT for r in mine)
        mean = f"{sum(r['confidence'] for r in mine) / len(mine):.2f}" if mine else "–"
        share = f"{100 * right / len(mine):.0f} % ({right})" if mine else "–"
        out.append(f"| {low:.1f} to {high:.1f} | {len(mine)} | {mean} | {share} |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="graded cases, one JSON object a line")
    parser.add_argument("--write", action="store_true", help="write docs/lab/calibration.md")
    args = parser.parse_args()
    files = args.results or [ROOT / "build" / f"{name}-faults.jsonl" for name in ("grammar", "recurrent")]
    rows = [row for file in files for row in grading.read(file)]
    text = "\n".join(reliability(rows))
    print(text)
    if args.write:
        head = (
            "# Calibration\n\n"
            f"Made by `bench/calibration.py --write`, {date.today().isoformat()}, from {len(rows)} graded cases of "
            "planted mistakes. A cause with a confidence of 0.9 or more should be right in at least "
            f"{NEEDED} of 100 cases. Cases without a cause are not counted.\n\n"
        )
        (ROOT / "docs" / "lab" / "calibration.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
