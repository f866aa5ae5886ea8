"""GGUF files: read and write the header, metadata and tensors; block codecs; quantisation mixes.

Touch it for a new tensor type (`codecs`, `types`), a quantisation mix (`mixes`) or the format (`reader`, `writer`).
"""

from __future__ import annotations

from assay.gguf.reader import GGUFFile, TensorInfo, open_file
from assay.gguf.types import TYPES, GGMLType, Typed, ValueType, by_name
from assay.gguf.writer import Tensor, Writer, write

__all__ = [
    "TYPES",
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
