"""Find the file of a model argument: a path, a catalogue name, `hf:owner/repo[:file-or-quant]`, or `ollama:name[:tag]`.

The file may be downloaded, but is not opened here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from assay.errors import AssayError
from assay.runtime import hf, ollama_store
from assay.runtime.registry_models import CATALOGUE, CatalogueModel, ReportProgress, pull, silent

DEFAULT = "smollm2"


def resolve(
    model: str | Path | None = None,
    *,
    progress: ReportProgress = silent,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> Path:
    """The file that `model` names; it is downloaded if necessary. None is the default model."""
    argument = str(model) if model is not None else DEFAULT
    if argument.startswith("hf:"):
        return hf.fetch(argument, progress=progress)
    if argument.startswith("ollama:"):
        return ollama_store.find(argument)
    if argument.removesuffix(":latest") in catalogue:  # a file of the same name can be given as ./name
        return pull(catalogue[argument.removesuffix(":latest")], progress=progress)
    path = Path(argument)
    if path.is_dir():
        found = sorted(item.name for item in path.glob("*.gguf"))
        hint = f"; it holds {', '.join(found[:5])}" if found else ""
        raise AssayError(f"{argument}: is a directory, not a GGUF file{hint}")
    if not path.exists():
        names = ", ".join(catalogue)
        similar = _similar_name(path, catalogue)
        hint = f"did you mean {similar}? " if similar else ""
        raise AssayError(
            f"{argument}: no such file; {hint}a model is a path, a name ({names}), hf:owner/repo[:file-or-quant] "
            "or ollama:name[:tag]"
        )
    return path


def _similar_name(path: Path, catalogue: Mapping[str, CatalogueModel]) -> str:
    """A model with a similar name, from the catalogue, the folder, Ollama's store or the hub; else empty."""
    name = str(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) and not path.parent.is_dir():
        return f"hf:{name}"
    if found := ollama_store.names(name):
        return f"ollama:{found}"
    try:
        files = {file.name: str(file) for file in path.parent.glob("*.gguf")}
    except OSError:
        files = {}
    near = difflib.get_close_matches(path.name, [*catalogue, *files], 1, 0.6)
    return files.get(near[0], near[0]) if near else ""
