"""Reads what `llama-debug --save-logits` writes: the last token's logits and the token ids, as raw numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from assay.errors import AssayError
from assay.verify.dumps.formats.field_checks import MAX_TOKENS
from assay.verify.dumps.formats.numpy_files import read_raw
from assay.verify.dumps.observation import Dump, Observation

_IDS = "-tokens.bin"


def saved_logits(path: Path) -> Path | None:
    """The file of logits, for itself or for a folder that holds one; None if the path is something else."""
    if path.is_dir():
        found = [file for file in sorted(path.glob(f"llamacpp-*{_IDS}"))[:9] if _logits(file).is_file()]
        return _logits(found[0]) if len(found) == 1 else None
    ids = path.with_name(path.stem + _IDS)
    return path if path.suffix == ".bin" and path.name.startswith("llamacpp-") and ids.is_file() else None


def _logits(ids: Path) -> Path:
    return ids.with_name(ids.name.removesuffix(_IDS) + ".bin")


def read_saved_logits(path: Path) -> Dump:
    """The logits of the last token."""
    file = saved_logits(path)
    assert file is not None
    ids = file.with_name(file.stem + _IDS)
    sizes = file.stat().st_size, ids.stat().st_size
    if any(size % 4 or not size for size in sizes) or sizes[1] > 4 * MAX_TOKENS:
        raise AssayError(f"{file}: {sizes[0]} bytes of logits, {sizes[1]} of token ids; the files are truncated")
    tokens = tuple(int(t) for t in read_raw(str(ids), ids, 0, sizes[1] // 4, "<i4"))
    n, count = len(tokens), sizes[0] // 4
    read = partial(read_raw, str(file), file, 0, count, "<f4")
    seen = Observation("result_output", "values", read, rows=(n - 1, n), shape=(count,), foreign=file.name,
                       where=file.name)  # fmt: skip
    return Dump("llama.cpp", tokens, tuple(range(n)), (n,), (seen,), str(path))
