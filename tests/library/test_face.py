"""`import assay` is quick and says what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import assay


def test_every_name_is_there_and_described() -> None:
    for name in assay.__all__:
        value = getattr(assay, name)
        assert name == "__version__" or (value.__doc__ or "").strip(), name
    assert set(assay.__all__) <= set(dir(assay))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = assay.nothing  # type: ignore[attr-defined]
    assert (Path(assay.__file__).parent / "py.typed").is_file()


def test_importing_brings_nothing_heavy() -> None:
    code = "import sys; before = set(sys.modules); import assay; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert {name for name in found if name.startswith("assay")} == {"assay", "assay.version"}
    assert not {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - {"assay"}


def test_what_a_checker_sees_is_what_there_is() -> None:
    source = Path(assay.__file__).read_text()
    for name, home in assay._HOMES.items():
        assert f"from {home} import {name} as {name}" in source
