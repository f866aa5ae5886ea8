"""The GGUF file: header, metadata, tensor table, memory map, block codecs."""

from __future__ import annotations

from assay.gguf.reader import GGUFFile, TensorInfo, open_file
from assay.gguf.types import TYPES, GGMLType, Typed, ValueType, by_name

__all__ = ["TYPES", "GGMLType", "GGUFFile", "TensorInfo", "Typed", "ValueType", "by_name", "open_file"]
