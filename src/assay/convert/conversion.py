"""Convert a folder to a GGUF file, with one tensor in memory at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.convert.architecture_row import EXPERT_COUNT, EXPERTS, LAYER, TOP, Architecture, TensorChange, common
from assay.convert.architectures import ARCHITECTURES
from assay.convert.changes import paired
from assay.convert.folder import Folder, StoredTensor, floats
from assay.convert.vocabulary import vocabulary
from assay.errors import AssayError
from assay.gguf import codecs
from assay.gguf.mixes import QUANTIZATION_VERSION, mix_by_name
from assay.gguf.types import GGMLType, Typed, ValueType, by_name
from assay.gguf.writer import Tensor, write
from assay.system.stages import each

OUT_TYPES = ("F32", "F16", "BF16", "Q8_0")
_IGNORED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
_OTHER_PARTS = tuple(  # towers for pictures and sound
    f"{prefix}{part}."
    for prefix in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector", "visual", "audio_tower", "embed_vision", "embed_audio")
)
_BLOCK = re.compile(r"model\.layers\.(\d{1,9})\.(.+)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe|feed_forward|mixer)\.experts\.(\d{1,9})\.(\w+)\.weight")
_EXACT = re.compile(  # stored as F32: vectors and small tables, which are not read by blocks
    r"_norm\.weight$|\.bias$|ffn_gate_inp(_shexp)?\.weight$|ssm_conv1d|shortconv\.conv\.weight$"
    r"|time_mix_(first|w[12]|decay_w[12]|lerp_fused)\.weight$|altup_(correct|predict)_coef\.weight$|(?<!\.weight)$"
)
_BAD_CONFIG = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to write: its name and its sources. Several sources are stacked."""

    name: str
    sources: tuple[StoredTensor, ...]
    change: TensorChange | None = None
    stacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.sources[0].entry.shape
        shape = (len(self.sources), *shape) if self.stacked else shape
        try:
            return self.change.shape(shape) if self.change else shape
        except _BAD_CONFIG:
            raise AssayError(f"{self.name}: its shape {shape} does not fit config.json") from None


def convert(path: Path, out: Path, kind: str | None = None) -> dict[str, Any]:
    """Write the model in `path` to `out`. `kind` is F32, F16, BF16 or Q8_0; by default BF16 or F16, as stored."""
    folder = Folder(path)
    architecture = recognised(folder)
    plans = list(plan(folder, architecture))
    kind = (kind or natural(plans)).upper()
    if kind not in OUT_TYPES:
        raise AssayError(
            f"{kind}: not a target of convert (expected {', '.join(OUT_TYPES)}); use `assay quantize` afterwards"
        )
    rows = next((one.shape[0] for one in plans if one.name == "token_embd.weight"), 0)
    keys = metadata(folder, architecture, kind, rows if architecture.padded else 0)
    n_vocab = len(keys["tokenizer.ggml.tokens"].value)  # type: ignore[arg-type]
    told = iter(each(plans, "converting", "tensors"))

    def data(one: TensorPlan, type_: GGMLType) -> NDArray[np.uint8]:
        next(told, None)
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
    return {
        "architecture": architecture.gguf_name(folder),
        "type": kind,
        "tensors": len(tensors),
        "tokens": n_vocab,
    }


