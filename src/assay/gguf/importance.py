"""Importance matrices: for every weight matrix, how large its inputs are on a text, column by column.

Both of llama.cpp's formats are read and written. The GGUF form holds `NAME.in_sum2` (sums of squared inputs) and
`NAME.counts` (how many tokens went into them); the older one (`.dat`) is a list of name, number of calls and values.
A stack of experts has a row and a count per expert. For the key and value matrices, assay's GGUF form also has
`NAME.in_sum2_seen`: the sums with each token weighted by the attention it receives. llama.cpp ignores it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.gguf.reader import MAGIC, open_file
from assay.gguf.types import by_name
from assay.gguf.writer import Tensor
from assay.gguf.writer import write as write_gguf
from assay.system.file_kinds import HEAD, unlike_text
from assay.system.files import write as write_whole

SUMS, COUNTS, SEEN = ".in_sum2", ".counts", ".in_sum2_seen"
MOST = 1 << 30  # largest file in bytes


@dataclass(frozen=True)
class ImportanceEntry:
    """The importance of one matrix (`[1, n]`, `[1]`) or of a stack of experts (`[n_expert, n]`, `[n_expert]`)."""

    sums: NDArray[np.float32]
    counts: NDArray[np.float32]
    seen: NDArray[np.float32] | None = None

    @property
    def means(self) -> NDArray[np.float32]:
        """Mean squares per column. An expert that was never called has ones."""
        return self._over(self.sums)

    @property
    def weights(self) -> NDArray[np.float32]:
        """Weights of the columns for squared errors: means weighted by attention if known, else plain means."""
        return self._over(self.sums if self.seen is None else self.seen)

    def _over(self, sums: NDArray[np.float32]) -> NDArray[np.float32]:
        called = self.counts[:, None] > 0
        return np.where(called, sums / np.maximum(self.counts[:, None], 1), np.float32(1))


@dataclass(frozen=True)
class Importance:
    entries: Mapping[str, ImportanceEntry]
    chunks: int = 0
    chunk_size: int = 0
    datasets: tuple[str, ...] = field(default=())

    def of(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
        """Weights `[m, n]` for the columns of each of a tensor's m matrices; None if the tensor is unknown."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        means, n_matrix = entry.weights, shape[0] if len(shape) == 3 else 1
        if means.size == n_matrix * shape[-1]:
            means = means.reshape(n_matrix, shape[-1])
        elif means.shape == (1, shape[-1]):
            means = np.repeat(means, n_matrix, axis=0)
        else:
            raise AssayError(
                f"{name}: importance for {list(means.shape)}, the tensor is {list(shape)}; it belongs to another model"
            )
        if not np.isfinite(means).all() or (means < 0).any():
            raise AssayError(f"{name}: importance that is negative or not finite; compute the matrix again")
        return means


def read(path: str | Path) -> Importance:
    """A file in either format."""
    path = Path(path)
    with path.open("rb") as file:
        size = path.stat().st_size
        if size > MOST:
            raise AssayError(f"{path}: {size >> 20} MiB of importance (expected at most {MOST >> 20})")
        head = file.read(4)
        if head != MAGIC:
            if found := unlike_text(head + file.read(HEAD)):
                raise AssayError(f"{path}: is {found} (expected an importance matrix); make one with `assay imatrix`")
            file.seek(len(head))
            return _read_legacy(path, head + file.read())
    with open_file(path) as gguf:
        entries = {}
        for name, info in gguf.tensors.items():
            if not name.endswith(SUMS):
                continue
            base = name.removesuffix(SUMS)
            counts = gguf.tensors.get(base + COUNTS)
            if counts is None or {info.type.name, counts.type.name} != {"F32"} or info.n_elements % counts.n_elements:
                raise AssayError(f"{path}: {base}: the shapes of sums and counts do not match")
            seen = gguf.tensors.get(base + SEEN, info)
            if seen.type.name != "F32" or seen.n_elements != info.n_elements:
                raise AssayError(f"{path}: {base}: the shapes of its two sums do not match")
            count = gguf.decode(base + COUNTS).reshape(-1)
            values = [gguf.decode(n).reshape(len(count), -1).copy() for n in (name, base + SEEN) if n in gguf.tensors]
            entries[base] = ImportanceEntry(values[0], count.copy(), *values[1:])
        if not entries:
            raise AssayError(f"{path}: holds no importance (no tensor ends in {SUMS}); make one with `assay imatrix`")
        key = "imatrix.datasets"
        names = tuple(map(str, gguf.get_array(key, kind=str))) if key in gguf.metadata else ()
        return Importance(entries, gguf.get_int("imatrix.chunk_count", 0), gguf.get_int("imatrix.chunk_size", 0), names)


def _read_legacy(path: Path, data: bytes) -> Importance:
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        if n < 0 or at + n > len(data):
            raise AssayError(f"{path}: not an importance matrix, or cut short (at byte {at} of {len(data)})")
        at += n
        return data[at - n : at]

    def number() -> int:
        return int(struct.unpack("<i", take(4))[0])

    n_entries = number()
    if n_entries < 1:
        raise AssayError(f"{path}: not an importance matrix (found {n_entries} entries)")
    entries = {}
    for _ in range(n_entries):
        name = take(number()).decode("utf-8", "replace")
        calls, n = number(), number()
        sums = np.frombuffer(take(4 * n), "<f4").astype(np.float32)
        if not n:
            raise AssayError(f"{path}: {name}: no values")
        entries[name] = ImportanceEntry(sums.reshape(1, -1), np.array([max(calls, 1)], np.float32))
    chunks = number() if at < len(data) else 0
    dataset = take(number()).decode("utf-8", "replace") if at < len(data) else ""
    return Importance(entries, chunks, 0, (dataset,) if dataset else ())


def write(path: str | Path, found: Importance) -> None:
    """Write GGUF, or the older format if the name ends in .dat."""
    if str(path).endswith(".dat"):
        write_whole(path, _legacy(found))
        return
    f32 = by_name("F32")
    tensors = [
        Tensor(name + suffix, values.shape, f32, values)
        for name, entry in sorted(found.entries.items())
        for suffix, values in ((SUMS, entry.sums), (COUNTS, entry.counts[:, None]), (SEEN, entry.seen))
        if values is not None
    ]
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": list(found.datasets) or [""],
        "imatrix.chunk_count": found.chunks,
        "imatrix.chunk_size": found.chunk_size,
    }
    write_gguf(path, metadata, tensors)


def _legacy(found: Importance) -> bytes:
    """The older format. Sums are scaled by the number of calls, because its readers divide by that."""
    out = bytearray(struct.pack("<i", len(found.entries)))
    for name, entry in sorted(found.entries.items()):
        calls = max(1, -(-int(entry.counts.max()) // max(found.chunk_size, 1)))
        raw = name.encode()
        out += struct.pack(f"<i{len(raw)}sii", len(raw), raw, calls, entry.sums.size)
        out += (entry.means * np.float32(calls)).astype("<f4").tobytes()
    dataset = (found.datasets[-1] if found.datasets else "").encode()
    return bytes(out + struct.pack(f"<ii{len(dataset)}s", found.chunks, len(dataset), dataset))
