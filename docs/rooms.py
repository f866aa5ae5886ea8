"""The rooms of a package and what they import of each other, drawn floor by floor.

python docs/rooms.py verify            # the rooms: folders, and modules that stand in the package itself
python docs/rooms.py verify --modules  # every module a room of its own
python docs/rooms.py verify --at REV   # as a commit of this repository has it
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Arrows = dict[str, set[str]]


def imported(path: Path) -> set[tuple[str, ...]]:
    """Names below `assay` that a module imports, at any depth of its code."""
    return set(_names(path)[0])


def classes(path: Path) -> tuple[str, ...]:
    """The classes that a module defines, at any depth of its code."""
    return _names(path)[1]


@cache  # a module is parsed once, and its tree is not kept
def _names(path: Path) -> tuple[frozenset[tuple[str, ...]], tuple[str, ...]]:
    """Names that a module imports, and classes that it defines."""
    found, defined = set[tuple[str, ...]](), list[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            defined.append(node.name)
            continue
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
    return frozenset(found - {("__version__",)}), tuple(defined)


def arrows(top: Path, package: str, *, modules: bool = False) -> Arrows:
    """For each room the other rooms that it imports."""

    def room(path: tuple[str, ...]) -> str:
        """The room of a dotted path below the package; a name inside a module counts as the module."""
        if not modules:
            return path[0]
        return next((name for n in (3, 2, 1) if (name := ".".join(path[:n])) in known), path[0])

    paths = {p: p.relative_to(top).with_suffix("").parts for p in sorted(top.rglob("*.py")) if p.stat().st_size}
    dotted = {p: parts[:-1] if parts[-1] == "__init__" else parts for p, parts in paths.items()}
    dotted = {p: parts for p, parts in dotted.items() if parts}
    known = {".".join(parts) for parts in dotted.values()}
    found: Arrows = {room(parts): set() for parts in dotted.values()}
    for path, parts in dotted.items():
        others = {room(name[1:]) for name in imported(path) if name[0] == package and len(name) > 1}
        found[room(parts)] |= (others & found.keys()) - {room(parts)}
    return found


def floors(found: Arrows) -> list[list[str]]:
    """Rooms by the longest way down from them; a ValueError where some import each other in a circle."""
    height: dict[str, int] = {}
    while len(height) < len(found):
        ready = [r for r, others in found.items() if r not in height and others <= height.keys()]
        if not ready:
            raise ValueError(f"a circle among {', '.join(sorted(found.keys() - height.keys()))}")
        height |= {r: 1 + max((height[o] for o in found[r]), default=-1) for r in ready}
    return [[r for r in found if height[r] == level] for level in range(max(height.values()) + 1)]


def drawn(found: Arrows) -> str:
    """The floors, the highest first, each room with what it stands on."""
    levels = floors(found)
    lines = [f"{len(found)} rooms, {len(levels)} floors, {sum(map(len, found.values()))} arrows"]
    for i in range(len(levels) - 1, -1, -1):
        for room in sorted(levels[i]):
            below = " → " + ", ".join(sorted(found[room])) if found[room] else ""
            lines.append(f"  {i}  {room}{below}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--modules", action="store_true", help="every module by itself")
    parser.add_argument("--at", metavar="REV", help="a commit instead of the working tree")
    args = parser.parse_args()
    if args.at is None:
        print(drawn(arrows(ROOT / "src/assay" / args.package, args.package, modules=args.modules)))
        return
    archive = subprocess.run(["git", "archive", args.at, f"src/assay/{args.package}"], cwd=ROOT, capture_output=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
        print(drawn(arrows(Path(folder) / "src/assay" / args.package, args.package, modules=args.modules)))


if __name__ == "__main__":
    main()
