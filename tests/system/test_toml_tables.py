"""The package's TOML tables: what is kept is what the file says, and a changed file is read again."""

from __future__ import annotations

import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import assay
from assay.system.toml_tables import read_table

SRC = Path(assay.__file__).parent


@pytest.mark.parametrize("path", sorted(p.relative_to(SRC) for p in SRC.rglob("*.toml")), ids=str)
def test_a_table_is_its_file(path: Path) -> None:
    expected = tomllib.loads((SRC / path).read_text("utf-8"))
    for _ in range(2):  # parsed, then kept
        assert read_table("assay", *path.parts) == expected


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / f"tables_of_{tmp_path.name}"  # the interpreter remembers packages by name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rows.toml").write_text("[a]\nn = 1\n")
    (folder / "rows.py").write_text("n = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


def test_a_changed_file_is_read_again(package: Path) -> None:
    first = read_table(package.name, "rows.toml")
    first["a"]["n"] = 3  # a caller's copy
    assert read_table(package.name, "rows.toml") == {"a": {"n": 1}}
    (kept,) = package.glob("__pycache__/rows.toml.*.pyc")
    before = kept.read_bytes()
    (package / "rows.toml").write_text("[b]\n")
    os.utime(package / "rows.toml", (1, 1))
    assert read_table(package.name, "rows.toml") == {"b": {}}
    assert kept.read_bytes() != before


def test_a_module_of_the_same_name_is_another(package: Path) -> None:
    assert read_table(package.name, "rows.toml") == {"a": {"n": 1}}
    assert import_module(f"{package.name}.rows").n == 2
    assert read_table(package.name, "rows.toml") == {"a": {"n": 1}}
