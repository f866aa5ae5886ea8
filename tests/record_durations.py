"""Record which tests are too long for the fast tier and which files take longest, from a run of the whole suite.

    python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --junitxml=build/tests.xml
    python tests/record_durations.py build/tests.xml

A test function goes to `tests/data/long_tests.txt` if one of its cases took `LONG_SECONDS` or more. `conftest.py` gives
these functions the marker `long`, and `make test-fast` leaves them out. Run it when the fast tier exceeds 3 minutes.

A file that took `LONG_FILE_SECONDS` or more goes to `tests/data/long_files.txt`, the longest first. `conftest.py` lets
these files begin before the others, so that no process is left alone at the end with one of them.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

LONG_SECONDS = 0.6
LONG_FILE_SECONDS = 20
DATA = Path(__file__).parent / "data"


def main(report: str) -> None:
    """Write both lists from a JUnit report of pytest."""
    long, files = set[str](), defaultdict[str, float](float)
    for case in ET.parse(report).getroot().iter("testcase"):
        seconds, test = float(case.get("time", "0")), case.get("name", "").partition("[")[0]
        file = _file(case.get("classname", ""))
        files[file] += seconds
        if seconds >= LONG_SECONDS:
            long.add(f"{file}::{test}")
    first = sorted((file for file in files if files[file] >= LONG_FILE_SECONDS), key=lambda file: -files[file])
    for name, lines in (("long_tests.txt", sorted(long)), ("long_files.txt", first)):
        (DATA / name).write_text("".join(f"{line}\n" for line in lines))
        print(f"{DATA / name}: {len(lines)}")


def _file(classname: str) -> str:
    """The file of a test, below `tests`: of a method the name of its class is left out."""
    parts = [part for part in classname.removeprefix("tests.").split(".") if not part[:1].isupper()]
    return f"{'/'.join(parts)}.py"


if __name__ == "__main__":
    main(sys.argv[1])
