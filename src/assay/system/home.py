"""The cache directory, for downloads and computed results."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The cache directory: ASSAY_HOME, else assay/ in XDG_CACHE_HOME, else ~/.cache/assay."""
    if chosen := os.environ.get("ASSAY_HOME"):
        return Path(chosen)
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "assay"
