"""The architecture, enforced: imports point one way, and one name means one thing.

Packages are ranked: system, gguf, text, graph, models, engines, vision, runtime, then verify and serve, evaluate,
library and cli. A module imports only packages of a lower rank. Inside a package with rooms the rooms are ranked too.
No modules import each other in a circle. No two modules and no two public classes share a name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from docs import rooms
from docs.rooms import imported

SRC = Path(__file__).parent.parent / "src" / "assay"
RANK = {
    "system": -1, "gguf": 0, "text": 1, "graph": 2, "models": 3, "engines": 4, "vision": 5, "runtime": 6,
    "verify": 7, "serve": 7, "evaluate": 8, "convert": 8, "library": 9, "cluster": 10, "cli": 11,
}  # fmt: skip
FREE = {"errors", "version", "_native"}  # known to all

# What each room of a package may import of the others: a folder, or a module that stands in the package itself.
ROOMS: dict[str, dict[str, set[str]]] = {
    "serve": {
        "api_errors": set(),
        "limits": set(),
        "http": {"api_errors", "limits"},
        "pool": {"api_errors", "limits"},
        "api": {"api_errors", "limits", "http", "pool"},
        "app": {"api", "http"},
        "server": {"api_errors", "limits", "http", "pool", "api", "app"},
    },
    "verify": {
        "thresholds": set(),
        "dumps": {"thresholds"},
        "judge": {"thresholds", "dumps"},
        "faults": {"dumps"},
        "witness": {"dumps"},
        "diagnosis": {"thresholds", "dumps", "judge", "faults"},
        "pictures": {"thresholds", "dumps", "judge", "faults", "diagnosis"},
        "conformance": {"thresholds", "dumps", "judge", "faults", "pictures"},
        "endpoint": {"thresholds", "dumps", "judge", "faults", "diagnosis"},
        "report": {"dumps", "judge", "faults", "diagnosis"},
    },
}


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
        "__future__", "importlib", "typing", "assay.errors", "assay.runtime.params", "assay.version",
    }  # fmt: skip


# The rooms of `verify/dumps`. Only observations leave `formats` and `printed`; only `load` knows how a print is read.
DUMPS: dict[str, set[str]] = {
    "observation": set(),
    "print_rounding": set(),
    "naming": set(),
    "other_evidence": {"observation"},
    "contradictions": {"observation"},
    "finite": {"observation"},
    "reader_table": {"observation"},
    "formats": {"observation", "print_rounding"},
    "printed": {"observation", "print_rounding", "naming"},
    "matching": {"observation", "other_evidence", "naming", "tracing"},
    "draft_tracing": {"observation"},
    "tracing": {"observation", "formats"},
    "state_rows": {"observation"},
    "unknown_names": {"observation", "finite", "naming", "matching", "tracing"},
    "definition_values": {"observation", "state_rows"},
    "token_checks": {"observation", "tracing"},
    "node_translation": {"observation", "naming", "unknown_names"},
    "node_axes": {"observation", "definition_values", "matching", "tracing", "unknown_names"},
    "resolve": {
        "observation", "other_evidence", "finite", "matching", "state_rows", "tracing", "draft_tracing",
        "unknown_names", "definition_values", "token_checks", "node_translation", "node_axes",
    },
    "load": {"observation", "other_evidence", "reader_table", "formats", "printed", "matching", "resolve"},
}  # fmt: skip


def test_the_rooms_of_dumps_import_one_way() -> None:
    def room(name: tuple[str, ...]) -> str:
        return name[2]

    top = SRC / "verify" / "dumps"
    used: dict[str, set[str]] = {}
    for path in (p for p in top.rglob("*.py") if p != top / "__init__.py"):
        mine = path.relative_to(top).with_suffix("").parts[0]
        others = {room(name) for name in imported(path) if name[:2] == ("verify", "dumps") and len(name) > 2}
        used[mine] = used.get(mine, set()) | (others - {mine})
    assert used == DUMPS
    assert rooms.floors(used)


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_one_way(package: str) -> None:
    """Imports between a package's rooms go one way, and every arrow of the table above is used."""
    allowed, used = ROOMS[package], rooms.arrows(SRC / package, package)
    assert allowed.keys() == used.keys()
    for room, others in used.items():
        assert others <= allowed[room], f"{package}/{room} imports {others - allowed[room]}: against the order"
        assert allowed[room] <= others, f"{package}/{room} does not import {allowed[room] - others}: not in the table"
    assert rooms.floors(used)  # raises where rooms import each other in a circle


# --- modules and names of the whole package


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in SRC.rglob("*.py"):
        parts = ("assay", *path.relative_to(SRC).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def edges() -> dict[str, set[str]]:
    """The modules that each module imports, at any depth of its code; `from package import module` is the module."""
    known = modules()
    found = {}
    for name, path in known.items():
        dotted = {".".join(("assay", *parts)) for parts in imported(path) if parts != ("_native",)}
        found[name] = {d if d in known else d.rpartition(".")[0] for d in dotted} & known.keys() - {name}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that reach each other: the strongly connected components with more than one module."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, todo = set(), list(graph[start])
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += graph[at]
        reach[start] = seen
    found: list[set[str]] = []
    for name in graph:
        if name in reach[name] and not any(name in circle for circle in found):
            found.append({other for other in reach[name] if name in reach[other]})
    return found


def test_no_modules_import_each_other() -> None:
    assert circles(edges()) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_no_two_modules_have_one_name() -> None:
    names = defaultdict(list)
    for name, path in modules().items():
        if path.stem not in ("__init__", "__main__"):
            names[path.stem].append(name)
    assert {stem: where for stem, where in names.items() if len(where) > 1} == {}


def test_no_two_public_classes_have_one_name() -> None:
    names = defaultdict(list)
    for name, path in modules().items():
        for defined in rooms.classes(path):
            if not defined.startswith("_"):
                names[defined].append(name)
    assert {key: where for key, where in names.items() if len(where) > 1} == {}
