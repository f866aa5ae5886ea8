"""What a run says of tests that could not run here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.skipped_summary import missing


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("Skipped: could not import 'llama_cpp': No module named 'llama_cpp'", "llama_cpp"),
        ("Skipped: could not import 'playwright.sync_api': No module named 'playwright'", "playwright"),
        ("Skipped: the openai package is not installed", "openai"),
        ("Skipped: NVRTC is not installed: the extra `cuda` brings it", "NVRTC"),
        ("Skipped: the extra `serve` is not installed", "serve"),
        ("Skipped: the self-checks are built with cmake, which is not installed", "cmake"),
        ("Skipped: no chromium on this machine", "chromium"),
        ("Skipped: the shim needs a C++ compiler", "C++ compiler"),
        ("Skipped: node is not on this machine", "node"),
    ],
)
def test_a_reason_names_what_is_missing(reason: str, named: str) -> None:
    assert missing([reason, reason]) == f"not installed here, so tests were skipped: {named} (2)"


def test_other_reasons_say_nothing() -> None:
    assert missing(["Skipped: weather is the shim's", "Skipped: root may read everything"]) == ""


def test_it_is_one_line_and_only_the_count_follows(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(
        "import pytest\n"
        "def test_a(): pytest.importorskip('no_such_package')\n"
        "def test_b(): pytest.skip('no_such_package is not installed')\n"
        "@pytest.mark.xfail\ndef test_c(): assert False\n"
    )
    plugins = ["-p", "tests.skipped_summary", "-p", "no:cacheprovider"]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-rx", "test_two.py"], cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    *_, line, count = done.stdout.strip().splitlines()
    assert line == "not installed here, so tests were skipped: no_such_package (2)", done.stdout
    assert "2 skipped" in count and done.stdout.count("not installed here") == 1
