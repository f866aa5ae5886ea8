"""The command that installs an optional dependency.

It names the packages themselves, so it works whether assay was installed from an index, a wheel or a checkout.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path

_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


def requirements(extra: str) -> list[str]:
    """The packages of an extra, from the installed metadata or from pyproject.toml."""
    try:
        stated = [item.partition(";") for item in metadata.requires("assay") or ()]
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        try:
            project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())["project"]
        except (OSError, LookupError, ValueError):
            return []
        return list(project["optional-dependencies"].get(extra, ()))
    return [name.strip() for name, _, marker in stated if (found := _EXTRA.search(marker)) and found[1] == extra]


def install(extra: str) -> str:
    """The command that installs an extra."""
    packages = requirements(extra)
    return f"pip install {shlex.join(packages)}" if packages else f"pip install 'assay[{extra}]'"
