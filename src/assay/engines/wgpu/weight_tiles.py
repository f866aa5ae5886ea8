"""Weights as the kernels read them: the format of each GGUF type, and packing rows into tiles.

    item    256 neighbouring columns of a row (a *unit*): chunks of 16 bytes, codes first, then scales
    tile    32 rows: of each unit, chunk by chunk, the 32 rows side by side, so that neighbouring invocations read
            neighbouring chunks

The last tile is padded with zeros. Q4_0, Q4_1, Q4_K, Q8_0 and IQ4_NL keep the size that they have in the file; Q6_K
grows by a fifteenth. Types without a format of their own are expanded to a byte a weight. Touch this module when a type
gets a format of its own.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.gguf import GGUFFile

ROWS, UNIT, CHUNK = 32, 256, 16  # rows of a tile, columns of a unit, bytes of a chunk
_AT_ONCE = 16  # tiles that a thread packs at a time
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled, so that they are integers


@dataclass(frozen=True)
class TileFormat:
    """How a weight lies in its item: words of the kernels' variants."""

    weights: str = "blocks"  # or f32, f16, bf16
    codes: str = ""  # bytes, nibbles, centred, book, six
    scales: str = ""  # halves, floats, sixteenths, super, signed
    minima: bool = False
    centred: bool = False  # products subtract 16 from the codes
    book: tuple[int, ...] = ()

    @property
    def floats(self) -> bool:
        """Whether products read activations as floats."""
        return self.weights != "blocks"

    @property
    def words(self) -> frozenset[str]:
        """The words of kernels that read this format."""
        if self.floats:
            return frozenset({f"weights={self.weights}"})
        found = {"weights=blocks", f"codes={self.codes}", f"scales={self.scales}", "minima" if self.minima else "plain"}
        found.add("sixteenths" if self.scales in ("sixteenths", "signed") else "whole")
        return frozenset(found | ({"centred"} if self.centred else set()))

    @property
    def book_words(self) -> dict[str, int]:
        """The book of codes as numbers of a kernel."""
        words = np.array(self.book or (0,) * 16, np.int8).view(np.uint32).tolist()
        return {f"book{i}": int(word) for i, word in enumerate(words)}

    @property
    def chunks(self) -> int:
        """Chunks of an item."""
        if self.floats:
            return 64 if self.weights == "f32" else 32
        scales = {"halves": 1, "super": 1, "floats": 2, "signed": 2, "sixteenths": 4}[self.scales]
        return {"bytes": 16, "six": 12}.get(self.codes, 8) + scales * (
            2 if self.minima and self.scales != "super" else 1
        )


_FORMATS = {
    "F32": TileFormat("f32"),
    "F16": TileFormat("f16"),
    "BF16": TileFormat("bf16"),
    "Q8_K": TileFormat("f32"),
    "Q4_0": TileFormat(codes="centred", scales="halves"),
    "Q4_1": TileFormat(codes="nibbles", scales="halves", minima=True),
    "Q5_0": TileFormat(codes="bytes", scales="halves"),
    "Q5_1": TileFormat(codes="bytes", scales="halves", minima=True, centred=True),
    "Q8_0": TileFormat(codes="bytes", scales="halves"),
    "Q4_K": TileFormat(codes="nibbles", scales="super", minima=True),
    "Q5_K": TileFormat(codes="bytes", scales="floats", minima=True, centred=True),
    "Q6_K": TileFormat(codes="six", scales="signed"),
    "Q2_K": TileFormat(codes="bytes", scales="sixteenths", minima=True),
    "IQ4_NL": TileFormat(codes="book", scales="halves", book=_IQ4),
    "IQ4_XS": TileFormat(codes="book", scales="floats", book=_IQ4),
    "MXFP4": TileFormat(codes="book", scales="floats", book=_MXFP4),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q1_0", "Q2_0"), TileFormat(codes="bytes", scales="floats")),
}
_OTHERS = TileFormat(codes="bytes", scales="sixteenths")


def tile_format(file: GGUFFile, name: str, exact: bool) -> TileFormat:
    """The format of a tensor; `exact` keeps quantised weights as floats."""
    kind = file.tensors[name].type
    found = _FORMATS.get(kind.name, _OTHERS if _native.supported(kind.id) else _FORMATS["F32"])
    return found if found.floats or not exact else _FORMATS["F32"]


