"""The tensors of an mmproj file as the tower's graph names them.

A file stores a patch kernel with four axes, and a few matrices the other way round. Old files have the two matrices of
a feed-forward under each other's names. This module gives the same file with those tensors as the graph multiplies
them. The bytes stay in the map; only a matrix that must be turned is copied. Touch this when a tensor is stored in a
new way.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.gguf.reader import FilePart, TensorInfo
from assay.gguf.types import by_name
from assay.models.vision.projector_keys import ProjectorKeys

# Projectors of which old files have `ffn_up` and `ffn_down` exchanged.
_EXCHANGED = ("gemma3", "idefics3", "qwen2vl_merger", "qwen2.5vl_merger", "mlp")
_FFN = re.compile(r"^(v\.blk\.\d{1,9}\.ffn_)(up|down)(\.(?:weight|bias))$")


def tower_file(file: GGUFFile, keys: ProjectorKeys) -> GGUFFile:
    """The file with every tensor in the form that the graph uses."""
    swap = keys.projector in _EXCHANGED and _exchanged(file, keys)
    parts = [
        replace(part, tensors=tuple(_named(_shaped(t, keys, file.path), swap) for t in part.tensors))
        for part in file.parts
    ]
    turned = dict(_turned(file, keys))
    if turned:
        parts.append(_in_memory(file, turned, len(parts)))
    return GGUFFile(file.path, tuple(parts))


def _exchanged(file: GGUFFile, keys: ProjectorKeys) -> bool:
    """Whether `ffn_down` multiplies the tower's width: the shape alone tells, as in llama.cpp."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    return down is not None and len(down.shape) == 2 and down.shape[1] == keys.n_embd


def _named(info: TensorInfo, swap: bool) -> TensorInfo:
    match = _FFN.match(info.name) if swap else None
    if not match:
        return info
    return replace(info, name=f"{match[1]}{'down' if match[2] == 'up' else 'up'}{match[3]}")


def _shaped(info: TensorInfo, keys: ProjectorKeys, path: Path) -> TensorInfo:
    """Patch kernels as matrices, tables for x and y one below the other."""
    if info.name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        wanted = (keys.n_embd, 3, keys.patch, keys.patch)
        if info.shape != wanted:
            raise AssayError(f"{path}: {info.name}: wrong shape (found {list(info.shape)}, expected {list(wanted)})")
        return replace(info, shape=(keys.n_embd, 3 * keys.patch**2))
    if info.name == "v.position_embd.weight" and len(info.shape) == 3:
        return replace(info, shape=(info.shape[0] * info.shape[1], info.shape[2]))
    return info


def _turned(file: GGUFFile, keys: ProjectorKeys) -> Iterable[tuple[str, NDArray[np.float32]]]:
    """Tensors whose values the graph needs in another order or with another sign."""
    if keys.projector == "gemma3" and "mm.input_projection.weight" in file.tensors:
        matrix = file.decode("mm.input_projection.weight")
        if matrix.ndim == 2:
            yield "mm.input_projection.weight", matrix.T  # stored [in, out]
    if keys.projector == "gemma4v" and "v.std_bias" in file.tensors:
        yield "v.std_bias.negated", -file.decode("v.std_bias")


def _in_memory(file: GGUFFile, tensors: dict[str, NDArray[np.float32]], part: int) -> FilePart:
    """A further part of the file that holds these tensors as float32.

    The memory is a shared mapping: an engine that has copied a matrix tells the system to forget the mapped original,
    and private memory would then be zero.
    """
    little = file.byteorder == "little"
    kind, infos, at = by_name("F32"), [], 0
    data = np.frombuffer(mmap.mmap(-1, sum(-(-4 * t.size // 64) * 64 for t in tensors.values())), np.uint8)
    for name, values in tensors.items():
        size = 4 * values.size
        stored = np.ascontiguousarray(values, "<f4" if little else ">f4")
        data[at : at + size] = stored.reshape(-1).view(np.uint8)
        infos.append(TensorInfo(name, values.shape, kind, at, size, part))
        at += -(-size // 64) * 64
    return FilePart(
        file.path, file.version, file.byteorder, file.alignment, file.metadata, tuple(infos), data
    )  # the last part wins where a name is in two
