"""Convert a folder to a GGUF file, with one tensor in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.convert.architectures import ARCHITECTURES, EXPERTS, LAYER, TOP, Architecture, common
from assay.convert.folder import Folder, StoredTensor, floats
from assay.convert.vocabulary import vocabulary
from assay.errors import AssayError
from assay.gguf import codecs
from assay.gguf.mixes import QUANTIZATION_VERSION, mix_by_name
from assay.gguf.types import GGMLType, Typed, ValueType, by_name
from assay.gguf.writer import Tensor, write

OUT_TYPES = ("F32", "F16", "BF16", "Q8_0")
_IGNORED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
_BLOCK = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to write: its name and its sources. Several sources are stacked."""

    name: str
    sources: tuple[StoredTensor, ...]
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.sources[0].entry.shape
        return (len(self.sources), *shape) if self.name.endswith("_exps.weight") else shape


def convert(
    path: Path, out: Path, kind: str | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Write the model in `path` to `out`. `kind` is F32, F16, BF16 or Q8_0; by default BF16 or F16, as stored."""
    folder = Folder(path)
    architecture = recognised(folder)
    plans = list(plan(folder, architecture))
    kind = (kind or natural(plans)).upper()
    if kind not in OUT_TYPES:
        raise AssayError(
            f"{kind}: not a target of convert (expected {', '.join(OUT_TYPES)}); use `assay quantize` afterwards"
        )
    keys = metadata(folder, architecture, kind)
    n_vocab = len(keys["tokenizer.ggml.tokens"].value)  # type: ignore[arg-type]
    done = 0

    def data(one: TensorPlan, type_: GGMLType) -> NDArray[np.uint8]:
        nonlocal done
        done += 1
        progress(done, len(plans))
        return encoded(one, type_)

    tensors = [
        Tensor(name, values.shape, by_name("F32"), values) for name, values in architecture.extra(folder).items()
    ]
    for one in plans:
        if one.name == "token_embd.weight" and one.shape[0] != n_vocab:
            raise AssayError(
                f"{path}: {one.shape[0]} rows of embeddings for {n_vocab} tokens; config.json's vocab_size is wrong"
            )
        type_ = stored(one, kind)
        tensors.append(Tensor(one.name, one.shape, type_, partial(data, one, type_)))
    write(out, keys, tensors)
    return {"architecture": architecture.name, "type": kind, "tensors": len(tensors), "tokens": n_vocab}


def recognised(folder: Folder) -> Architecture:
    named = folder.json("config.json").get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else "none"
    if name not in ARCHITECTURES:
        raise AssayError(f"{folder.path}/config.json: architecture {name!r:.60}; known are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def plan(folder: Folder, architecture: Architecture) -> Iterator[TensorPlan]:
    """The tensors in the order of the folder, with the experts of a layer stacked."""
    layer = LAYER | dict(architecture.layer)
    stacks: dict[str, dict[int, StoredTensor]] = {}
    for key, source in folder.tensors.items():
        key = key.removeprefix("language_model.")
        if key.endswith(_IGNORED) or key.startswith(("vision_tower.", "multi_modal_projector.", "model.vision_tower.")):
            continue
        stem, _, suffix = key.rpartition(".")
        block = _BLOCK.fullmatch(key)
        if stem in TOP:
            if not (architecture.tied and stem == "lm_head"):
                yield TensorPlan(f"{TOP[stem]}.{suffix}", (source,), _change(folder, architecture, key))
            continue
        expert = _EXPERT.fullmatch(block[2]) if block else None
        if block and expert and expert[2] in EXPERTS:
            stacks.setdefault(f"blk.{block[1]}.{EXPERTS[expert[2]]}.weight", {})[int(expert[1])] = source
        elif block and block[2] in layer:
            name = f"blk.{block[1]}.{layer[block[2]]}.{block[3]}"
            yield TensorPlan(name, (source,), _change(folder, architecture, key))
        else:
            raise AssayError(f"{folder.path}: tensor {key!r:.100} is unknown in {architecture.name}")
    for name, experts in stacks.items():
        n = folder.need("num_local_experts", "num_experts")
        if sorted(experts) != list(range(n)):
            raise AssayError(f"{folder.path}: {name}: {len(experts)} experts (expected {n})")
        yield TensorPlan(name, tuple(experts[i] for i in range(n)))


def _change(
    folder: Folder, architecture: Architecture, key: str
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]] | None:
    if architecture.shifted_norms and key.endswith("norm.weight"):
        return lambda x: x + np.float32(1)
    for part, names in (
        ("q_proj", ("num_attention_heads",)),
        ("k_proj", ("num_key_value_heads", "num_attention_heads")),
    ):
        if architecture.pairs and key.rpartition(".")[0].endswith(part):
            return partial(paired, n_head=folder.need(*names))
    return None


def paired(x: NDArray[np.float32], n_head: int) -> NDArray[np.float32]:
    """Reorder the rows of each head for RoPE: from halves (pairs i and i + d/2) to neighbours (pairs 2i and 2i + 1)."""
    if len(x) % (2 * n_head):
        raise AssayError(f"{len(x)} rows cannot be divided into halves of {n_head} heads; config.json is wrong")
    return x.reshape(n_head, 2, len(x) // n_head // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def natural(plans: list[TensorPlan]) -> str:
    """BF16 if the first 16-bit matrix is BF16, else F16."""
    kinds = (p.sources[0].entry.dtype for p in plans if len(p.shape) > 1)
    return "BF16" if next((kind for kind in kinds if kind in ("BF16", "F16")), "F16") == "BF16" else "F16"


def stored(one: TensorPlan, kind: str) -> GGMLType:
    """The type of a tensor: F32 for vectors, norms and routers; F16 if the row length does not fit the blocks."""
    exact = len(one.shape) <= 1 or one.name.endswith(("_norm.weight", ".bias"))
    if exact or one.name.endswith(("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")):
        return by_name("F32")
    type_ = by_name(kind)
    return type_ if one.shape[-1] % type_.block_size == 0 else by_name("F16")


def encoded(one: TensorPlan, type_: GGMLType) -> NDArray[np.uint8]:
    values = [floats(source) for source in one.sources]
    x = np.stack(values) if one.name.endswith("_exps.weight") else values[0]
    if one.change is not None:
        x = one.change(x)
    try:
        return codecs.encode(type_, np.ascontiguousarray(x))
    except AssayError as error:
        raise AssayError(f"{one.name}: {error}") from None


def metadata(folder: Folder, architecture: Architecture, kind: str) -> dict[str, Typed]:
    """All metadata: general keys, those of the architecture, and those of the vocabulary."""
    found = {**(common(folder) if architecture.common else {}), **architecture.keys(folder)}
    keys = {
        "general.architecture": Typed(ValueType.STRING, architecture.name),
        "general.type": Typed(ValueType.STRING, "model"),
        "general.name": Typed(ValueType.STRING, folder.path.resolve().name),
        "general.file_type": Typed(ValueType.UINT32, mix_by_name(kind).file_type),
        "general.quantization_version": Typed(ValueType.UINT32, QUANTIZATION_VERSION),
    }
    kinds = {int: ValueType.UINT32, float: ValueType.FLOAT32, str: ValueType.STRING, bool: ValueType.BOOL}
    for key, value in found.items():
        if value is not None:
            whole = key[1:] if key.startswith(".") else f"{architecture.name}.{key}"
            keys[whole] = Typed(kinds[type(value)], value)
    keys |= vocabulary(folder)
    if architecture.shifted_norms and keys["tokenizer.ggml.model"].value == "llama":
        keys["tokenizer.ggml.add_space_prefix"] = Typed(ValueType.BOOL, False)
    return keys
