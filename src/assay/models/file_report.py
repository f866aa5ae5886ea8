"""The report of `assay inspect`: contents of a file, memory needed to run it, and notes on oddities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.gguf.checks import scale_notes, tokenizer_notes
from assay.models.draft_head import HEAD_FILES, head_in_file
from assay.models.eagle3 import ARCH as EAGLE
from assay.models.model import Model, load
from assay.models.vision import Tower, is_tower, load_tower
from assay.system.terminal import printable


def describe(file: GGUFFile, context: int | None = None, *, scan: bool = True) -> dict[str, Any]:
    """The report as plain values and NumPy arrays. Shapes are row-major: the last dimension is contiguous.

    `context` is the number of positions that memory is estimated for, by default those of the training.
    `scan` reads every tensor once, in search of NaN scales.
    """
    clip = is_tower(file)
    tower, notes = _tower(file) if clip else (None, [])
    model, notes = (None, notes) if clip else _model(file)
    metadata = {key: _value(file, key, notes) for key in file.metadata}
    if not clip:
        notes += _until_error(tokenizer_notes(file))
    if scan:
        notes += scale_notes(file)
    parameters = sum(t.n_elements for t in file.tensors.values())
    weights = sum(t.nbytes for t in file.tensors.values())
    return {
        "path": str(file.path),
        "parts": [str(part.path) for part in file.parts],
        "size": file.size,
        "version": file.version,
        "byteorder": file.byteorder,
        "alignment": file.alignment,
        "architecture": metadata.get("general.architecture"),
        "parameters": parameters,
        "bits_per_weight": round(8 * weights / parameters, 4) if parameters else None,
        "memory": _memory(model, weights, context) if model else None,
        "draft_head": bool(model and model.draft),
        "head_file": head_in_file(metadata, file.tensors),
        "eagle_head": _eagle(metadata),
        "projector": _projector(tower) if tower else None,
        "notes": [printable(note) for note in notes],
        "metadata": metadata,
        "tensors": [
            {
                "name": t.name,
                "shape": list(t.shape),
                "type": t.type.name,
                "offset": t.offset,
                "bytes": t.nbytes,
                "part": t.part,
            }
            for t in file.tensors.values()
        ],
    }


def _model(file: GGUFFile) -> tuple[Model | None, list[str]]:
    """The model, or a note that says why the tensors do not form one."""
    if head_in_file(file.metadata, file.tensors):
        return None, []
    if not file.tensors:
        return None, ["tensors: none; this file is a vocabulary, not a model"]
    try:
        model = load(file)
    except AssayError as error:
        return None, [f"cannot be run: {error}"]
    used = {name for graph in (model.graph, model.draft) if graph for node in graph for name in node.weights}
    unused = [name for name in file.tensors if name not in used]
    notes = [f"{name}: not used by the {model.hparams.arch} graph" for name in unused]
    if model.draft_fault:
        notes.insert(0, f"draft head: cannot be run: {model.draft_fault}")
    return model, notes


def _eagle(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which rows of its model an EAGLE-3 head reads; whether they fit shows when it is opened with the model."""
    if head_in_file(metadata, ()) != HEAD_FILES[EAGLE]:
        return None
    layers = metadata.get(f"{EAGLE}.target_layers")
    return {
        "layers": [int(n) for n in layers] if isinstance(layers, np.ndarray | list) else None,
        "row": metadata.get(f"{EAGLE}.target_hidden_size"),
    }


def _tower(file: GGUFFile) -> tuple[Tower | None, list[str]]:
    """The vision tower of an mmproj file, or a note that says why the tensors do not form one."""
    try:
        tower = load_tower(file)
    except AssayError as error:
        return None, [f"cannot be run: {error}"]
    used = {name for node in tower.graph for name in node.weights}
    bounds = (".input_min", ".input_max", ".output_min", ".output_max")  # read when the graph is built
    unused = [name for name in tower.file.tensors if name not in used and not name.endswith((*bounds, "v.std_bias"))]
    return tower, [f"{name}: not used by the {tower.keys.projector} tower" for name in unused]


def _projector(tower: Tower) -> dict[str, Any]:
    """Description of a tower, in plain values."""
    keys = tower.keys
    return {
        "type": keys.projector,
        "models": keys.row.models,
        "layers": keys.n_layer,
        "width": keys.n_embd,
        "heads": keys.n_head,
        "patch": keys.patch,
        "merge": keys.merge,
        "row": tower.width,
        "deepstack": tower.parts,
        "sees_itself": tower.sees_itself,
        "mrope": tower.mrope,
    }


def _memory(model: Model, weights: int, context: int | None) -> dict[str, int]:
    """Bytes for the weights as stored, and for an f16 cache over the whole context with the state of one sequence."""
    n_ctx = context or model.hparams.n_ctx_train
    state = model.graph.state
    cache = int(n_ctx * state.bytes_per_position("f16")) + state.bytes_per_sequence("f16")
    found = {"weights": weights, "kv_cache": cache, "context": n_ctx, "total": weights + cache}
    return found | ({"state": state.bytes_per_sequence("f16")} if state.per_sequence else {})


def _value(file: GGUFFile, key: str, notes: list[str]) -> Any:
    """A metadata value, or None and a note where its bytes make no sense."""
    try:
        return file.metadata[key]
    except AssayError as error:
        notes.append(str(error))
        return None


def _until_error(notes: Iterable[str]) -> Iterator[str]:
    try:
        yield from notes
    except AssayError as error:
        yield str(error)
