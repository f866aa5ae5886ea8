"""Checks of arguments that a caller of the library passes: a wrong one is an AssayError that names it.

Without them a wrong type fails deep inside, as a TypeError that names no argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from assay.errors import AssayError

MOST_THREADS = 1024
MOST_TOKENS = 1 << 26

# Whole numbers of `load`: the least and the greatest value. None is the default of each.
WHOLE_OPTIONS = {
    "threads": (1, MOST_THREADS),
    "ctx_size": (0, MOST_TOKENS),
    "cache_size": (0, MOST_TOKENS),
    "parallel": (1, 4096),
    "cache_dir_size": (1, 1 << 62),
    "tier": (0, 2),
}
TEXT_OPTIONS = ("engine", "precision", "kv_type", "template", "draft")


def check_load_options(options: Mapping[str, Any]) -> None:
    """The options of `load`."""
    for name, value in options.items():
        if name in WHOLE_OPTIONS and value is not None:
            check_whole(name, value, *WHOLE_OPTIONS[name])
        elif name in TEXT_OPTIONS and value is not None and not isinstance(value, str):
            raise AssayError(f"{name}: must be a text (found {value!r:.60})")
    check_mapping("template_arguments", options.get("template_arguments"))
    if (listener := options.get("progress")) is not None and not callable(listener):
        raise AssayError(f"progress: must be a function (found {listener!r:.60})")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of texts."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise AssayError(f"{name}: must be a list of texts (found {value!r:.60})")
    return tuple(value)


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number in a range. Without a range only the type is checked."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or (least is not None and value < least) or (most is not None and value > most):
        wanted = f" of {least} to {most}" if most is not None else f" of at least {least}" if least is not None else ""
        raise AssayError(f"{name}: must be a whole number{wanted} (found {value!r:.60})")
    return int(value)


def check_mapping(name: str, value: Any) -> None:
    """A mapping, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise AssayError(f"{name}: must be a mapping such as {{'enable_thinking': False}} (found {value!r:.60})")


def check_list(name: str, value: Any) -> None:
    """A list of anything, or None."""
    if value is not None and (not isinstance(value, Sequence) or isinstance(value, str | bytes)):
        raise AssayError(f"{name}: must be a list (found {value!r:.60})")


def token_list(name: str, value: Any) -> list[int]:
    """Token ids as a list."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise AssayError(f"{name}: must be token ids (found {value!r:.60})")
    found = list(value)
    if wrong := [item for item in found if not isinstance(item, int | np.integer) or isinstance(item, bool)]:
        raise AssayError(f"{name}: must be token ids (found {wrong[0]!r:.60} among them)")
    return [int(item) for item in found]


def check_text(name: str, value: Any, *, also_bytes: bool = False) -> None:
    if not isinstance(value, (str, bytes) if also_bytes else str):
        raise AssayError(f"{name}: must be a text (found {value!r:.60})")
