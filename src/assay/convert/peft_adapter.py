"""A PEFT folder (LoRA) as a GGUF adapter, for the GGUF file that `convert` makes of its base model.

PEFT names a pair after the module of the base model that it adapts: `base_model.model.<module>.lora_A.weight` [r, n_in]
and `….lora_B.weight` [n_out, r]. The module gets the name that `convert` gives its weight. Where `convert` reorders the
rows of that weight (queries and keys under RoPE in pairs), the rows of B are reordered alike.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.convert.architecture_row import Architecture, TensorChange
from assay.convert.changes import paired
from assay.convert.conversion import change_of, names_of, part_of_stack, recognised, renamed
from assay.convert.folder import Folder, StoredTensor, floats
from assay.errors import AssayError
from assay.gguf import codecs
from assay.gguf.types import Typed, ValueType, by_name
from assay.gguf.writer import Tensor, write
from assay.verify.dumps.formats.safetensors import read_safetensors

CONFIG = "adapter_config.json"
OUT_TYPES = ("F32", "F16", "BF16")
_PAIR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_BLOCK = re.compile(r"model\.layers\.(\d{1,9})\.(.+)")


def is_adapter(path: Path) -> bool:
    """Whether a folder holds an adapter, not a model."""
    return (path / CONFIG).is_file()


class _AdapterFolder(Folder):
    """The base model's settings; the adapter's own are read from its folder."""

    def __init__(self, path: Path, base: Path) -> None:
        super().__init__(base)
        self.adapter_path = path

    def adapter_json(self) -> dict[str, Any]:
        own = Folder.__new__(Folder)
        own.path = self.adapter_path
        return own.json(CONFIG)


def convert_adapter(path: Path, out: Path, base: Path, kind: str | None = None) -> dict[str, Any]:
    """Write the adapter in `path` to `out`. `base` is the folder of its model: only its config.json is read."""
    folder = _AdapterFolder(path, base)
    settings = folder.adapter_json()
    kind = (kind or "F32").upper()
    if kind not in OUT_TYPES:
        raise AssayError(f"{kind}: not a type for an adapter (expected {', '.join(OUT_TYPES)})")
    alpha = _alpha(path, settings)
    architecture = recognised(folder)
    stored = path / "adapter_model.safetensors"
    if not stored.is_file():
        raise AssayError(f"{path}: has no adapter_model.safetensors; other weight formats are not supported")
    readers, entries, _ = read_safetensors(stored)
    type_ = by_name(kind)
    tensors = []
    for key in sorted(entries):
        name, change = _target(folder, architecture, key)
        values = floats(StoredTensor(entries[key], readers[key]))
        if values.ndim != 2:
            raise AssayError(f"{stored}: {key!r:.100} is not a matrix (found shape {list(values.shape)})")
        tensors.append(Tensor(name, values.shape, type_, codecs.encode(type_, _changed(change, values, key))))
    if not tensors:
        raise AssayError(f"{stored}: has no tensors")
    keys = {
        "general.architecture": Typed(ValueType.STRING, architecture.gguf_name(folder)),
        "general.type": Typed(ValueType.STRING, "adapter"),
        "general.name": Typed(ValueType.STRING, path.resolve().name),
        "adapter.type": Typed(ValueType.STRING, "lora"),
        "adapter.lora.alpha": Typed(ValueType.FLOAT32, alpha),
    }
    write(out, keys, tensors)
    return {"architecture": architecture.gguf_name(folder), "type": kind, "tensors": len(tensors), "alpha": alpha}


def _alpha(path: Path, settings: dict[str, Any]) -> float:
    """alpha of alpha / r. Settings that change the formula are refused."""
    where = path / CONFIG
    if settings.get("peft_type", "LORA") != "LORA":
        raise AssayError(f"{where}: peft_type {settings['peft_type']!r:.40}; only LORA is converted")
    for name in ("use_dora", "use_rslora", "alpha_pattern", "rank_pattern", "modules_to_save", "fan_in_fan_out"):
        if settings.get(name):
            raise AssayError(f"{where}: {name} is set ({settings[name]!r:.40}); such adapters are not converted")
    alpha = settings.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise AssayError(f"{where}: lora_alpha is not a number (found {alpha!r:.40})")
    return float(alpha)


def _target(folder: Folder, architecture: Architecture, key: str) -> tuple[str, TensorChange | None]:
    """The name of a tensor in the adapter's file, and the change of its rows."""
    found = _PAIR.fullmatch(key)
    if found is None:
        raise AssayError(f"tensor {key!r:.100} is not one of a LoRA pair; embeddings and biases are not converted")
    named = renamed(folder, architecture, f"{found[1]}.weight")
    block = _BLOCK.fullmatch(named or "")
    number, rest = (int(block[1]), block[2]) if block else (-1, named or "")
    names = names_of(architecture, rest, bool(block)) if named and part_of_stack(architecture, rest) is None else None
    if names is None or len(names) != 1:
        raise AssayError(f"tensor {key!r:.100}: {architecture.gguf_name(folder)} has no one matrix for it in GGUF")
    change = change_of(folder, architecture, rest, names[0], number)
    rows_alone = change is None or (isinstance(change.values, partial) and change.values.func is paired)
    if not rows_alone:
        raise AssayError(f"tensor {key!r:.100}: `convert` changes the values of its matrix, so it cannot be adapted")
    prefix = f"blk.{number}." if block else ""
    return f"{prefix}{names[0]}.lora_{found[2].lower()}", change if found[2] == "B" else None


def _changed(change: TensorChange | None, values: NDArray[np.float32], key: str) -> NDArray[np.float32]:
    try:
        return np.ascontiguousarray(change.values(values) if change else values)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise AssayError(f"tensor {key!r:.100}: its rows do not fit config.json ({error!s:.80})") from None
