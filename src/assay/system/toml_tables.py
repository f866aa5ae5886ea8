"""The package's own TOML tables, parsed once a machine: the parsed form is kept as Python keeps a module's bytecode.

    read_table("assay.runtime", "model_names.toml")

Parsing the catalogue of faults takes 0.2 s, and every process that diagnoses needs it.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

_SUFFIX = ".table"


class _Loader(SourceFileLoader):
    """`get_code` keeps the parsed form as `__pycache__/x.toml.*.pyc`: a module `x.py` has another file."""

    def get_filename(self, name: str | None = None) -> str:
        return str(self.path) + _SUFFIX

    def path_stats(self, path: Any) -> Any:
        return super().path_stats(str(path).removesuffix(_SUFFIX))

    def get_data(self, path: str) -> bytes:
        return super().get_data(path.removesuffix(_SUFFIX))

    def source_to_code(self, data: Any, path: Any, **_options: Any) -> CodeType:  # type: ignore[override]
        return compile(f"table = {tomllib.loads(bytes(data).decode())!r}", path, "exec")


def read_table(package: str, *path: str) -> dict[str, Any]:
    """A TOML file of a package, as a new dictionary at each call."""
    code = _Loader("table", str(resources.files(package).joinpath(*path))).get_code("table")
    assert code is not None
    scope: dict[str, Any] = {}
    exec(code, scope)
    return dict(scope["table"])
