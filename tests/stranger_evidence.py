"""What strangers log of a run: whole nodes, some values, statistics by row, tables of all rows, CSV, archives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from tests import planting

Array = np.ndarray[Any, Any]
SHOWN = frozenset(
    {
        "attn_norm", "Qcur", "Kcur", "Vcur", "kqv_out", "attn_out", "ffn_inp", "ffn_norm", "ffn_gate", "ffn_up",
        "ffn_swiglu", "ffn_out", "l_out",
    }
)  # fmt: skip
Show = Callable[[str, Array], dict[str, Any]]


def _rows(case: planting.Case, steps: Sequence[int]) -> Iterator[tuple[int, int, str, int, Array]]:
    """The step, its first token, a node's name, the row in the step, and the row."""
    start = 0
    for i, (n, part) in enumerate(zip(steps, case.parts, strict=True)):
        for name, value in part.items():
            if name.split("-")[0] in SHOWN or name in ("result_norm", "result_output"):
                for t in range(n):
                    yield i, start, name, t, value[t].reshape(-1)
        start += n


def _lines(
    case: planting.Case,
    path: Path,
    tokens: Sequence[int],
    steps: Sequence[int],
    show: Show,
) -> Path:
    out: list[str] = []
    last = -1
    for i, start, name, t, row in _rows(case, steps):
        if i != last:
            ids = [int(x) for x in tokens[start : start + steps[i]]]
            head = {"assay_dump": 1, "engine": "planted", "tokens": ids, "phase": "decode" if i else "prefill"}
            out.append(json.dumps(head))
            last = i
        out.append(json.dumps({"name": name, "row": t, **show(name, row)}))
    (path / "dump.jsonl").write_text("\n".join(out) + "\n")
    return path / "dump.jsonl"


def _statistics(name: str, row: Array) -> dict[str, Any]:
    wide = row.astype(np.float64)
    if name == "result_output":
        return {"first": [float(f"{x:.5f}") for x in row[:10]]}
    return {"rms": float(f"{np.sqrt(np.mean(wide**2)):.6g}")}


def _several(name: str, row: Array) -> dict[str, Any]:
    wide = row.astype(np.float64)
    found = {"rms": np.sqrt(np.mean(wide**2)), "mean": wide.mean(), "min": wide.min(), "max": wide.max()}
    return {k: float(f"{v:.6g}") for k, v in found.items()}


def _ten(name: str, row: Array) -> dict[str, Any]:
    return {"first": [float(f"{x:.6f}") for x in row[:10]]}


def csv(case: planting.Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """A line for each node and position: its first eight values."""
    out = ["call,pos,token,node," + ",".join(f"v{i}" for i in range(8))]
    for i, start, name, t, row in _rows(case, steps):
        values = ",".join(f"{x:.6f}" for x in row[:8])
        out.append(f"{i},{start + t},{int(tokens[start + t])},{name},{values}")
    (path / "dump.csv").write_text("\n".join(out) + "\n")
    return path / "dump.csv"


def npz(case: planting.Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """All calls' rows of the shown nodes."""
    found: dict[str, list[Array]] = {}
    for part in case.parts:
        for name, value in part.items():
            if name.split("-")[0] in SHOWN or name in ("result_norm", "result_output"):
                found.setdefault(name, []).append(value)
    joined: dict[str, Any] = {name: np.concatenate(v) for name, v in found.items()}
    np.savez(path / "dump.npz", tokens=np.array(tokens), **joined)
    return path / "dump.npz"


def log(case: planting.Case, path: Path, tokens: Sequence[int], steps: Sequence[int]) -> Path:
    """What most people print: the norm and the first five values of the last token, ten best logits, of each call."""
    out: list[str] = []
    last = -1
    for i, start, name, t, row in _rows(case, steps):
        if i != last:
            ids = ", ".join(str(int(x)) for x in tokens[start : start + steps[i]])
            out.append(f"decode step {i}, token {ids}" if i else f"prompt tokens: [{ids}]")
            last = i
        if t < steps[i] - 1:
            continue
        if name == "result_output":
            best = np.argsort(-row)[:10]
            out.append("top 10 logits: " + ", ".join(f"{int(k)}:{row[k]:.4f}" for k in best))
        else:
            out.append(f"{name}: norm={np.linalg.norm(row):.5f} [{', '.join(f'{x:.5f}' for x in row[:5])}]")
    (path / "run.log").write_text("\n".join(out) + "\n")
    return path / "run.log"


Writer = Callable[[planting.Case, Path, Sequence[int], Sequence[int]], Path]
STYLES: dict[str, Writer] = {
    "rms": lambda *run: _lines(*run, show=_statistics),
    "stats": lambda *run: _lines(*run, show=_several),
    "ten": lambda *run: _lines(*run, show=_ten),
    "csv": csv,
    "npz": npz,
    "log": log,
}


def evidence(
    case: planting.Case, style: str, model: Model, path: Path, tokens: Sequence[int], steps: Sequence[int]
) -> Dump:
    if style not in STYLES:
        return planting.dump(case, style, model, path, tokens, steps)
    written = STYLES[style](case, path, tokens, steps)
    return load_dump(written, model, tokens=() if style != "npz" else tuple(tokens))
