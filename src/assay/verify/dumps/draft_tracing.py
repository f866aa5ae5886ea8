"""Traces of a draft head: the values of `Model.draft`, fed with the rows of the model itself.

The head reads the token at position p and the model's `result_norm` at p - 1 (`models/draft_head.py`). Nodes are named
`mtp/…`, because both graphs have a `result_norm` and a `result_output`. `with_draft_head` joins both graphs, so that a
dump of a head is judged and diagnosed like any other. Touch this to trace a head of another form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from assay.engines.contract import Array, Chunk, PagedEngine, pages_for
from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.graph import INPUTS, Graph, Node, join, split
from assay.models import Model
from assay.models.draft_head import HIDDEN
from assay.verify.dumps.observation import Dump

PREFIX = "mtp/"
Create = Callable[[Model, Graph], PagedEngine]


def _reference(model: Model, graph: Graph) -> PagedEngine:
    return ReferenceEngine(model, graph=graph)


def hidden_rows(rows: Array) -> Array:
    """The rows that the head is given: the model's, one token late, zeros at the first token."""
    return np.concatenate([np.zeros_like(rows[:1]), rows[:-1]])


def trace_draft_head(model: Model, tokens: Sequence[int], create: Create = _reference) -> dict[str, Array]:
    """Every node of the draft head for these tokens, and the rows that it was given. `create` makes the engines."""
    if model.draft is None:
        raise AssayError(f"{model.file.path}: no draft head that can be run; the file needs nextn_predict_layers = 1")
    ids, pages = np.asarray(tokens, np.int32), np.arange(pages_for(len(tokens)), dtype=np.int32)
    trunk = create(model, model.graph)
    try:
        rows = trunk.forward([Chunk(ids, 0, pages, "none")], ["result_norm"])[0].nodes["result_norm"]
    finally:
        trunk.close()
    given = hidden_rows(rows.astype(trunk.dtype, copy=False))
    head = create(model, model.draft)
    try:
        chunk = Chunk(ids, 0, pages, "none", rows={HIDDEN: given})
        found = head.forward([chunk], [node.name for node in model.draft])[0].nodes
    finally:
        head.close()
    return {f"{PREFIX}hidden": given, **{PREFIX + name: value for name, value in found.items()}}


def model_of(model: Model, dump: Dump) -> Model:
    """The model that a dump is about: with its draft head, where the dump names nodes of it."""
    named = any(o.name.startswith(PREFIX) or o.foreign.startswith(PREFIX) for o in dump.observations)
    return with_draft_head(model) if named and model.draft is not None and not _joined(model) else model


def _joined(model: Model) -> bool:
    return f"{PREFIX}hidden" in model.graph


def with_draft_head(model: Model) -> Model:
    """One graph of the model and, after it, its draft head; the head's nodes are named `mtp/…`."""
    assert model.draft is not None
    own = {node.name for node in model.draft}

    def renamed(name: str) -> str:
        role, layer = split(name)
        if name == HIDDEN:
            return f"{PREFIX}hidden"
        return join(PREFIX + role, layer) if name in own and name not in INPUTS else name

    hidden = Node(f"{PREFIX}hidden", "shift", ("result_norm",), (), {"state": (1, model.hparams.n_embd)})
    head = [replace(n, name=renamed(n.name), inputs=tuple(map(renamed, n.inputs))) for n in model.draft]
    rows = model.hparams.layers
    row = next((r for r in reversed(rows) if not r.recurrent and r.n_head_kv), rows[-1])
    graph = replace(model.graph, nodes=(*model.graph.nodes, hidden, *head))
    return replace(model, graph=graph, hparams=model.hparams.with_row(row))
