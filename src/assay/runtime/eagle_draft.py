"""EAGLE-3 heads: open the file, check it against its model, and say how it is fed (`models/eagle3.py`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.models import Model
from assay.models.arch_keys import ArchKeys
from assay.models.eagle3 import ARCH, FUSED, HIDDEN, OWN, ROWS, eagle3, row_before, tensors_of_the_model
from assay.runtime.head_draft import DraftHead, joined_with

_MAP = "d2t"


def eagle_head(file: GGUFFile, model: Model, name: str) -> DraftHead:
    """The head in `file` for a model. `name` is what the user gave to --draft."""
    where = f"--draft {name}"
    joined = joined_with(file, model.file, tensors_of_the_model(file.tensors, model.file.tensors), where)
    shapes = {tensor: info.shape for tensor, info in joined.tensors.items()}
    try:
        graphs = eagle3(ArchKeys(file.metadata, ARCH, where), shapes)
    except AssayError as error:
        text = str(error)
        raise AssayError(text if text.startswith(where) else f"{where}: {text}") from error
    width, n_embd = graphs.fuse.given[ROWS][1], model.hparams.n_embd
    if width != len(graphs.layers) * n_embd:
        found = int(width) // len(graphs.layers)
        raise AssayError(f"{where}: is the head of another model (found rows of {found} numbers, expected {n_embd})")
    rows, head = graphs.fuse.shapes[FUSED][1], graphs.hparams.n_embd
    if rows != head:
        raise AssayError(f"{where}: fc.weight does not fit (found {rows} rows, expected embedding_length {head})")
    reads = [_row(model, layer, where) for layer in graphs.layers]
    tokens = _token_map(joined, model.hparams.n_vocab, where)
    own = Model(joined, graphs.hparams, graphs.block)
    return DraftHead(
        name, graphs.block, tuple(reads), int(width), HIDDEN, OWN, own, graphs.fuse, ROWS, shift=1, tokens=tokens
    )


def _row(model: Model, layer: int, where: str) -> str:
    """The node of the model whose rows the head reads for a layer."""
    layers = model.graph.layers.stop
    if layer > layers:
        raise AssayError(f"{where}: is the head of another model (found layer {layer}, expected 0 to {layers})")
    found = row_before(model.graph, layer)
    if found is None or model.graph.shapes[found] != ("T", model.hparams.n_embd):
        raise AssayError(f"{where}: {model.hparams.arch} has no one row before layer {layer}; use another way to draft")
    return found


def _token_map(file: GGUFFile, n_vocab: int, where: str) -> NDArray[np.int64] | None:
    """The model's id of each row of the head's output; None where they are the same."""
    rows = file.tensors["output.weight"].shape[0]
    if _MAP not in file.tensors:
        if rows != n_vocab:
            raise AssayError(f"{where}: has another vocabulary (found {rows} tokens and no d2t, expected {n_vocab})")
        return None
    info = file.tensors[_MAP]
    if info.type.name != "I64" or info.shape != (rows,):
        found = f"{info.type.name} {list(info.shape)}"
        raise AssayError(f"{where}: d2t does not fit output.weight (found {found}, expected I64 [{rows}])")
    tokens: NDArray[np.int64] = file.raw(_MAP).reshape(-1).view("<i8").astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        raise AssayError(f"{where}: d2t has ids outside the model's vocabulary (expected 0 to {n_vocab - 1})")
    return tokens
