"""Packages of which the import takes seconds, imported when a test first uses them.

Every worker collects every test module, and one worker runs it: only that one pays for the import.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class _Later:
    """A module that is imported when one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):  # pytest asks every global of a test module whether it is a fixture
            raise AttributeError(f"{self._name}.{key}")
        return getattr(import_module(self._name), key)


def import_later(name: str) -> Any:
    """The package; the module that asks for it is skipped where it is not installed."""
    if find_spec(name) is None:
        pytest.skip(f"the {name} package is not installed", allow_module_level=True)
    return _Later(name)
