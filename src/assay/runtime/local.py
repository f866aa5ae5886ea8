"""Models on this machine: assay's own, those in the cache of huggingface_hub, and those in Ollama's store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assay.errors import AssayError
from assay.runtime import hf, ollama_store
from assay.runtime.model_names import find_name, named_models
from assay.runtime.registry_models import CATALOGUE, cached


@dataclass(frozen=True)
class Local:
    """A model, by the shortest name that a user can type. `owner` is the program that keeps its files: assay,
    huggingface_hub or ollama."""

    name: str
    owner: str
    files: tuple[Path, ...]  # more than one if the model is split
    source: str = ""  # the `hf:` name, if `name` is a shorter one

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    @property
    def modified(self) -> float:
        return max(path.stat().st_mtime for path in self.files)


def models() -> list[Local]:
    """All models, without those whose files are missing."""
    found = [Local(e.name, "assay", (cached(e),)) for e in CATALOGUE.values()]
    short = {(model.repository, model.file): model.name for model in named_models()}
    for owner, repo, name, files in hf.stored():
        source = f"hf:{repo}:{name}"
        known = short.get((repo, name)) or short.get((repo, hf.first_part(name, len(files))))
        found.append(Local(known or source, owner, files, source))
    found += [Local(f"ollama:{name}", "ollama", (path,)) for name, path in ollama_store.stored()]
    return [model for model in found if all(path.is_file() for path in model.files)]


def remove(name: str) -> Local:
    """Delete a model that assay downloaded. Models of other programs are refused."""
    known = models()
    named = find_name(name)
    called = {name, named.name if named else name}
    found = [m for m in known if called & {m.name, m.source, m.source.rpartition(":")[0]}]
    found = found or [m for m in known if m.name.startswith("ollama:") and name == m.name.rpartition(":")[0]]
    if not found:
        mine = ", ".join(m.name for m in known if m.owner == "assay")
        what = "is a file of yours; delete it yourself" if Path(name).is_file() else "is not here"
        raise AssayError(f"{name}: {what}; assay has fetched {mine or 'nothing'}")
    if len(found) > 1:
        raise AssayError(f"{name}: {len(found)} models; name one: {', '.join(m.name for m in found)}")
    (model,) = found
    if model.owner != "assay":
        command = f"ollama rm {name.removeprefix('ollama:')}" if model.owner == "ollama" else "hf cache rm"
        raise AssayError(f"{name}: belongs to {model.owner}; `{command}` deletes it")
    for path in model.files:
        path.unlink()
    return model
