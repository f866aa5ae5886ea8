"""Notes about defects of a file that can still be used: tokenizer metadata, and NaN or infinite scales.

A note is one line, `object: problem; consequence`. Notes need only the file. `assay.models` checks whether its tensors
form a model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from assay.gguf.reader import GGUFFile, TensorInfo
from assay.gguf.types import GGMLType

_F16 = ("<u2", 0x7C00)
_BF16 = ("<u2", 0x7F80)
_F32 = ("<u4", 0x7F800000)
_F64 = ("<u8", 0x7FF << 52)

Word = tuple[str, int]
SCALES: dict[str, tuple[Word, tuple[int, ...]]] = {
    # type: (word and its exponent bits, byte offsets in a block of what multiplies or shifts every element)
    "F32": (_F32, (0,)),
    "F64": (_F64, (0,)),
    "F16": (_F16, (0,)),
    "BF16": (_BF16, (0,)),
    "Q1_0": (_F16, (0,)),
    "Q2_0": (_F16, (0,)),
    "Q4_0": (_F16, (0,)),
    "Q4_1": (_F16, (0, 2)),
    "Q5_0": (_F16, (0,)),
    "Q5_1": (_F16, (0, 2)),
    "Q8_0": (_F16, (0,)),
    "Q8_1": (_F16, (0,)),
    "Q2_K": (_F16, (80, 82)),
    "Q3_K": (_F16, (108,)),
    "Q4_K": (_F16, (0, 2)),
    "Q5_K": (_F16, (0, 2)),
    "Q6_K": (_F16, (208,)),
    "Q8_K": (_F32, (0,)),
    "IQ1_S": (_F16, (0,)),
    "IQ1_M": (("<u4", 0x7000_C000), (52,)),  # the bits of the half are spread over the top nibbles of the words
    "IQ2_XXS": (_F16, (0,)),
    "IQ2_XS": (_F16, (0,)),
    "IQ2_S": (_F16, (0,)),
    "IQ3_XXS": (_F16, (0,)),
    "IQ3_S": (_F16, (0,)),
    "IQ4_NL": (_F16, (0,)),
    "IQ4_XS": (_F16, (0,)),
    "TQ1_0": (_F16, (52,)),
    "TQ2_0": (_F16, (64,)),
}
"""Types that are missing here have no scale that can be NaN or infinite."""

_CHUNK = 1 << 16  # blocks per pass: bounds the memory


def bad_blocks(type_: GGMLType, raw: npt.NDArray[np.uint8]) -> int:
    """The number of blocks with a NaN or infinite scale; for F32, F16 and similar types, of such elements."""
    if type_.name not in SCALES:
        return 0
    (word, exponent), offsets = SCALES[type_.name]
    width = int(word[2])
    blocks = raw.reshape(-1, type_.type_size)
    bad = 0
    for first in range(0, len(blocks), _CHUNK):
        chunk = blocks[first : first + _CHUNK]
        hit = np.zeros(len(chunk), np.bool_)
        for at in offsets:
            bits = np.ascontiguousarray(chunk[:, at : at + width]).view(word)[:, 0]
            hit |= bits & np.array(exponent, word) == exponent
        bad += int(np.count_nonzero(hit))
    return bad


def scale_notes(file: GGUFFile) -> Iterator[str]:
    """A note per tensor with NaN or infinite scales. Reads every tensor once."""
    for name, info in file.tensors.items():
        if file.byteorder == "big" and info.type.layout is None:
            yield f"{name}: type {info.type} has no defined big-endian form; it cannot be decoded"
            continue
        bad = bad_blocks(info.type, file.raw(name))
        if bad:
            what = "values are" if info.type.block_size == 1 else f"blocks of {info.type} have scales that are"
            yield f"{name}: {bad} of {_blocks(info)} {what} NaN or infinite; all outputs that use them are invalid"


def _blocks(info: TensorInfo) -> int:
    return info.n_elements // info.type.block_size


def tokenizer_notes(file: GGUFFile) -> Iterator[str]:
    """Notes about the tokenizer metadata."""
    metadata = file.metadata
    key = "tokenizer.ggml.tokens"
    if "tokenizer.ggml.model" not in metadata or key not in metadata:
        yield "tokenizer: missing; the model can only be used with token ids"
        return
    n_vocab = metadata.length(key)
    if n_vocab is None:
        yield f"{key}: is not an array (found {metadata.describe(key)}); text cannot be tokenized"
        return
    if "tokenizer.chat_template" not in metadata:
        yield "tokenizer.chat_template: missing; chat needs --template or --raw"
    if file.get_str("tokenizer.ggml.model") == "gpt2" and "tokenizer.ggml.pre" not in metadata:
        yield "tokenizer.ggml.pre: missing; GPT-2's pre-tokenizer is used, which may be wrong for this model"
    if "tokenizer.ggml.eos_token_id" not in metadata:
        yield "tokenizer.ggml.eos_token_id: missing; generation ends only at the token limit"
    for name in ("bos", "eos", "eot", "unknown", "padding"):
        yield from _id_notes(file, f"tokenizer.ggml.{name}_token_id", n_vocab)
    for name in ("scores", "token_type"):
        length = metadata.length(f"tokenizer.ggml.{name}") if f"tokenizer.ggml.{name}" in metadata else n_vocab
        if length != n_vocab:
            yield f"tokenizer.ggml.{name}: {length} entries for {n_vocab} tokens"
    table = file.tensors.get("token_embd.weight")
    if table is not None and table.shape[0] != n_vocab:
        yield f"token_embd.weight: {table.shape[0]} rows for {n_vocab} tokens"


def _id_notes(file: GGUFFile, key: str, n_vocab: int) -> Iterator[str]:
    if key in file.metadata:
        value = file.metadata[key]
        if not isinstance(value, int) or not 0 <= value < n_vocab:
            yield f"{key}: {value!r:.60} is not in the vocabulary (expected 0 to {n_vocab - 1})"
