"""Gemma 4's assistants: open the file, check it against its model, and say how it is fed
(`models/gemma4_assistant.py`)."""

from __future__ import annotations

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph, join
from assay.models import Model
from assay.models.arch_keys import ArchKeys
from assay.models.gemma4_assistant import ARCH, OWN, ROWS, TABLE, gemma4_assistant
from assay.runtime.head_draft import DraftHead, joined_with

_TARGET = ARCH.partition("-")[0]  # the architecture of its model


def assistant_head(file: GGUFFile, model: Model, name: str) -> DraftHead:
    """The assistant in `file` for a model. `name` is what the user gave to --draft."""
    where = f"--draft {name}"
    if model.hparams.arch != _TARGET:
        raise AssayError(
            f"{where}: is an assistant of Gemma 4 (found a model of {model.hparams.arch}, expected gemma4)"
        )
    joined = joined_with(file, model.file, {TABLE: "token_embd.weight"}, where)
    shapes = {tensor: info.shape for tensor, info in joined.tensors.items()}
    try:
        head = gemma4_assistant(ArchKeys(file.metadata, ARCH, where), shapes)
    except AssayError as error:
        text = str(error)
        raise AssayError(text if text.startswith(where) else f"{where}: {text}") from error
    found, expected = head.hparams.n_vocab, model.hparams.n_vocab
    if found != expected:
        raise AssayError(f"{where}: has another vocabulary (found {found} tokens, expected {expected})")
    reads = ["result_norm"]
    for local, *sizes in head.copied:
        keys, values = _cached_by(model.graph, local, where)
        theirs = [*_row(model.graph, keys), _row(model.graph, values)[1]]
        if sizes != theirs:
            said, wanted = _said(local, sizes), _said(local, theirs)
            raise AssayError(f"{where}: is the head of another model (found {said}, expected {wanted})")
        reads += [model.graph[node].inputs[0] for node in (keys, values)]
    width = int(head.graph.given[ROWS][1])
    own = Model(joined, head.hparams, head.graph)
    return DraftHead(name, head.graph, tuple(reads), width, ROWS, OWN, own, shift=1, ahead=1, kept=width - head.row)


def _cached_by(graph: Graph, local: bool, where: str) -> tuple[str, str]:
    """The nodes with the keys and values that the last layer of a kind sees: the last layer is a full one, and the one
    before it local."""
    last = graph.layers.stop - 1 - local
    masked = graph.by_name.get(join("kq_soft_max", last))
    if masked is None or bool(masked.attr("window")) != local:
        raise AssayError(f"{where}: layer {last} of the model is not {'local' if local else 'full'}, as it expects")
    return graph[join("kq", last)].inputs[1], graph[join("kqv", last)].inputs[1]


def _row(graph: Graph, node: str) -> list[int]:
    """Heads and width of the rows in a cache."""
    return [int(n) for n in graph.shapes[node][1:]]


def _said(local: bool, sizes: list[int]) -> str:
    return f"{sizes[0]} {'local' if local else 'full'} key heads of {sizes[1]} and {sizes[2]}"
