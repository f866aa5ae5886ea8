"""Record which tests are too long for the fast tier, from a run of the whole suite.

    python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --junitxml=build/tests.xml
    python tests/record_durations.py build/tests.xml

A test function goes to `tests/data/long_tests.txt` if one of its cases took `LONG_SECONDS` or more. `conftest.py` gives
these functions the marker `long`, and `make test-fast` leaves them out. Run it when the fast tier exceeds 3 minutes.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

LONG_SECONDS = 0.6
LIST = Path(__file__).parent / "data" / "long_tests.txt"


def main(report: str) -> None:
    """Write the list from a JUnit report of pytest."""
    long = set()
    for case in ET.parse(report).getroot().iter("testcase"):
        if float(case.get("time", "0")) >= LONG_SECONDS:
            module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            long.add(f"{module}.py::{case.get('name', '').partition('[')[0]}")
    LIST.write_text("".join(f"{name}\n" for name in sorted(long)))
    print(f"{LIST}: {len(long)} test functions of {LONG_SECONDS:g} s or more")


if __name__ == "__main__":
    main(sys.argv[1])
