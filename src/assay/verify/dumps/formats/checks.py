"""Checks that several file formats share: lists of token ids, whole numbers, arrays that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError

Array = NDArray[Any]
MAX_TOKENS = 1 << 20


def token_list(where: str, what: str, found: Any) -> list[int]:
    if not isinstance(found, list) or not found or len(found) > MAX_TOKENS:
        raise AssayError(f"{where}: {what} must be a list of 1 to {MAX_TOKENS} whole numbers")
    if not all(is_whole(t) and 0 <= t < 2**31 for t in found):
        raise AssayError(f"{where}: {what} must be whole numbers from 0 to 2147483647")
    return found


def is_whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def read_checked(where: str, read: Callable[[], Array]) -> Array:
    try:
        return np.asarray(read())
    except (ValueError, OSError, EOFError) as error:
        raise AssayError(f"{where}: cannot be read ({str(error).splitlines()[0].lower()})") from None
