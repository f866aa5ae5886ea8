"""From the argument a user types to a file: a path, a catalogue name, `hf:owner/repo[:file-or-quant]`, or
`ollama:name[:tag]`. Nothing is read of the file itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assay.errors import AssayError
from assay.runtime import hf, ollama
from assay.runtime.catalogue import CATALOGUE, Entry, Progress, pull, silent

DEFAULT = "smollm2"


def resolve(
    model: str | Path | None = None,
    *,
    progress: Progress = silent,
    catalogue: Mapping[str, Entry] = CATALOGUE,
) -> Path:
    """The file that `model` names, fetched if need be. None is the default model."""
    argument = str(model) if model is not None else DEFAULT
    if argument.startswith("hf:"):
        return hf.fetch(argument, progress=progress)
    if argument.startswith("ollama:"):
        return ollama.find(argument)
    if argument in catalogue:  # a file of that name is reached as ./name
        return pull(catalogue[argument], progress=progress)
    path = Path(argument)
    if path.is_dir():
        found = sorted(item.name for item in path.glob("*.gguf"))
        hint = f"; it holds {', '.join(found[:5])}" if found else ""
        raise AssayError(f"{argument}: is a directory, not a GGUF file{hint}")
    if not path.exists():
        names = ", ".join(catalogue)
        raise AssayError(
            f"{argument}: no such file; a model is a path, a name ({names}), hf:owner/repo[:file-or-quant] "
            "or ollama:name[:tag]"
        )
    return path
