"""Entry points: how another package adds an engine, a fault, a reader, an architecture or an operation to assay.

A package names its additions in its own metadata, and assay finds them when it is installed:

    [project.entry-points."assay.engines"]
    mine = "my_package:create"          # looked up by name
    [project.entry-points."assay.faults"]
    mine = "my_package:register"        # called once without arguments; it registers its additions

| group                  | the entry point names                                                   |
|------------------------|-------------------------------------------------------------------------|
| `assay.engines`        | a `PagedEngine` class, or `create(model, **options)` that returns one   |
| `assay.architectures`  | `build(builder) -> Graph`; the entry's name is `general.architecture`   |
| `assay.faults`         | `register()`, which calls `register_fault`                              |
| `assay.readers`        | `register()`, which calls `register_reader` and `register_rule`         |
| `assay.operations`     | `register()`, which adds rows to the table of operations                |

Engines and architectures are looked up only when a name is not built in. Operations are registered before the first
architecture of a plugin is built, faults before the first diagnosis, readers before the first dump is read. A plugin
that fails becomes an AssayError that names the plugin and its package; it never disturbs a built-in function. Without
plugins nothing is imported. `examples/plugin-*` has one package for each group.

This module imports nothing of assay but the error, because every package may use it. `importlib.metadata` is imported
where it is needed: it takes longer than the rest, and a run without plugins never asks.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from assay.errors import AssayError

log = logging.getLogger("assay.plugins")
GROUPS = ("assay.engines", "assay.architectures", "assay.faults", "assay.readers", "assay.operations")
_registered: dict[tuple[str, str, str], AssayError | None] = {}  # plugins that were called, with their errors


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package."""

    group: str
    name: str
    target: str  # module:function
    package: str
    version: str

    def __str__(self) -> str:
        return f"plugin {self.name} of {self.package} {self.version}"

    def load(self) -> Any:
        """The object that the entry point names."""
        from importlib import metadata

        entry = metadata.EntryPoint(self.name, self.target, self.group)
        try:
            found = entry.load()
        except Exception as error:  # the code of another package may raise anything
            raise self._failed("cannot be imported", error) from error
        if not callable(found):
            raise AssayError(f"{self}: {self.target} is not a function (found {type(found).__name__})")
        return found

    def call(self) -> None:
        """Call the function that registers the plugin's additions."""
        function = self.load()
        try:
            function()
        except Exception as error:
            raise self._failed(f"{self.target} failed", error) from error

    def _failed(self, what: str, error: Exception) -> AssayError:
        reason = " ".join(str(error).split())[:200]
        return AssayError(f"{self}: {what} ({type(error).__name__}: {reason}); update or uninstall {self.package}")


def plugins(group: str) -> list[Plugin]:
    """The installed plugins of a group, sorted by name."""
    assert group in GROUPS, group
    return list(_installed(_path_state(), tuple(sys.meta_path))[group])


def _path_state() -> tuple[tuple[str, int], ...]:
    """The folders that packages are installed in, and when each was changed: an installation changes its folder."""
    found = []
    for folder in sys.path:
        try:
            found.append((folder, os.stat(folder or ".").st_mtime_ns))
        except OSError:
            found.append((folder, 0))
    return tuple(found)


@lru_cache(maxsize=1)  # reading the metadata of all packages takes milliseconds, and every dump asks
def _installed(path: tuple[tuple[str, int], ...], finders: tuple[object, ...]) -> dict[str, list[Plugin]]:
    """The plugins of every group. Of two installations of a package, the first on the path counts."""
    from importlib import metadata

    found: dict[str, dict[tuple[str, str], Plugin]] = {group: {} for group in GROUPS}
    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group in found:
                package = distribution.metadata["Name"] or "an unnamed package"
                plugin = Plugin(entry.group, entry.name, entry.value, package, distribution.version or "?")
                found[entry.group].setdefault((entry.name, package), plugin)
    return {group: [of_group[key] for key in sorted(of_group)] for group, of_group in found.items()}


def names(group: str) -> list[str]:
    """The names that plugins add to a group. Nothing is imported."""
    return list(dict.fromkeys(plugin.name for plugin in plugins(group)))


def find(group: str, name: str) -> Any | None:
    """The function under a name, or None if no plugin has it. Two packages with one name are an error."""
    matches = [plugin for plugin in plugins(group) if plugin.name == name]
    if not matches:
        return None
    if len(matches) > 1:
        packages = " and ".join(plugin.package for plugin in matches)
        raise AssayError(f"plugin {name}: {packages} both provide it in {group}; uninstall one of them")
    return matches[0].load()


def register_all(group: str) -> list[AssayError]:
    """Call every plugin of a group that was not called yet, and return the errors of those that failed.

    A failing plugin is logged once and does not stop the others. A consumer that does not find its name afterwards can
    show the errors.
    """
    for plugin in plugins(group):
        key = (group, plugin.name, plugin.package)
        if key in _registered:
            continue
        _registered[key] = None
        try:
            plugin.call()
        except AssayError as error:
            _registered[key] = error
            log.warning("%s", error)
    return [error for key, error in _registered.items() if key[0] == group and error is not None]
