"""Models from a local Ollama store, which is only read. Its layout:

    <store>/manifests/<host>/<namespace>/<name>/<tag>     JSON: layers with media type, digest, size
    <store>/blobs/sha256-<hex>                            the layer itself; a model layer is a GGUF file

Names and digests become paths, so each is checked against the characters that Ollama allows before it is used.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from assay.errors import AssayError

_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_MANIFEST_LIMIT = 1 << 20


def store() -> Path:
    chosen = os.environ.get("OLLAMA_MODELS")
    return Path(chosen) if chosen else Path.home() / ".ollama" / "models"


def find(argument: str) -> Path:
    """The GGUF file of `ollama:[[host/]namespace/]name[:tag]`."""
    spec = argument.removeprefix("ollama:")
    path, _, tag = spec.rpartition(":") if ":" in spec.rpartition("/")[2] else (spec, "", "latest")
    parts = path.split("/")
    if len(parts) > 3 or not all(_PART.fullmatch(part) and ".." not in part for part in (*parts, tag)):
        raise AssayError(f"{argument}: not a model name; expected ollama:name[:tag], for example ollama:llama3.2:1b")
    place = ["registry.ollama.ai", "library"][: 3 - len(parts)] + parts
    manifest = store().joinpath("manifests", *place, tag)
    if not manifest.is_file():
        raise AssayError(f"{argument}: not in the Ollama store {store()}; run `ollama pull {spec}`{_others(manifest)}")
    digest, size = _model_layer(argument, manifest)
    blob = store() / "blobs" / f"sha256-{digest}"
    if not blob.is_file():
        raise AssayError(f"{argument}: its file {blob} is missing; run `ollama pull {spec}`")
    found = blob.stat().st_size
    if found != size:
        raise AssayError(f"{argument}: {blob} is incomplete (found {found} bytes, expected {size}); pull it again")
    return blob


def names(wanted: str) -> str:
    """The name itself if the store has a model of that name, else an empty string."""
    try:
        find(f"ollama:{wanted}")
    except (AssayError, OSError, ValueError):
        return ""
    return wanted


def stored() -> list[tuple[str, Path]]:
    """Every model of the store: its name as in `ollama list`, and its file."""
    root = store() / "manifests"
    found = []
    for manifest in sorted(path for path in root.glob("*/*/*/*") if path.is_file()):
        host, space, name, tag = manifest.relative_to(root).parts
        place = [host, space, name]
        for usual in ("registry.ollama.ai", "library"):  # the defaults are not part of the name
            if place[0] == usual:
                place.pop(0)
        called = f"{'/'.join(place)}:{tag}"
        try:
            found.append((called, find(f"ollama:{called}")))
        except AssayError:  # damaged or incomplete
            continue
    return found


def _others(manifest: Path) -> str:
    """A hint with the existing tags, if only the tag is wrong."""
    tags = sorted(item.name for item in manifest.parent.iterdir()) if manifest.parent.is_dir() else []
    return f" (tags there: {', '.join(tags)})" if tags else ""


def _model_layer(argument: str, manifest: Path) -> tuple[str, int]:
    """Hex digest and size of the layer that holds the model."""
    with manifest.open("rb") as file:
        data = file.read(_MANIFEST_LIMIT + 1)
    try:
        layers = json.loads(data)["layers"] if len(data) <= _MANIFEST_LIMIT else None
        found = [
            (_DIGEST.fullmatch(layer["digest"]), int(layer["size"]))
            for layer in layers or ()
            if layer["mediaType"] == _MODEL_LAYER
        ]
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        raise AssayError(f"{argument}: its manifest {manifest} is damaged; pull it again") from None
    if len(found) != 1 or found[0][0] is None:
        raise AssayError(f"{argument}: its manifest {manifest} names no single model file with a sha256 digest")
    return found[0][0][1], found[0][1]
