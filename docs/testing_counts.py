"""Counts for docs/testing.md: tests, faults, operations, architectures, recorded bits.

Touch it when a new kind of test needs a count.

    python docs/testing_counts.py            # counts, and writes them between the two marks of docs/testing.md
    python docs/testing_counts.py --print    # prints the table only

Collecting imports every test file, which takes a minute or two. Nothing is run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- counts: made by docs/testing_counts.py -->", "<!-- end of counts -->"
FOLDERS = {
    "cli": "the command line",
    "cluster": "replicas, stages, failover, sweeps",
    "convert": "Hugging Face folders to GGUF",
    "engines": "reference, cpu and cuda (under the shim), bit for bit",
    "evaluate": "perplexity, divergence, choices",
    "examples": "the packages in `examples/`, installed and used",
    "fuzz": "a short run of the fuzzers",
    "gguf": "files, metadata, block codecs, quantisers",
    "graph": "operations, shapes, names, state",
    "hostile": "inputs made to break the readers and the server",
    "library": "what `import assay` offers",
    "models": "an example of every architecture",
    "native": "the C++ self-checks, for every instruction set of the machine",
    "runtime": "scheduler, cache pages, sampler, grammars, model names",
    "serve": "the HTTP API, its clients, the web page",
    "system": "file writes that fail, clocks that leap, the sandbox",
    "text": "tokenizers and chat templates",
    "verify": "dumps, verdicts, faults, diagnosis, witnesses",
    "vision": "pictures: decoding, preprocessing, towers",
}


class Collected:
    """A pytest plugin that counts what was collected, by folder."""

    def __init__(self) -> None:
        self.all: Counter[str] = Counter()
        self.slow: Counter[str] = Counter()
        self.files: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            parts = item.path.relative_to(ROOT / "tests").parts
            folder = parts[0] if len(parts) > 1 else "tests"
            self.all[folder] += 1
            self.slow[folder] += item.get_closest_marker("slow") is not None
            self.files.add("/".join(parts))


def collected() -> Collected:
    """Every test of the tree, found by pytest itself."""
    found = Collected()
    os.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider"], plugins=[found])
    return found


def table() -> str:
    """The table of testing.md, with the date and the machine it was made on."""
    from assay.graph import OPS
    from assay.models.catalogue import ARCHITECTURES
    from assay.verify.faults import FAULTS

    found = collected()
    bits = json.loads((ROOT / "tests" / "data" / "bits.json").read_text())
    variants = [variant for fault in FAULTS.values() for variant in fault.variants]
    planted = sum(bool(fault.variants) for fault in FAULTS.values())
    rows = [
        ("tests", f"{found.all.total():,} in {len(found.files)} files; {found.slow.total():,} are marked slow"),
        ("faults in the catalogue", f"{len(FAULTS)}; {planted} are planted, in {len(variants)} variants"),
        ("operations with a textbook definition", str(len(OPS))),
        ("architectures", str(len(ARCHITECTURES))),
        ("models whose logits are recorded bit for bit", str(len(bits["cases"]))),
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    out = [f"Counted on {datetime.date.today().isoformat()} ({machine}) by `python docs/testing_counts.py`.\n"]
    out += ["| what | how many |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    out += ["| folder of `tests/` | tests | slow | covers |", "|---|---:|---:|---|"]
    for folder, n in sorted(found.all.items()):
        covers = FOLDERS.get(folder, "imports, pages, emitters, installation, the tutorial")
        out.append(f"| `{folder}` | {n:,} | {found.slow[folder]:,} | {covers} |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the table and write nothing")
    only_print = parser.parse_args().print
    text = table()
    if only_print:
        print(text)
        return 0
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        print(f"{PAGE}: the marks of the counts are missing; restore {BEGIN} and {END}", file=sys.stderr)
        return 2
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
