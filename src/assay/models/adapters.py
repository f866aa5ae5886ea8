"""LoRA adapters: a GGUF file with two small matrices for some matrices of a model, and the graph that applies them.

For a linear node y = W x whose weight has a pair A [r, n_in], B [n_out, r], the adapted node is

    y = W x + s · (alpha / r) · B (A x)

with s the scale that the user chooses. Each token has its own s, given to the graph as `lora_scale_N` [T, 1], so that
one batch can hold sequences with different adapters and without any. A token whose s is 0 keeps the bits of W x.
Several adapters are added one after the other, in the order in which they were given. The sum has the name that the
linear node has without adapters; W x itself is `NAME_base`.

The file is llama.cpp's form: `general.type` adapter, `adapter.type` lora, `adapter.lora.alpha`, tensors
`NAME.lora_a` and `NAME.lora_b`. Touch this when adapters of another kind are to be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from assay.errors import AssayError
from assay.gguf import GGUFFile, open_file
from assay.graph import Graph, Node, Trait
from assay.graph.names import join, split
from assay.models.model import Model


@dataclass(frozen=True)
class Adapter:
    """An opened adapter. `pairs` has for each adapted tensor alpha / r, or 1 where the file has no alpha."""

    file: GGUFFile
    pairs: Mapping[str, float]
    scale: float  # for requests that name none
    digest: bytes  # identifies its values


def open_adapter(path: Path, model: Model, scale: float = 1.0) -> Adapter:
    """Open an adapter, and check that it fits the model."""
    file = open_file(path)
    kinds = [str(file.metadata.get(key, "")) for key in ("general.type", "adapter.type")]
    if kinds != ["adapter", "lora"]:
        raise AssayError(f"{path}: is not a LoRA adapter (found {' '.join(kinds).strip() or 'no type'}); make one "
                         "with `assay convert FOLDER OUT --base MODEL`")  # fmt: skip
    arch = file.metadata.get("general.architecture")
    if arch != model.hparams.arch:
        raise AssayError(f"{path}: is for another architecture (found {arch!s:.40}, expected {model.hparams.arch})")
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise AssayError(f"{path}: adapter.lora.alpha is not a number (found {alpha!r:.40})")
    if file.byteorder != model.file.byteorder:
        raise AssayError(f"{path}: has another byte order than the model ({file.byteorder}); convert it again")
    looked_up = {name for node in model.graph if node.has(Trait.TABLE) for name in node.weights}
    linears = {node.weights[0] for node in model.graph if node.op == "linear"} - looked_up
    pairs = dict(_pairs(path, file, model, linears, float(alpha)))
    if not pairs:
        raise AssayError(f"{path}: has no tensors NAME.lora_a and NAME.lora_b")
    return Adapter(file, pairs, scale, bytes.fromhex(file.sha256))


def _pairs(path: Path, file: GGUFFile, model: Model, linears: set[str], alpha: float) -> Iterator[tuple[str, float]]:
    """The adapted tensors and alpha / r of each."""
    for name in file.tensors:
        base, _, part = name.rpartition(".")
        other = f"{base}.{'lora_b' if part == 'lora_a' else 'lora_a'}"
        if part not in ("lora_a", "lora_b") or other not in file.tensors:
            raise AssayError(f"{path}: {name!r:.80} is not one of a pair NAME.lora_a and NAME.lora_b")
        if part == "lora_b":
            continue
        if base not in linears:
            known = base in model.file.tensors
            why = "is a table, or not multiplied as a matrix" if known else "is not in the model"
            raise AssayError(f"{path}: {base!r:.80} {why}; only linear layers can be adapted")
        a, b, wanted = file.tensors[name].shape, file.tensors[other].shape, model.file.tensors[base].shape
        rank = a[0] if len(a) == 2 else 0
        if len(a) != 2 or len(b) != 2 or (a, b) != ((rank, wanted[1]), (wanted[0], rank)) or not rank:
            raise AssayError(
                f"{path}: {base}: its pair does not fit (found {list(a)} and {list(b)}, expected [r, {wanted[1]}] and "
                f"[{wanted[0]}, r])"
            )
        yield base, alpha / rank if alpha else 1.0


def tensor_name(i: int, base: str, part: str) -> str:
    """The name of adapter i's part of a tensor in the joined file."""
    return f"lora{i}.{base}.{part}"


def scale_name(i: int) -> str:
    """The value with the scale of adapter i for each token."""
    return f"lora_scale_{i}"


def joined_file(base: GGUFFile, adapters: Sequence[Adapter]) -> GGUFFile:
    """The tensors of a model and of its adapters as one file. Metadata are the model's."""
    parts = list(base.parts)
    for i, adapter in enumerate(adapters):
        first = len(parts)
        for part in adapter.file.parts:
            tensors = tuple(replace(t, name=f"lora{i}.{t.name}", part=first + t.part) for t in part.tensors)
            parts.append(replace(part, tensors=tensors))
    return GGUFFile(base.path, tuple(parts)) if adapters else base


def with_adapters(model: Model, adapters: Sequence[Adapter]) -> Model:
    """The model whose definition has the adapters, with the scales that they were opened with."""
    used = [i for i, adapter in enumerate(adapters) if adapter.scale]
    graph = adapted(model.graph, adapters, used, fixed=True)
    return replace(model, file=joined_file(model.file, adapters), graph=graph)


def adapted(graph: Graph, adapters: Sequence[Adapter], active: Sequence[int], *, fixed: bool = False) -> Graph:
    """The graph with the adapters of these numbers. `fixed`: with their own scales, in place of one for each token."""
    weights, given = dict(graph.weights), dict(graph.given)
    for i in active:
        if not fixed:
            given[scale_name(i)] = ("T", 1)
        for base in adapters[i].pairs:
            for part in ("lora_a", "lora_b"):
                weights[tensor_name(i, base, part)] = adapters[i].file.tensors[f"{base}.{part}"].shape

    def change(node: Node) -> list[Node] | None:
        used = [i for i in active if node.op == "linear" and node.weights[0] in adapters[i].pairs]
        if not used:
            return None
        role, layer = split(node.name)
        base = node.weights[0]
        found = [replace(node, name=join(f"{role}_base", layer))]
        for i in used:
            name = node.name if i == used[-1] else join(f"{role}_lora{i}", layer)
            inputs = (found[-1].name, *node.inputs, *(() if fixed else (scale_name(i),)))
            pair = tensor_name(i, base, "lora_a"), tensor_name(i, base, "lora_b")
            attrs = {"factor": adapters[i].pairs[base]} | ({"scale": adapters[i].scale} if fixed else {})
            found.append(Node(name, "add_adapter", inputs, pair, attrs))
        return found

    return replace(graph.rewrite(change), weights=weights, given=given).check()
