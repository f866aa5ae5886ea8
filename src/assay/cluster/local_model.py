"""Open a model on the host that computes it, from the specification that a launcher sends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.gguf import open_file
from assay.runtime import hub
from assay.runtime.opening import Opened, OpenOptions


def open_here(spec: Mapping[str, Any]) -> Opened:
    """Open this host's own copy of the model: at the same path, or resolved by its name."""
    path = Path(spec["path"])
    if not path.exists() and spec.get("name"):
        path = hub.resolve(spec["name"])
    return Opened(open_file(path), OpenOptions(**spec["options"]))
