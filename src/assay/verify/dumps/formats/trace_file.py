"""Reads the safetensors file that `assay trace` writes: values by node name, with where they come from."""

from __future__ import annotations

import json
from pathlib import Path

from assay.errors import AssayError
from assay.verify.dumps.formats.safetensors import read_safetensors
from assay.verify.dumps.observation import Dump, Observation


def read_trace(path: Path) -> Dump | None:
    """A trace written by `write_trace`, its values read when asked for; None if the file is something else."""
    readers, entries, metadata = read_safetensors(path)
    if "assay_trace" not in metadata:
        return None
    try:
        positions, steps = json.loads(metadata["positions"]), json.loads(metadata["steps"])
        tokens = tuple(int(t) for t in readers["tokens"]())
        names = [name for name in entries if name != "tokens"]
        return Dump(
            engine=metadata["engine"],
            tokens=tokens,
            positions=tuple(map(int, positions)),
            steps=tuple(map(int, steps)),
            observations=tuple(Observation(n, "values", readers[n], shape=entries[n].shape, foreign=n) for n in names),
            source=str(path),
            provenance={k: metadata[k] for k in ("assay", "model", "model_sha256", "precision") if k in metadata},
        )
    except (KeyError, ValueError, TypeError) as error:
        raise AssayError(f"{path}: the trace's metadata are not valid ({error}); trace again") from None
