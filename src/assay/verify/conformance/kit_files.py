"""The folder of a conformance kit: numbers in files, where each lies, and the noise that an answer may have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.errors import AssayError
from assay.system.files import new_folder, write
from assay.verify.dumps.observation import token_axis
from assay.verify.judge.arithmetic import ARITHMETICS, UNIT
from assay.verify.judge.noise import NoiseRuns, by_rows
from assay.verify.judge.run_inputs import RunInputs
from assay.verify.judge.shared_pass import Together, sweep
from assay.verify.thresholds import RUN
from assay.version import __version__

Array = NDArray[Any]
Limits = dict[str, float]  # NMSE by arithmetic
NO_LIMIT = 1e30  # NMSE that any value passes


@dataclass
class KitFiles:
    """Collects numbers into one file a section and hands out where they lie."""

    folder: Path
    sizes: dict[str, int] = field(default_factory=dict)

    def put(self, file: str, value: Array) -> dict[str, Any]:
        raw = np.ascontiguousarray(value, value.dtype if value.dtype == np.uint8 else "<f4").tobytes()
        return {**self.put_bytes(file, raw), "shape": list(value.shape)}

    def put_bytes(self, file: str, raw: bytes) -> dict[str, Any]:
        offset = self.sizes.get(file, 0)
        with (self.folder / file).open("ab") as out:
            out.write(raw)
        self.sizes[file] = offset + len(raw)
        return {"file": f"data/{file}", "offset": offset}


def new_kit(out: Path, make: Callable[[KitFiles], Mapping[str, Any]], readme: str) -> dict[str, Any]:
    """Write a kit and return its manifest, which `make` fills. An existing folder is replaced only if it is a kit."""
    if out.exists() and not out.is_dir():
        raise AssayError(f"{out}: is not a folder; name a new one")
    if out.exists() and any(out.iterdir()) and not (out / "manifest.json").exists():
        raise AssayError(f"{out}: a folder with other things in it; name a new one")
    with new_folder(out) as unfinished:
        (unfinished / "data").mkdir()
        manifest = {"assay_kit": 1, "made_by": f"assay {__version__}", **make(KitFiles(unfinished / "data"))}
        written = {"manifest.json": json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "README.md": readme}
        for name, content in written.items():
            write(unfinished / name, content)
    return manifest


def noise_limits(inputs: RunInputs, values: Mapping[str, Array]) -> dict[str, Limits]:
    """NMSE that each arithmetic may reach at each node: RUN times its simulated noise, at the worst token."""
    runs = NoiseRuns(inputs)
    sweep(inputs.model, [Together([runs.visit])], "measuring the noise of arithmetic")
    found: dict[str, Limits] = {}
    for name, value in values.items():
        if value.dtype.kind != "f" or name not in runs.levels:  # states are not judged node by node
            continue
        rows = by_rows(value, token_axis(inputs.model.graph, name))
        rms = np.sqrt(np.mean(np.where(np.isfinite(rows), rows, 0) ** 2, axis=1))  # masked scores do not count
        noise = runs.levels[name].rms  # [arithmetic, token]
        some = rms > 0  # a row before the first is zero in every arithmetic
        share = ((RUN * (noise[:, some] / rms[some] + UNIT["f32"])) ** 2).max(axis=1, initial=UNIT["f32"] ** 2)
        share = np.minimum(share, NO_LIMIT)  # a value that nearly cancels has no bound that JSON can hold
        found[name] = {a.name: float(f"{x:.3g}") for a, x in zip(ARITHMETICS, share, strict=True)}
    return found
