"""What may be computed once and remembered on disk: a model file's hash, and whatever is keyed by it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from assay.gguf import GGUFFile
from assay.runtime.catalogue import home


def fingerprint(file: GGUFFile) -> str:
    """SHA-256 over all parts of a model file, remembered by path, size and time of change."""
    key = json.dumps([[str(p.path.resolve()), (s := p.path.stat()).st_size, s.st_mtime_ns] for p in file.parts])
    note = home() / "hashes" / hashlib.sha256(key.encode()).hexdigest()
    try:
        return note.read_text()
    except OSError:
        pass
    digest = hashlib.sha256()
    for part in file.parts:
        digest.update(part.data.data)
    remember(note, digest.hexdigest().encode())
    return digest.hexdigest()


def remember(path: Path, content: bytes) -> None:
    """Write a cache entry whole or not at all; a read-only cache is no error."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
