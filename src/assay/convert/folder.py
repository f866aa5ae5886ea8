"""A model folder of Hugging Face: JSON files and safetensors. All of it is untrusted input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.file_kinds import GGUF, first_bytes
from assay.system.text_files import read_text
from assay.verify.dumps.formats.safetensors import TensorEntry, read_safetensors

MOST = 256 << 20  # largest JSON file in bytes
LARGEST = {"num_hidden_layers": 1 << 16, "n_layer": 1 << 16, "vocab_size": 1 << 24}  # settings that memory grows with

Json = dict[str, Any]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the folder, read on demand."""

    entry: TensorEntry
    read: Callable[[], NDArray[Any]]


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            is_model = path.is_file() and first_bytes(path)[:4] == GGUF
            found = "is a GGUF model already" if is_model else "has no config.json"
            if not path.exists():
                raise AssayError(
                    f"{path}: no such folder; download a repository first: hf download OWNER/REPO --local-dir F"
                )
            raise AssayError(f"{path}: {found} (expected a Hugging Face model folder); name the folder of the original")

    @cached_property
    def config(self) -> Json:
        """The settings of the text model. Those under `text_config` take precedence."""
        found = self.json("config.json")
        inner = found.get("text_config")
        merged = {**found, **inner} if isinstance(inner, dict) else found
        if isinstance(merged.get("quantization_config"), dict):
            method = merged["quantization_config"].get("quant_method")
            raise AssayError(f"{self.path}: the weights are already quantised ({method}); convert the original model")
        for name, most in LARGEST.items():
            if isinstance(merged.get(name), int) and merged[name] > most:
                raise AssayError(f"{self.path}/config.json: {name} is {merged[name]:.6g} (expected at most {most})")
        return merged

    @cached_property
    def tokenizer(self) -> Json:
        return self.json("tokenizer.json") if (self.path / "tokenizer.json").is_file() else {}

    @cached_property
    def tokenizer_config(self) -> Json:
        return self.json("tokenizer_config.json") if (self.path / "tokenizer_config.json").is_file() else {}

    def json(self, name: str) -> Json:
        path = self.path / name
        if path.stat().st_size > MOST:
            raise AssayError(f"{path}: {path.stat().st_size >> 20} MiB (expected at most {MOST >> 20})")
        try:
            found = json.loads(read_text(path, "JSON; download it again"))
        except (ValueError, RecursionError) as error:
            raise AssayError(f"{path}: not JSON ({error!s:.100})") from None
        if not isinstance(found, dict):
            raise AssayError(f"{path}: expected an object (found {type(found).__name__})")
        return found

    def setting(self, *names: str, default: Any = None, kind: type | tuple[type, ...] = (int, float)) -> Any:
        """The first of these settings that is present, checked for its type."""
        for name in names:
            value = self.config.get(name)
            if value is not None:
                if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                    raise AssayError(f"{self.path}/config.json: {name} is {value!r:.60} (expected a number)")
                return value
        return default

    def need(self, *names: str) -> Any:
        found = self.setting(*names)
        if found is None:
            raise AssayError(f"{self.path}/config.json: has no {' or '.join(names)}")
        return found

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor of every part, by name."""
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            listed = self.json(index.name).get("weight_map")
            names = sorted({str(v) for v in listed.values()}) if isinstance(listed, dict) else []
        else:
            names = sorted(p.name for p in self.path.glob("model*.safetensors"))
        if not names:
            raise AssayError(f"{self.path}: has no model.safetensors; other weight formats are not supported")
        found: dict[str, StoredTensor] = {}
        for name in names:
            if Path(name).name != name:
                raise AssayError(f"{index}: names a file outside the folder ({name!r:.60})")
            if not (self.path / name).is_file():
                raise AssayError(f"{self.path}: {name} is missing; download the whole model")
            readers, entries, _ = read_safetensors(self.path / name)
            found |= {key: StoredTensor(entries[key], readers[key]) for key in entries}
        return found


def floats(source: StoredTensor) -> NDArray[np.float32]:
    """The tensor as float32: exact for the half types."""
    return source.read().astype(np.float32, copy=False)
