"""Make what tests need: the shim, the C++ self-checks, compiled test modules, a table of characters.

`make test` runs it when it installs.

    python -m tests.prebuild

Each product is kept for the state of its sources, so a second run compiles nothing. Tests compile what is missing, so
nothing depends on this having run. Without it three workers would each rewrite the assertions of every test module, and
one would compile kernels while files wait for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from assay.engines.cuda import shim
from tests.native import self_checks


def main() -> None:
    """Compile all at once; what cannot be made here is left to its tests, which then say so."""
    if not shutil.which(os.environ.get("CXX", "c++")):
        return
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(work) for work in (shim.build, self_checks.build, _collect, _tabulate)]:
            if error := done.exception():
                print(f"left to the tests: {error}", file=sys.stderr)


def _collect() -> None:
    """Let pytest rewrite and compile every test module, and hypothesis read the constants of the sources."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def _tabulate() -> None:
    """Let hypothesis write its table of the characters that UTF-8 has: three seconds in every process that lacks it."""
    command = [sys.executable, "-c", "from hypothesis.strategies import characters as c; c(codec='utf-8').validate()"]
    subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
