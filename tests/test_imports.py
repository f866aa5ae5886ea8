"""Imports point one way: system, gguf, text, graph, models, engines, runtime, then verify and serve, library, cli.

Inside a package with rooms they point one way too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "assay"
RANK = {
    "system": -1, "gguf": 0, "text": 1, "graph": 2, "models": 3, "engines": 4, "runtime": 5, "verify": 6, "serve": 6,
    "library": 7, "cli": 8,
}  # fmt: skip
FREE = {"errors", "_native"}  # known to all

# What each room of `serve` may import of the others; the room "" is the modules that stand in `serve` itself.
SERVE = {
    "errors": set(),
    "limits": set(),
    "http": {"errors", "limits"},
    "pool": {"errors", "limits"},
    "api": {"errors", "limits", "http", "pool"},
    "app": {"api", "http"},
    "server": {"errors", "limits", "http", "pool", "api", "app"},
}


def imported(path: Path) -> set[tuple[str, ...]]:
    """Names below `assay` that a module imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level < 2, f"{path}: a relative import that may leave its package"
            if node.level:
                continue
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {tuple(name.split(".")[1:]) for name in names if name.startswith("assay.")}
    return found - {("__version__",)}


@pytest.mark.parametrize("package", RANK)
def test_imports_point_one_way(package: str) -> None:
    for path in (SRC / package).rglob("*.py"):
        for other in {name[0] for name in imported(path)} - FREE - {package}:
            assert other in RANK, f"{path.name} imports assay.{other}, which has no place in the order"
            assert RANK[other] < RANK[package], f"{path.relative_to(SRC)} imports assay.{other}: against the order"


def test_every_package_has_its_place() -> None:
    assert {p.name for p in SRC.iterdir() if p.is_dir() and any(p.glob("*.py"))} <= set(RANK)


def test_the_face_imports_nothing() -> None:
    """`import assay` is quick: what is behind a name is imported when the name is used."""
    tree = ast.parse((SRC / "__init__.py").read_text())
    heavy = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {getattr(node, "module", None) or node.names[0].name for node in heavy} <= {
        "__future__", "importlib", "typing", "assay.errors", "assay.runtime.params",
    }  # fmt: skip


def test_the_rooms_of_serve() -> None:
    top = SRC / "serve"
    rooms = {path.relative_to(top).parts[0].removesuffix(".py") for path in top.rglob("*.py")} - {"__init__"}
    assert rooms == set(SERVE)
    for path in top.rglob("*.py"):
        room = path.relative_to(top).parts[0].removesuffix(".py")
        for name in imported(path):
            if name[0] == "serve" and name[1] != room:
                assert name[1] in SERVE[room], f"{path.relative_to(SRC)} imports serve.{name[1]}: against the order"


def test_the_runtime_knows_no_protocol() -> None:
    for path in (SRC / "runtime").glob("*.py"):
        text = path.read_text()
        assert not any(word in text for word in ("starlette", "uvicorn", "pydantic", "asyncio")), path.name
