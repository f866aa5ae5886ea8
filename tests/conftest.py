"""Shared by all tests: file order, reference data, hypothesis settings, threads, Ctrl-C, the line on skipped tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.skipped_summary import pytest_terminal_summary  # noqa: F401  a hook

# Two workers with two threads of BLAS each wait for one another on two cores; NumPy is not imported before this.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("assay", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("assay")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # until all is collected: nothing of it is garbage


def pytest_collection_finish() -> None:
    """Thousands of collected tests live to the end: the garbage collector need not look at them again and again."""
    _prepare_httpx()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # tests leave few cycles, and a diagnosis makes millions of small objects
    gc.enable()


def _prepare_httpx() -> None:
    """Clients of a process share the certificates, which take 60 ms to read; they wait 60 s, for busy machines."""
    for package in ("httpx", "httpx2"):
        if patience := getattr(sys.modules.get(f"{package}._config"), "DEFAULT_TIMEOUT_CONFIG", None):
            patience.connect = patience.read = patience.write = patience.pool = 60.0
        transports = sys.modules.get(f"{package}._transports.default")
        if create := getattr(transports, "create_ssl_context", None):
            transports.create_ssl_context = cache(create)  # type: ignore[union-attr]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """`failed_last.py` asks whether the run was whole."""
    kept = getattr(session.config, "cache", None)  # none under `-p no:cacheprovider`
    if kept and not os.environ.get("PYTEST_XDIST_WORKER"):
        kept.set("assay/ended", int(exitstatus))


def pytest_unconfigure() -> None:
    """Let the interpreter free them at its end: nanobind reports what is left over."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files begin before the others (`--no-loadscope-reorder` keeps this order); `long` marks long tests."""
    tests = Path(__file__).parent
    first, recorded = ((tests / "data" / name).read_text().split() for name in ("long_files.txt", "long_tests.txt"))
    rank = {tests / name: i for i, name in enumerate(first)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    known = set(recorded)
    for item in items:
        if f"{item.path.relative_to(tests)}::{item.name.partition('[')[0]}" in known:
            item.add_marker("long")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the suite, which all workers share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture
def hide_architecture() -> Iterator[Callable[[str], object]]:
    """Takes an architecture out of the table. Afterwards the table is whole again, in its order."""
    from assay.models.catalogue import ARCHITECTURES

    before = dict(ARCHITECTURES)
    yield ARCHITECTURES.pop
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


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
