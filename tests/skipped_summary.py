"""One line at the end of a run: what is not installed, and how many tests were skipped for each of it.

A hook of pytest, which `conftest.py` takes over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable

import pytest

# How the tests say what they miss; the first alternative that matches names it.
_MISSING = re.compile(
    r"could not import '([\w.]+)'"
    r"|([\w+-]+), which is not installed"
    r"|\b(?:the )?`?([\w+-]+)`?(?: package)? is not (?:installed|on this machine)"
    r"|(chromium)"
    r"|(C(?:\+\+)? compiler)"
)


def missing(reasons: Iterable[str]) -> str:
    """The line for these reasons of skipped tests; empty where none of them is something that could be installed."""
    counts: Counter[str] = Counter()
    for reason in reasons:
        if found := _MISSING.search(reason):
            counts[next(filter(None, found.groups())).split(".")[0]] += 1
    named = ", ".join(f"{name} ({n})" for name, n in counts.most_common())
    return f"not installed here, so tests were skipped: {named}" if named else ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """After everything else that a summary says."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    line = missing(r.longrepr[-1] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in reports)
    if line:
        terminalreporter.write_line(line)
