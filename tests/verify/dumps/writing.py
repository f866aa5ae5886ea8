"""Dumps as people write them: every format, from the values of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.verify.dumps.observation import Dump
from tests.verify.conftest import TOKENS

HEADER = {"assay_dump": 1, "engine": "mine", "tokens": TOKENS}


def lines(path: Path, *items: Any) -> Path:
    path.write_text("".join(json.dumps(i) + "\n" for i in items))
    return path


def arrays(truth: Dump) -> dict[str, np.ndarray]:
    return {o.name: o.array().astype(np.float32) for o in truth.observations}


def as_json(truth: Dump, folder: Path) -> Path:
    values = ({"name": n, "shape": list(v.shape), "values": v.ravel().tolist()} for n, v in arrays(truth).items())
    return lines(folder / "dump.jsonl", HEADER, *values)


def as_raw(truth: Dump, folder: Path) -> Path:
    items = []
    for name, value in arrays(truth).items():
        value.tofile(folder / f"{name}.bin")
        items.append({"name": name, "shape": list(value.shape), "file": f"{name}.bin", "dtype": "f32"})
    return lines(folder / "dump.jsonl", HEADER, *items)


def as_npz(truth: Dump, folder: Path) -> Path:
    np.savez_compressed(folder / "dump.npz", tokens=TOKENS, **arrays(truth))
    return folder / "dump.npz"


def as_folder(truth: Dump, folder: Path) -> Path:
    for name, value in {**arrays(truth), "tokens": np.array(TOKENS)}.items():
        np.save(folder / f"{name}.npy", value)
    return folder


def as_safetensors(truth: Dump, folder: Path) -> Path:
    save = pytest.importorskip("safetensors.numpy").save_file
    save({**arrays(truth), "tokens": np.array(TOKENS)}, folder / "dump.safetensors")
    return folder / "dump.safetensors"
