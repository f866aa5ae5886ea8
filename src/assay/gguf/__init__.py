"""GGUF files: read and write the header, metadata and tensors; block codecs; quantisation mixes.

A *type* says how the weights of one tensor are stored (`Q4_K`). A *mix* says which type each tensor of a file gets
(`Q4_K_M`: most tensors Q4_K, some Q6_K).

Touch it for a new tensor type (begin with its row in `types`, then its codec in `codecs`), a quantisation mix (`mixes`)
or the format (`reader`, `writer`).
"""

from __future__ import annotations

from assay.gguf.reader import FilePart, GGUFFile, TensorInfo, open_file
from assay.gguf.types import TYPES, GGMLType, Typed, ValueType, by_name
from assay.gguf.writer import Tensor, Writer, write

__all__ = [
    "TYPES",
    "FilePart",
    "GGMLType",
    "GGUFFile",
    "Tensor",
    "TensorInfo",
    "Typed",
    "ValueType",
    "Writer",
    "by_name",
    "open_file",
    "write",
]
