"""Log formats that strangers to the reader wrote, sets of some thirty, as they were printed from the values of
`test_formats.values`: a JSON object a log, with its text and what every number of it means (node, kind, row, values).
What was made of each at first sight is in `docs/explanation/verify.md`."""

import json
from dataclasses import replace
from pathlib import Path

from tests.verify.dumps.formats import Format

SETS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
    "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth",
    "seventeenth", "eighteenth", "nineteenth", "twentieth", "twenty_first", "twenty_second", "twenty_third",
    "twenty_fourth", "twenty_fifth",
)  # fmt: skip
DATA = Path(__file__).parents[2] / "data" / "formats"


def printed(path: Path) -> list[Format]:
    """The logs of a file."""
    logs = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Format(
            log["name"],
            lambda run, log=log: log["text"],
            lambda run, log=log: [(node, kind, row, tuple(values)) for node, kind, row, values in log["means"]],
        )
        for log in logs
    ]


FORMATS = [replace(form, name=f"{name}: {form.name}") for name in SETS for form in printed(DATA / f"{name}.jsonl")]
UNREAD = {
    "twenty_fourth: julia @info",
    "twenty_third: ggml callback rows",
    "twenty_third: paper notation",
    "twenty_second: ocaml printf rms",
    "sixth: tinygrad, DEBUG=2 noise and indexed expression labels",
    "sixth: julia @show/display of a column vector",
    "seventh: reddit prose with inline numbers",
    "eighth: c fixed-width rms table on stderr",
    "thirteenth: pdb session",
}
