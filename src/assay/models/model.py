"""A model: a file, its hyper-parameters, and the graph that its architecture's builder makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph, Trait
from assay.models.arch_keys import ArchKeys
from assay.models.blocks import Builder
from assay.models.catalogue import ARCHITECTURES
from assay.models.draft_head import head_in_file
from assay.models.hparams import HParams
from assay.system import plugins


@dataclass(frozen=True)
class Model:
    """An engine's input: the file with the weights, and the graph to compute."""

    file: GGUFFile
    hparams: HParams
    graph: Graph
    draft: Graph | None = None  # the draft head, a graph over the same file (`models/draft_head.py`)
    draft_fault: str = ""  # why a file that says that it has a head has none that can be run

    def at(self, n_ctx: int) -> Model:
        """The model for a context of `n_ctx` positions. The graph differs if the file has RoPE factors by length."""
        return load(self.file, n_ctx) if "rope_factors_long.weight" in self.file.tensors else self


def load(file: GGUFFile, n_ctx: int | None = None) -> Model:
    """Read the hyper-parameters, build the graph and check it against the tensors of the file.

    `n_ctx` is the context in use, by default the context that the model was trained on.
    """
    arch = file.get_str("general.architecture")
    build = ARCHITECTURES[arch].build if arch in ARCHITECTURES else _plugin_builder(arch)
    if kind := head_in_file(file.metadata, file.tensors):
        raise AssayError(f"{file.path}: is {kind} and no model; use it with its model: --draft {file.path.name}")
    if str(file.metadata.get("general.type", "")) == "adapter":
        raise AssayError(f"{file.path}: is an adapter and no model; use it with its model: --lora {file.path.name}")
    if build is None:
        known = [*ARCHITECTURES, *plugins.names("assay.architectures")]
        near = get_close_matches(arch, known, 1)
        hint = f"; the nearest known is {near[0]}" if near else ""
        where = f"{file.path}: general.architecture"
        if arch == "clip":
            raise AssayError(
                f"{file.path}: is an mmproj file, which holds a vision tower; name the language model, and this file "
                "with --mmproj FILE"
            )
        raise AssayError(f"{where}: unknown architecture {arch!r}{hint}; known are {', '.join(known)}")
    builder = Builder(
        ArchKeys(file.metadata, arch, str(file.path)), {name: info.shape for name, info in file.tensors.items()}, n_ctx
    )
    try:
        graph = build(builder).check()
        draft = builder.draft
        for checked in (graph, draft) if draft else (graph,):
            _check_experts(checked, builder.hp)
    except AssayError as error:
        text = str(error)
        raise AssayError(text if text.startswith(f"{file.path}: ") else f"{file.path}: {text}") from error
    return Model(file, builder.hp, graph, draft, builder.draft_fault)


def _plugin_builder(arch: str) -> Callable[[Builder], Graph] | None:
    """The builder of an installed package, or None.

    Its graph may use operations that packages add, so these are registered first. If one fails to register, the check
    of the graph names it, and the log has the reason.
    """
    found: Callable[[Builder], Graph] | None = plugins.find("assay.architectures", arch)
    if found is not None:
        plugins.register_all("assay.operations")
    return found


def _check_experts(graph: Graph, hparams: HParams) -> None:
    """Check that a router chooses among as many experts as every matrix has; shapes alone do not imply it."""
    for node in graph:
        for name in node.weights if node.has(Trait.EXPERTS) else ():
            if graph.weights[name][0] != hparams.n_expert:
                raise AssayError(f"{name}: {graph.weights[name][0]} experts (expected expert_count {hparams.n_expert})")
        ranks = node.has(Trait.INDICES) and node.has(Trait.SELECTS)
        if ranks and graph.shapes[node.name][-1] != hparams.n_expert:
            found = graph.shapes[node.name][-1]
            raise AssayError(f"node {node.name}: chooses among {found} experts (expected {hparams.n_expert})")
