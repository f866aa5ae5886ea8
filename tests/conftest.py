"""Shared by all tests: file order, reference data, hypothesis settings, threads, Ctrl-C, the line on skipped tests."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Two workers with two threads of BLAS each wait for one another on two cores; NumPy is not imported before this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("assay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("assay")

# Files of half a minute and more, longest first: they begin before the others, so that no process is left alone at the
# end with one of them (`--no-loadscope-reorder` keeps this order).
LONG = (
    "verify/diagnosis/test_named.py", "engines/test_cuda.py", "verify/diagnosis/test_small.py",
    "verify/diagnosis/test_rules.py", "verify/endpoint/test_blackbox.py", "serve/test_page.py",
    "verify/judge/test_verdict.py", "verify/diagnosis/test_two_ports.py", "test_tutorial.py",
    "verify/conformance/test_families.py", "verify/faults/test_families.py", "verify/diagnosis/test_likelihood.py",
    "engines/test_cuda_serving.py", "verify/judge/test_architectures.py", "serve/api/test_openapi.py",
    "system/test_files.py", "cluster/test_sweep.py",
)  # fmt: skip

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


_PACKAGE = re.compile(r"could not import '([\w.]+)'|\b(?:the )?([\w-]+)(?: package)? is not installed|(chromium)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line that names the missing packages and how many tests were skipped for each."""
    missing: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if found := _PACKAGE.search(reason):
            missing[next(filter(None, found.groups())).split(".")[0]] += 1
    if missing:
        named = ", ".join(f"{package} ({n})" for package, n in missing.most_common())
        terminalreporter.write_line(f"not installed here, so tests were skipped: {named}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    rank = {tests / name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))
    recorded = set((tests / "data" / "long_tests.txt").read_text().split())
    for item in items:
        if f"{item.path.relative_to(tests)}::{item.name.partition('[')[0]}" in recorded:
            item.add_marker("long")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data: `$ASSAY_SHARED`, else `../shared` beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    found = Path(os.environ.get("ASSAY_SHARED", beside))
    if not (found / "data").is_dir():
        pytest.skip(f"no reference data at {found}; set ASSAY_SHARED")
    return found


@pytest.fixture(scope="session")
def stories260k(shared_dir: Path) -> Path:
    """A real Llama of 64 by 5 in float32, 1 MB."""
    return shared_dir / "data" / "models" / "stories260K-f32.gguf"


@pytest.fixture(scope="session")
def stories15m(shared_dir: Path) -> Path:
    """A real Llama of 288 by 6 in Q8_0, 17 MB."""
    return shared_dir / "data" / "models" / "stories15M-q8_0.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model, 98 MB, fetched once into the cache."""
    from assay.errors import AssayError
    from assay.runtime import hub

    try:
        return hub.resolve("smollm2")
    except AssayError as error:
        pytest.skip(f"the default model cannot be fetched: {error}")