def recognised(folder: Folder) -> Architecture:
    named = folder.json("config.json").get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else "none"
    if name not in ARCHITECTURES:
        raise AssayError(f"{folder.path}/config.json: architecture {name!r:.60}; known are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def plan(folder: Folder, architecture: Architecture) -> Iterator[TensorPlan]:
    """The tensors in the order of the folder, with the experts of a layer stacked."""
    stacks: dict[str, dict[int, StoredTensor]] = {}
    for stored_name, source in folder.tensors.items():
        key = renamed(folder, architecture, stored_name)
        if key is None:
            continue
        block = _BLOCK.fullmatch(key)
        number, rest = (int(block[1]), block[2]) if block else (-1, key)
        prefix = f"blk.{number}." if block else ""
        part = part_of_stack(architecture, rest)
        if part is not None:
            stacks.setdefault(prefix + part[0], {})[part[1]] = source
            continue
        names = names_of(architecture, rest, bool(block))
        if names is None:
            raise AssayError(
                f"{folder.path}: tensor {stored_name!r:.100} is unknown in {architecture.gguf_name(folder)}"
            )
        for name in (*names, *architecture.also(folder, names[0], number).split()) if names else ():
            yield TensorPlan(prefix + name, (source,), change_of(folder, architecture, rest, name, number))
    for name, parts in stacks.items():
        expert = name.endswith("_exps.weight")
        n = folder.need(*EXPERT_COUNT) if expert else _parts(architecture, name)
        if len(parts) != n or sorted(parts) != list(range(len(parts))):
            what = "experts" if expert else "parts"
            raise AssayError(f"{folder.path}: {name}: {len(parts)} {what} (expected {n})")
        yield TensorPlan(name, tuple(parts[i] for i in range(len(parts))), stacked=True)


def renamed(folder: Folder, architecture: Architecture, key: str) -> str | None:
    """The tensor's name as `model.…`; None for a tensor that is left out."""
    key = key.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
    if key.endswith(_IGNORED) or key.startswith(_OTHER_PARTS):
        return None
    try:
        found = architecture.rename(folder, key)
    except _BAD_CONFIG as error:
        raise AssayError(f"{folder.path}/config.json: tensor {key!r:.100} does not fit it ({error!s:.80})") from None
    if found == "lm_head.weight" and architecture.tied:
        return None
    return found


def part_of_stack(architecture: Architecture, rest: str) -> tuple[str, int] | None:
    """The stacked tensor of which this is a part, and which part."""
    expert = _EXPERT.fullmatch(rest)
    if expert and expert[2] in EXPERTS:
        return f"{EXPERTS[expert[2]]}.weight", int(expert[1])
    return architecture.stacks.get(rest)


def _parts(architecture: Architecture, name: str) -> int:
    return sum(target == re.sub(r"^blk\.\d+\.", "", name) for target, _ in architecture.stacks.values())


def names_of(architecture: Architecture, rest: str, below: bool) -> list[str] | None:
    """The file's names for a tensor, or None if it is unknown. No name: the tensor is not needed."""
    if rest in architecture.whole:
        return architecture.whole[rest].split()
    stem, _, suffix = rest.rpartition(".")
    names = LAYER | dict(architecture.layer) if below else TOP | dict(architecture.top)
    if suffix not in ("weight", "bias") or stem not in names:
        return None
    return [f"{name}.{suffix}" for name in names[stem].split()]


def change_of(folder: Folder, architecture: Architecture, rest: str, name: str, layer: int) -> TensorChange | None:
    shifted = architecture.shifted_norms and not rest.startswith(architecture.unshifted)
    if shifted and rest.endswith("norm.weight"):
        return TensorChange(lambda x: x + np.float32(1))
    for part, names in (
        ("q_proj", ("num_attention_heads",)),
        ("k_proj", ("num_key_value_heads", "num_attention_heads")),
    ):
        if architecture.pairs and rest.rpartition(".")[0].endswith(part):
            return TensorChange(partial(paired, n_head=folder.need(*names)))
    try:
        return architecture.change(folder, rest, name, layer)
    except _BAD_CONFIG as error:
        raise AssayError(f"{folder.path}/config.json: {rest!r:.100} does not fit it ({error!s:.80})") from None


def natural(plans: list[TensorPlan]) -> str:
    """BF16 if the first 16-bit matrix is BF16, else F16."""
    kinds = (p.sources[0].entry.dtype for p in plans if len(p.shape) > 1)
    return "BF16" if next((kind for kind in kinds if kind in ("BF16", "F16")), "F16") == "BF16" else "F16"


def stored(one: TensorPlan, kind: str) -> GGMLType:
    """The type of a tensor: F32 for vectors, norms and routers; F16 if the row length does not fit the blocks."""
    if math.prod(one.shape[:-1]) <= 1 or _EXACT.search(one.name):
        return by_name("F32")
    type_ = by_name(kind)
    return type_ if one.shape[-1] % type_.block_size == 0 else by_name("F16")


def encoded(one: TensorPlan, type_: GGMLType) -> NDArray[np.uint8]:
    values = [floats(source) for source in one.sources]
    try:
        x = np.stack(values) if one.stacked else values[0]
        if one.change is not None:
            x = one.change.values(x)
        if x.shape != one.shape:
            raise ValueError(f"{x.shape} for {one.shape}")
    except _BAD_CONFIG as error:
        raise AssayError(f"{one.name}: its shape does not fit config.json ({error!s:.100})") from None
    try:
        return codecs.encode(type_, np.ascontiguousarray(x))
    except AssayError as error:
        raise AssayError(f"{one.name}: {error}") from None


def metadata(folder: Folder, architecture: Architecture, kind: str, rows: int = 0) -> dict[str, Typed]:
    """All metadata: general keys, those of the architecture, and those of the vocabulary, of at least `rows` tokens."""
    try:
        architecture.check(folder)
        name = architecture.gguf_name(folder)
        found = {**(common(folder) if architecture.common else {}), **architecture.keys(folder)}
        own = {
            key[1:] if key.startswith(".") else f"{name}.{key}": _typed(value)
            for key, value in found.items()
            if value is not None
        }
    except _BAD_CONFIG as error:
        raise AssayError(
            f"{folder.path}/config.json: a setting is missing or of another kind ({error!r:.100})"
        ) from None
    keys = {
        "general.architecture": Typed(ValueType.STRING, name),
        "general.type": Typed(ValueType.STRING, "model"),
        "general.name": Typed(ValueType.STRING, folder.path.resolve().name),
        "general.file_type": Typed(ValueType.UINT32, mix_by_name(kind).file_type),
        "general.quantization_version": Typed(ValueType.UINT32, QUANTIZATION_VERSION),
        **own,
    }
    keys |= vocabulary(folder, rows)
    if architecture.shifted_norms and keys["tokenizer.ggml.model"].value == "llama":
        keys["tokenizer.ggml.add_space_prefix"] = Typed(ValueType.BOOL, False)
    return keys


_KINDS = {int: ValueType.UINT32, float: ValueType.FLOAT32, str: ValueType.STRING, bool: ValueType.BOOL}
_ARRAYS: dict[type, tuple[ValueType, type]] = {
    int: (ValueType.INT32, np.int32),
    float: (ValueType.FLOAT32, np.float32),
    bool: (ValueType.BOOL, np.bool_),
}


def _typed(value: Any) -> Typed:
    if not isinstance(value, list):
        return Typed(_KINDS[type(value)], value)
    kind, dtype = _ARRAYS[type(value[0])]
    return Typed(ValueType.ARRAY, np.array(value, dtype), kind)
