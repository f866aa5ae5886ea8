"""Log formats that strangers to the reader wrote, sets of some thirty. What it made of each at first sight is in
`docs/verify.md`. The first eight are programs, the later ones what such programs printed: a JSON object a log, with its
text and what every number of it means (node, kind, row, values)."""

import json
from dataclasses import replace
from pathlib import Path

from tests.verify.dumps.formats import Format
from tests.verify.dumps.strangers import eighth, fifth, first, fourth, second, seventh, sixth, third

SETS = {
    "first": first, "second": second, "third": third, "fourth": fourth, "fifth": fifth, "sixth": sixth,
    "seventh": seventh, "eighth": eighth,
}  # fmt: skip
PRINTED = ("ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth")


def printed(name: str | Path) -> list[Format]:
    """The logs of a set, or of a file, as they were printed from the values of `test_formats.values`."""
    path = name if isinstance(name, Path) else Path(__file__).parents[3] / "data" / "formats" / f"{name}.jsonl"
    logs = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        Format(
            log["name"],
            lambda run, log=log: log["text"],
            lambda run, log=log: [(node, kind, row, tuple(values)) for node, kind, row, values in log["means"]],
        )
        for log in logs
    ]


FORMATS = [replace(form, name=f"{name}: {form.name}") for name, each in SETS.items() for form in each.FORMATS]
FORMATS += [replace(form, name=f"{name}: {form.name}") for name in PRINTED for form in printed(name)]
UNREAD = {
    "sixth: tinygrad, DEBUG=2 noise and indexed expression labels",
    "sixth: julia @show/display of a column vector",
    "seventh: reddit prose with inline numbers",
    "seventh: top logits listing with residual norms",
    "eighth: c fixed-width rms table on stderr",
    "eighth: c dump_vec helper, first and last elements",
    "eighth: python self-documenting f-strings",
    "tenth: CUDA C++, per kernel dump with timings",
    "eleventh: gdb session",
    "thirteenth: pdb session",
    "thirteenth: CUDA D2H dump, indexed elements",
    "fourteenth: numpy array repr",
    "fifteenth: gdb session",
    "sixteenth: d writefln head and tail",
}