def units_of(columns: int) -> int:
    """Units of a row; the last one may be shorter."""
    return -(-columns // UNIT)


def tiles_of(rows: int) -> int:
    """Tiles of a matrix; the last one may have fewer rows."""
    return -(-rows // ROWS)


def pack(file: GGUFFile, name: str, form: TileFormat) -> NDArray[np.uint8]:
    """A tensor in tiles: [matrices, tiles, bytes of a tile]."""
    info = file.tensors[name]
    count, rows, columns = (*(1,) * (3 - len(info.shape)), *info.shape)
    if form.floats and info.type.name != form.weights.upper():
        raw = np.ascontiguousarray(file.decode(name), np.float32).view(np.uint8)
    else:
        raw = file.raw(name)
    each = raw.reshape(count, rows, -1)
    tiles, units = tiles_of(rows), units_of(columns)
    out = np.empty((count, tiles, units * form.chunks * CHUNK * ROWS), np.uint8)

    def part(i: int, first: int) -> None:
        some = np.ascontiguousarray(each[i, first * ROWS : (first + _AT_ONCE) * ROWS])
        out[i, first : first + _AT_ONCE] = _pack(some, info.type.id, columns, form)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # NumPy releases the lock
        for done in [pool.submit(part, i, first) for i in range(count) for first in range(0, tiles, _AT_ONCE)]:
            done.result()
    return out


def _pack(raw: NDArray[np.uint8], kind: int, columns: int, form: TileFormat) -> NDArray[np.uint8]:
    rows, units = len(raw), units_of(columns)
    if form.floats:
        parts = [_padded(raw, units * UNIT * (4 if form.weights == "f32" else 2)).reshape(rows, units, -1)]
    else:
        parts = _blocks(raw, kind, columns, units, form)
    items: NDArray[np.uint8] = np.zeros((tiles_of(rows) * ROWS, units, form.chunks * CHUNK), np.uint8)
    np.concatenate(parts, axis=2, out=items[:rows])
    chunks = items.view(f"V{CHUNK}").reshape(-1, ROWS, units, form.chunks)
    return np.ascontiguousarray(chunks.transpose(0, 2, 3, 1)).view(np.uint8).reshape(len(chunks), -1)


def _blocks(raw: NDArray[np.uint8], kind: int, columns: int, units: int, form: TileFormat) -> list[NDArray[np.uint8]]:
    """Codes and scales of a quantised type, each [rows, units, bytes]."""
    rows = len(raw)
    q, d, m = _native.unpack(raw, kind, columns)
    codes = _padded(q.view(np.uint8), units * UNIT).reshape(rows, units, 8, 2, 16)
    if form.codes != "bytes":
        if form.codes == "centred":
            codes = (codes + np.uint8(8)) & np.uint8(15)
        elif form.book:
            index: NDArray[np.uint8] = np.zeros(256, np.uint8)
            index[np.array(form.book, np.int8).view(np.uint8)] = np.arange(16)
            codes = index[codes]
        elif form.codes == "six":
            codes = codes + np.uint8(32)
            top = (codes >> np.uint8(4)).reshape(rows, units, 8, 2, 4, 4)  # two bits of byte j of word i
            places = np.left_shift(top, np.arange(0, 8, 2, dtype=np.uint8)[:, None])
            high = np.bitwise_or.reduce(places, axis=4).reshape(rows, units, -1)
            codes = codes & np.uint8(15)
        codes = codes[:, :, :, 0] | np.left_shift(codes[:, :, :, 1], np.uint8(4))
    if form.codes == "six":  # scales as they are in the file
        own = raw.reshape(rows, units, -1)
        pad = np.zeros((rows, units, CHUNK - 2), np.uint8)
        return [codes.reshape(rows, units, -1), high, own[:, :, 192:208], own[:, :, 208:210], pad]
    if form.scales == "super":  # scales and minima as they are in the file
        scales = raw.reshape(rows, units, -1)[:, :, :CHUNK]
    else:
        scaled = [d, m] if form.minima else [d]
        if form.scales != "sixteenths":
            scaled = [array[:, ::2] for array in scaled]
        kinds = np.float16 if form.scales == "halves" else np.float32
        wide = units * (16 if form.scales == "sixteenths" else 8) * np.dtype(kinds).itemsize
        parts = [_padded(np.ascontiguousarray(array, kinds).view(np.uint8), wide) for array in scaled]
        scales = np.concatenate([part.reshape(rows, units, -1) for part in parts], axis=2)
    return [codes.reshape(rows, units, -1), scales]


def _padded(array: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    return np.pad(array, ((0, 0), (0, width - array.shape[1]))) if width > array.shape[1] else array
