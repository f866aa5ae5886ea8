"""How exactly each architecture agrees with llama.cpp: the figures of docs/reference/models.md.

    python tests/models/measure.py             measures them anew into tests/data/models.json (needs the reference data)
    python tests/models/measure.py FILE …      and these real files, against llama.cpp itself on a copy in float32

Errors are NMSE, sum (x - y)^2 / sum y^2, rounded up to a power of ten. A node is judged on llama.cpp's own values of
what it reads, so errors do not add up; the logits are judged from the tokens alone.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.contract import Chunk
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.gguf.mixes import MIXES
from assay.gguf.requantize import quantize
from assay.models import load
from tests.models import golden, others, recurrent

RECORD = Path(__file__).parents[1] / "data" / "models.json"


def decade(error: float) -> int:
    """The power of ten that is not exceeded."""
    return math.ceil(math.log10(max(error, 1e-16)))


def of_golden(name: str) -> dict[str, int]:
    """Nodes judged, the worst of them, and the logits at all positions."""
    g = golden.golden(name)
    nodes = [node for node in g.values if g.recorded_inputs(node)]
    worst = max(g.error(node, g.on_own_inputs(node)) for node in nodes)
    return {"nodes": len(nodes), "node": decade(worst), "logits": decade(g.result())}


def of_calls(name: str) -> dict[str, int]:
    """The same for a golden model of several calls; its nodes, too, are computed from the tokens alone."""
    calls = recurrent.calls(name)
    errors = calls.errors()
    ends = [name for name in errors if name.startswith(("result_output", "result_embd_pooled"))]
    worst = max([errors[end] for end in ends] + ([calls.long_error()] if "long_rows" in calls.recorded.files else []))
    return {"nodes": len(errors), "node": decade(max(errors.values())), "logits": decade(worst)}


def of_file(path: Path, folder: Path) -> tuple[str, int, int]:
    """Architecture of a real file, the error of the logits over 24 random tokens, and at how many the best agrees."""
    copy = folder / "copy.gguf"
    quantize(open_file(path), copy, MIXES["F32"], allow_requantize=True)
    model = load(open_file(copy))
    ids = np.random.default_rng(0).integers(0, model.hparams.n_vocab, 24).astype(np.int32)
    ours = ReferenceEngine(model, n_pages=1).forward([Chunk(ids, 0, np.zeros(1, np.int32), "all")])[0].logits
    theirs = others.witness(copy, ids, np.arange(24), 256)
    copy.unlink()
    return model.hparams.arch, decade(others.nmse(ours, theirs)), int(np.sum(ours.argmax(1) == theirs.argmax(1)))


def main(files: list[str]) -> None:
    before = json.loads(RECORD.read_text())
    found: dict[str, dict[str, Any]] = {
        name: {"golden": {}, "others": {}, "files": before.get(name, {}).get("files", {})}
        for name in others.ARCHITECTURES
    }
    for name in golden.NAMES:
        found[golden.golden(name).model.hparams.arch]["golden"][name] = of_golden(name)
    for name in recurrent.NAMES:
        found[recurrent.calls(name).model.hparams.arch]["golden"][name] = of_calls(name)
    recorded = np.load(others.GOLDEN)
    with tempfile.TemporaryDirectory() as folder:
        for name in others.WITNESSED:
            case = others.make(name, Path(folder) / "model.gguf")
            error = others.nmse(others.ours(Path(folder) / "model.gguf", case), recorded[name])
            found[case.row.name]["others"][name] = decade(error)
        for file in files:
            arch, error, best = of_file(Path(file), Path(folder))
            found[arch]["files"][Path(file).stem] = {"logits": error, "best": best}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
