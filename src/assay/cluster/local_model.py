"""Open a model on the host that computes it, from the specification that a launcher sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.gguf import open_file
from assay.runtime import hub
from assay.runtime.opening import Opened, OpenOptions


def open_here(spec: Mapping[str, Any]) -> Opened:
    """Open this host's own copies of the model and of its mmproj file: at the same path, or found by its name."""
    path = Path(spec["path"])
    if not path.exists() and spec.get("name"):
        path = hub.resolve(spec["name"])
    options = OpenOptions(**spec["options"])
    if options.mmproj is not None and not Path(options.mmproj).exists():
        options = replace(options, mmproj=None)  # the one beside the model
    return Opened(open_file(path), options)
