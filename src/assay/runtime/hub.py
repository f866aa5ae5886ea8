"""Find the file of a model argument: a path, a name, `hf:owner/repo[:file-or-quant]`, or `ollama:name[:tag]`.

A name is that of a packaged model (registry_models.py) or of the table of known names (model_names.py). An address on
the hub (`hf.co/owner/repo:quant`, `https://huggingface.co/owner/repo/…/file.gguf`) means the same as `hf:`.

The file may be downloaded, but is not opened here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.errors import AssayError
from assay.runtime import hf, ollama_store
from assay.runtime.model_names import SUGGESTED, NamedModel, alternatives, find_name, suggestions
from assay.runtime.registry_models import CATALOGUE, CatalogueModel, ReportProgress, pull
from assay.system.stages import reports

DEFAULT = "smollm2"
FORMS = (
    "a model is a path, a name (smollm2, qwen3:8b; `assay search` lists them), hf:owner/repo[:file-or-quant] or "
    "ollama:name[:tag]"
)


def resolve(
    model: str | Path | None = None,
    *,
    progress: ReportProgress | None = None,
    catalogue: Mapping[str, CatalogueModel] = CATALOGUE,
) -> Path:
    """The file that `model` names; it is downloaded if necessary. None is the default model.

    `progress` is called with label, bytes done and bytes in total; without it, the stage is told to the listener.
    """
    argument = _argument(model)
    if argument.startswith("hf:"):
        with reports(progress) as tell:
            return hf.fetch(argument, progress=tell)
    if argument.startswith("ollama:"):
        return ollama_store.find(argument)
    if argument.removesuffix(":latest") in catalogue:  # a file of the same name can be given as ./name
        with reports(progress) as tell:
            return pull(catalogue[argument.removesuffix(":latest")], progress=tell)
    if (named := find_name(argument)) and not (_is_spelling(named, argument) and Path(argument).exists()):
        with reports(progress) as tell:
            return _named(argument, named, tell)
    return _file(argument)


def check(model: str | Path | None) -> None:
    """Refuse an argument that is neither a name nor a file that exists. Nothing is downloaded.

    A caller uses this before it imports what runs a model, so that a mistyped path is refused at once.
    """
    argument = _argument(model)
    is_name = argument.removesuffix(":latest") in CATALOGUE or find_name(argument) is not None
    if not is_name and not argument.startswith(("hf:", "ollama:")):
        _file(argument)


def _argument(model: str | Path | None) -> str:
    if model == "":
        raise AssayError(f"the name of the model is empty; {FORMS}")
    return hf.from_address(str(model)) if model is not None else DEFAULT


def _file(argument: str) -> Path:
    """The path of a file that exists."""
    if argument.startswith(("http://", "https://")):
        raise AssayError(f"{argument:.200}: only addresses of the hub are downloaded; download it and give its path")
    path = Path(argument)
    if path.is_dir():
        found = sorted(item.name for item in path.glob("*.gguf"))
        hint = f"; it holds {', '.join(found[:5])}" if found else ""
        if not found and (path / "config.json").is_file():
            hint = f"; it holds a Hugging Face model: assay convert {argument} OUT.gguf"
        raise AssayError(f"{argument}: is a directory, not a GGUF file{hint}")
    if not path.exists():
        is_path = re.match(r"\.[A-Za-z]", path.suffix) or len(path.parts) > 1  # the suffix of llama3.2:7b is `.2:7b`
        raise AssayError(f"{argument}: no such {'file' if is_path else 'model'}; {_did_you_mean(path)}{FORMS}")
    return path


def not_here(argument: str | Path | None) -> NamedModel | None:
    """The model of the table that an argument names, if it is not on this machine; else None.

    A packaged model counts as here: it is small, and every verb downloads it.
    """
    text = str(argument) if argument is not None else DEFAULT
    model = None if text in CATALOGUE else find_name(text)
    if model is None or model.package or (_is_spelling(model, text) and Path(text).exists()):
        return None
    return None if not model.quant and hf.local_file(model.repository, model.file) else model


def _is_spelling(model: NamedModel, argument: str) -> bool:
    """Whether an argument is another spelling of a name. A file of that name then takes precedence."""
    return argument not in (model.family, f"{model.family}:{model.tag}")


def _named(argument: str, model: NamedModel, progress: ReportProgress) -> Path:
    """The file of a model of the table. A local file is used without asking the hub."""
    if model.package:
        return pull(CATALOGUE[model.package], progress=progress)
    if not model.is_supported:
        others = ", ".join(alternatives(model))
        raise AssayError(
            f"{argument}: its architecture {model.architecture} is not supported yet; models of a similar kind: "
            f"{others}; `assay search` lists all"
        )
    if not model.quant and (here := hf.local_file(model.repository, model.file)):
        return here
    try:
        return hf.fetch(model.source, progress=progress, quant=model.file)
    except AssayError as error:
        store = ollama_store.names(argument)
        hint = f"; Ollama has it on this machine: ollama:{store}" if store else ""
        raise AssayError(f"{argument} is {error}{hint}") from error


def _did_you_mean(path: Path) -> str:
    """Three models with a similar name: in the folder, in Ollama's store, on the hub, or in the table."""
    name = str(path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) and not path.parent.is_dir() and path.suffix != ".gguf":
        known = find_name(path.name)
        return f"did you mean hf:{name}{f' or {known.name}' if known else ''}? "
    if found := ollama_store.names(name):
        return f"did you mean ollama:{found}? "
    try:
        files = {file.name: str(file) for file in path.parent.glob("*.gguf")}
    except OSError:
        files = {}
    near = [files[found] for found in difflib.get_close_matches(path.name, files, SUGGESTED, 0.6)]
    if path.suffix != ".gguf" and "/" not in name:
        near += [other for other in suggestions(name) if other not in near]
    return f"did you mean {_listed(near[:SUGGESTED])}? " if near else ""


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
