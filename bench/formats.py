"""How well printed text is understood: the sets of logs of `tests/verify/dumps`, or logs of your own.

    python bench/formats.py [ninth tenth …] [--file LOGS.jsonl] [--wrong]

A log is a JSON object a line: `name`, `text`, and `means`, a list of (node, kind, row, values) for every number in it.
The engine that prints is right in the embedding and layer 0 and wrong after that. Three figures are counted for each
set: logs in which every number is read as meant and nothing else is; ways of printing a node (a node's role and a
statistic in one log) in which all numbers are; and numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.verify.dumps import strangers, test_formats
from tests.verify.dumps.formats import Format, Run

from assay.graph import split
from assay.models import Model


def graded(form: Format, run: Run, model: Model) -> tuple[dict[tuple[str, str], bool], int, int, bool]:
    """One log's result: understood ways of printing, understood numbers, all numbers, whether all are understood."""
    left = test_formats.read_in_a_hunt(form, run, model)
    ways: dict[tuple[str, str], bool] = {}
    meant = form.means(run)
    right = 0
    for fact in meant:
        obs = test_formats.reading(fact, left, model)
        if obs is not None and fact[1] not in ("at", "top"):
            left.remove(obs)
        right += obs is not None
        way = (split(fact[0])[0], fact[1])
        ways[way] = ways.get(way, True) and obs is not None
    return ways, right, len(meant), right == len(meant) and {o.kind for o in left} <= {"at", "top"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=strangers.SETS)
    parser.add_argument("--file", type=Path, help="logs of your own")
    parser.add_argument("--wrong", action="store_true", help="name what is not understood")
    args = parser.parse_args()
    run = test_formats.values()
    totals = [0] * 6
    with tempfile.TemporaryDirectory() as folder:
        model = test_formats.small_model(Path(folder))
        for path in [args.file] if args.file else [strangers.DATA / f"{name}.jsonl" for name in args.sets]:
            forms = strangers.printed(path)
            sums = [0] * 6
            for form in forms:
                ways, right, numbers, whole = graded(form, run, model)
                for i, n in enumerate((whole, 1, sum(ways.values()), len(ways), right, numbers)):
                    sums[i] += n
                if args.wrong and not whole:
                    print(
                        f"  {form.name}: {', '.join(' '.join(way) for way, fine in ways.items() if not fine) or 'more'}"
                    )
            print(_line(path.stem, sums))
            totals = [a + b for a, b in zip(totals, sums, strict=True)]
    print(_line("all", totals))


def _line(name: str, sums: list[int]) -> str:
    parts = (
        f"{a} of {b} {what} ({100 * a / b:.1f} %)"
        for a, b, what in zip(sums[::2], sums[1::2], ("logs", "ways", "numbers"), strict=True)
    )
    return f"{name}: {', '.join(parts)}"


if __name__ == "__main__":
    main()
