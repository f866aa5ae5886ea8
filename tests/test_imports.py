"""Imports point one way: system -> gguf, text -> graph -> models -> engines -> runtime -> verify, serve -> cli."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "assay"
RANK = {
    "system": -1,
    "gguf": 0,
    "text": 1,
    "graph": 2,
    "models": 3,
    "engines": 4,
    "runtime": 5,
    "verify": 6,
    "serve": 6,
    "cli": 7,
}
FREE = {"errors", "_native"}  # known to all


def imported(path: Path) -> set[str]:
    """First names below `assay` that a module imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level < 2, f"{path}: a relative import that may leave its package"
            if node.level:
                continue
            names = [node.module or ""] if node.module != "assay" else [f"assay.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("assay.")}
    return found - {"__version__"}


@pytest.mark.parametrize("package", RANK)
def test_imports_point_one_way(package: str) -> None:
    for path in (SRC / package).rglob("*.py"):
        for other in imported(path) - FREE - {package}:
            assert other in RANK, f"{path.name} imports assay.{other}, which has no place in the order"
            assert RANK[other] < RANK[package], f"{path.relative_to(SRC)} imports assay.{other}: against the order"


def test_every_package_has_its_place() -> None:
    assert {p.name for p in SRC.iterdir() if p.is_dir() and any(p.glob("*.py"))} <= set(RANK)
