"""A model: a file, its hyper-parameters, and the graph that its architecture's builder makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph
from assay.models import llama
from assay.models.blocks import Shapes
from assay.models.hparams import HParams

# A new architecture is one file and one row here.
BUILDERS: dict[str, Callable[[Shapes, HParams], Graph]] = {
    "llama": llama.build,
}


@dataclass(frozen=True)
class Model:
    """What an engine needs: where the numbers are and what to do with them."""

    file: GGUFFile
    hparams: HParams
    graph: Graph


def load(file: GGUFFile) -> Model:
    """Read the hyper-parameters, build the graph and check it against the tensors of the file."""
    arch = file.get_str("general.architecture")
    if arch not in BUILDERS:
        raise AssayError(
            f"{file.path}: general.architecture: unknown architecture {arch!r}; known are {', '.join(BUILDERS)}"
        )
    hparams = HParams.read(file, arch)
    try:
        graph = BUILDERS[arch]({name: info.shape for name, info in file.tensors.items()}, hparams).check()
        _check_experts(graph, hparams)
    except AssayError as error:
        raise AssayError(f"{file.path}: {error}") from error
    return Model(file, hparams, graph)


def _check_experts(graph: Graph, hparams: HParams) -> None:
    """A router's choice must be an expert of every matrix it is used on; shapes alone do not say so."""
    for node in graph:
        for name in node.weights if node.op.startswith("expert_") else ():
            if graph.weights[name][0] != hparams.n_expert:
                raise AssayError(f"{name}: {graph.weights[name][0]} experts (expected expert_count {hparams.n_expert})")
        if node.op == "argsort" and graph.shapes[node.name][-1] != hparams.n_expert:
            found = graph.shapes[node.name][-1]
            raise AssayError(f"node {node.name}: chooses among {found} experts (expected {hparams.n_expert})")
