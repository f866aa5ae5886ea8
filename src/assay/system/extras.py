"""The command that installs an optional dependency.

It names the packages themselves, so it works whether assay was installed from an index, a wheel or a checkout.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


_FOR_DEVELOPERS = ("test", "lint")


def names() -> list[str]:
    """The extras that users install."""
    return sorted(extra for extra in _stated() if extra not in _FOR_DEVELOPERS)


def requirements(extra: str) -> list[str]:
    """The packages of an extra."""
    return _stated().get(extra, [])


def _stated() -> dict[str, list[str]]:
    """Every extra with its packages: from the checkout's pyproject.toml, else from the installed metadata."""
    import tomllib
    from importlib import metadata

    try:
        project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())["project"]
        if project["name"] == "assay":
            return dict(project["optional-dependencies"])
    except (OSError, LookupError, ValueError):
        pass  # installed from a wheel
    found: dict[str, list[str]] = {}
    try:
        for item in metadata.requires("assay") or ():
            package, _, marker = item.partition(";")
            if match := _EXTRA.search(marker):
                found.setdefault(match[1], []).append(package.strip())
    except metadata.PackageNotFoundError:
        pass
    return found


def install(extra: str) -> str:
    """The command that installs an extra."""
    packages = requirements(extra)
    return f"pip install {shlex.join(packages)}" if packages else f"pip install 'assay[{extra}]'"
