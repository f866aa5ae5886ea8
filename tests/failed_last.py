"""Lists the tests that failed in the last run: `python -m tests.failed_last`.

The exit code is 1 where no test failed, where too many did, and where the run did not come to its end.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

RECORDS = Path(__file__).parent.parent / ".pytest_cache" / "v"
FAILED = RECORDS / "cache" / "lastfailed"
ENDED = RECORDS / "assay" / "ended"  # `conftest.py`: pytest's exit status; 1 is a whole run with failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-most", type=int, default=10)
    most = parser.parse_args().at_most
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    whole = ENDED.exists() and json.loads(ENDED.read_text()) == 1
    print(
        f"{len(failed)} tests failed" + ("" if whole else ", in a run that did not end"),
        *failed[: most + 1],
        sep="\n  ",
    )
    return 0 if whole and 0 < len(failed) <= most else 1


if __name__ == "__main__":
    sys.exit(main())
