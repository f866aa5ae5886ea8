"""Folders of one file a value: what hooks, sglang's dumper, AWS Neuron's tensor capture and ONNX Runtime write.

The name of a value is in the file's name. A few tools put the step, the rank and the layer there as well; `TAGGED` is
the table of their spellings. Every step needs the ids that were fed (`input_ids`), or only the first one is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from assay.errors import AssayError
from assay.verify.dumps.formats.array_dumps import from_arrays
from assay.verify.dumps.formats.call_steps import join_steps
from assay.verify.dumps.formats.module_names import TOKENS
from assay.verify.dumps.formats.numpy_files import MAX_MEMBERS, Arrays, file_array
from assay.verify.dumps.formats.safetensors import read_safetensors
from assay.verify.dumps.formats.tensor_protos import database_arrays, proto_array
from assay.verify.dumps.formats.torch_files import torch_arrays
from assay.verify.dumps.observation import Dump

Array = NDArray[Any]
_NEURON = re.compile(r"captured_tensors_(?P<phase>[a-z]{2,8})_step_(?P<step>\d{1,9})_module_(?P<name>.{1,200})")


@dataclass(frozen=True)
class FileTags:
    """Name, step and rank of a value, as the name of its file states them."""

    name: str
    step: int = 0
    rank: int = 0


def file_tags(stem: str) -> FileTags:
    """sglang: `step=0___rank=0___name=mlp___layer_id=3`. Neuron: `captured_tensors_cte_step_1_module_…`. Or a name."""
    if m := _NEURON.fullmatch(stem):
        return FileTags(m["name"], int(m["step"]))
    if "___" not in stem or "name=" not in stem:
        return FileTags(stem)
    tags = dict(part.split("=", 1) for part in stem.split("___") if "=" in part)
    step = tags.get("step") or tags.get("forward_pass_id") or "0"
    layer = tags.get("layer_id", "")
    name = tags.get("name", stem)
    if layer.isdecimal() and not re.search(r"\blayers\.\d", name):
        name = f"layers.{layer}.{name}"
    return FileTags(
        name, int(step) if step.isdecimal() else 0, int(tags["rank"]) if tags.get("rank", "").isdecimal() else 0
    )


def _torch(path: Path, name: str) -> Arrays:
    """The tensors of a file: one gets the file's name; sglang's lie under `value`, beside `meta`."""
    arrays, _ = torch_arrays(path)
    found: Arrays = {}
    for inner, array in arrays.items():
        if inner == "meta" or inner.startswith("meta."):
            continue
        inner = "" if inner == path.stem else re.sub(r"^value\b\.?", "", inner)
        found[f"{name}{'' if inner.startswith('[') or not inner else '.'}{inner}"] = array
    return found


def _safetensors(path: Path, name: str) -> Arrays:
    readers, entries, _ = read_safetensors(path)
    alone = len(entries) == 1
    return {(name if alone else f"{name}.{n}"): (entries[n].shape, readers[n]) for n in entries}


def _proto(path: Path, name: str) -> Arrays:
    said, shape, read = proto_array(path)
    return {said or name: (shape, read)}


FILES: dict[str, Callable[[Path, str], Arrays]] = {
    ".npy": lambda path, name: {name: file_array(path)},
    ".pt": _torch, ".pth": _torch, ".pkl": _torch, ".safetensors": _safetensors,
    ".tensorproto": _proto, ".pb": _proto,
}  # fmt: skip


# Files that hold a whole dump by themselves.
ALONE = frozenset({".txt", ".log", ".out", ".csv", ".tsv", ".md", ".json", ".jsonl", ".ndjson", ".npz"})
_SHOWN = 4  # names of files in an error


def the_log_of(folder: Path) -> Path:
    """The one log or dump that a folder holds; the folder itself if it is a dump of one file a value."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    found = [file for file in files if file.suffix.lower() in ALONE]
    if not found or any(file.suffix in FILES or file.suffix == ".bin" for file in files):
        return folder
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise AssayError(f"{folder}: holds {len(found)} logs ({names}{more}); name the one to read")
    return found[0]


def has_values(folder: Path) -> bool:
    """Whether the folder holds files of a known kind other than .npy, which has a reader of its own."""
    return any(file.suffix in FILES and file.suffix != ".npy" for file in _files(folder))


def _files(folder: Path) -> list[Path]:
    found = []
    for file in folder.iterdir():
        if file.suffix in FILES and file.is_file():
            found.append(file)
        if len(found) > MAX_MEMBERS:
            raise AssayError(f"{folder}: more than {MAX_MEMBERS} files")
    return sorted(found)


def read_folder(folder: Path) -> Dump:
    """The values of every file, the steps one after the other."""
    steps: dict[int, Arrays] = {}
    skipped = 0
    for file in _files(folder):
        tags = file_tags(file.stem)
        if tags.rank:
            skipped += 1
            continue
        into = steps.setdefault(tags.step, {})
        for name, array in FILES[file.suffix](file, tags.name).items():
            into[name if name not in into else file.stem] = array
    notes = (f"{skipped} files of ranks above 0 were left out; dump with one rank",) if skipped else ()
    return join_steps([_step(folder, steps[number]) for number in sorted(steps)], notes)


def read_database(path: Path) -> Dump:
    """ONNX Runtime's execution trace in SQLite."""
    steps = database_arrays(path)
    if not steps:
        raise AssayError(f"{path}: the table Tensors is empty; set ORT_DEBUG_NODE_IO_DUMP_OUTPUT_DATA=1")
    return join_steps([_step(path, steps[number]) for number in sorted(steps)], ())


def _step(path: Path, arrays: Arrays) -> Dump:
    """The dump of one step; its positions are empty where the step does not give them."""
    if any(name in arrays for name in TOKENS):
        found = from_arrays(path, arrays)
        return found if "positions" in arrays else replace(found, positions=())
    return from_arrays(path, {name: array for name, array in arrays.items() if name != "positions"})
