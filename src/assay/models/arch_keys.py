"""The metadata keys `arch.…` of a file. Each is checked before any code divides by it or loops over it.

Touch this when a builder needs a key of a new form, such as a number within other bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.errors import AssayError

MOST = 2**31 - 1
LARGEST = 3.5e38  # just above the largest float32
TINY = 1e-20  # a number below this, or above its inverse, overflows in the formulas that use it


class ArchKeys:
    """Reads `arch.key`. Every error names the key, the value found and the values expected."""

    def __init__(self, values: Mapping[str, Any], arch: str, where: str = "") -> None:
        self.values, self.arch, self.where = values, arch, f"{where}: " if where else ""

    def __contains__(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.values

    def error(self, key: str, found: object, expected: str) -> AssayError:
        return AssayError(f"{self.where}{self.arch}.{key}: bad value (found {found}, expected {expected})")

    def _get(self, key: str, default: Any) -> Any:
        if key in self:
            return self.values[f"{self.arch}.{key}"]
        if default is None:
            raise AssayError(f"{self.where}{self.arch}.{key}: missing from the metadata; the file is incomplete")
        return default

    def _whole(self, key: str, value: Any, least: int) -> int:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise self.error(key, _shown(value), "a whole number")
        if not least <= value <= MOST:
            raise self.error(key, value, f"{least} to {MOST}")
        return int(value)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number from `least` to 2^31 - 1."""
        return self._whole(key, self._get(key, default), least)

    def counts(self, key: str, n: int, default: int | list[int] | None = None, *, least: int = 1) -> list[int]:
        """A whole number for each of `n` layers: from an array (longer if there are draft layers), or one for all."""
        value = self._get(key, default)
        if not isinstance(value, np.ndarray | list):
            return [self._whole(key, value, least)] * n
        if not n <= len(value) <= self.count("block_count"):
            raise self.error(key, f"{len(value)} values", f"one, or {n}, one a layer")
        return [self._whole(key, v, least) for v in value[:n]]

    def length(self, key: str) -> int:
        """How many values an array has; 0 for a single value, or none."""
        value = self.values.get(f"{self.arch}.{key}")
        return len(value) if isinstance(value, np.ndarray | list) else 0

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number in the range of float32, so that a power of it stays finite in float64."""
        value = self._get(key, default)
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
            raise self.error(key, _shown(value), "a number")
        if not abs(float(value)) <= LARGEST:
            raise self.error(key, value, "a finite number of float32's range")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0 that the formulas can divide by and take the logarithm of."""
        value = self.number(key, default)
        if not TINY <= value <= 1 / TINY:
            raise self.error(key, value, f"a number from {TINY:g} to {1 / TINY:g}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool | np.bool_):
            raise self.error(key, _shown(value), "true or false")
        return bool(value)

    def choice(self, key: str, default: str, known: tuple[str, ...]) -> str:
        value = self._get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.error(key, _shown(value), " or ".join((", ".join(known[:-1]), known[-1])))
        return str(value)

    def pattern(self, n_layer: int, default: int | None, key: str = "attention.sliding_window_pattern") -> list[bool]:
        """Which layers are local: an array of booleans, or a number n, all but every n-th layer."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray | list | tuple):
            kinds = {type(v) for v in value} | ({bool} if getattr(value, "dtype", None) == np.bool_ else set())
            if len(value) < n_layer or not kinds <= {bool, np.bool_}:
                raise self.error(key, _shown(value), f"{n_layer} booleans, one a layer, or a number")
            return [bool(v) for v in value[:n_layer]]
        n = self._whole(key, value, 0)
        return [n == 0 or i % n < n - 1 for i in range(n_layer)]


def _shown(value: Any) -> str:
    """A value of an untrusted file, short enough for one line."""
    if isinstance(value, np.ndarray | list | tuple):
        return f"an array of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
