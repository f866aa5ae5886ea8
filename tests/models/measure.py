"""How exactly each architecture agrees with llama.cpp: the figures of docs/models.md.

    python tests/models/measure.py        measures them anew into tests/data/models.json (needs the reference data)

Errors are NMSE, sum (x - y)^2 / sum y^2, rounded up to a power of ten. A node is judged on llama.cpp's own values of
what it reads, so errors do not add up; the logits are judged from the tokens alone.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from assay.engines.base import Chunk
from assay.engines.reference import ReferenceEngine
from tests.models import golden, others

RECORD = Path(__file__).parents[1] / "data" / "models.json"


def decade(error: float) -> int:
    """The power of ten that is not exceeded."""
    return math.ceil(math.log10(max(error, 1e-16)))


def of_golden(name: str) -> dict[str, int]:
    """Nodes judged, the worst of them, and the logits at all positions."""
    g = golden.golden(name)
    nodes = [node for node in g.values if g.recorded_inputs(node)]
    worst = max(g.error(node, g.on_own_inputs(node)) for node in nodes)
    chunk = Chunk(g.tokens, 0, np.zeros(1, np.int32), "all", g.positions)
    logits = ReferenceEngine(g.model, n_pages=1).forward([chunk])[0].logits
    return {"nodes": len(nodes), "node": decade(worst), "logits": decade(g.error(g.model.graph.output, logits))}


def main() -> None:
    found: dict[str, dict[str, Any]] = {name: {"golden": {}, "others": {}} for name in others.ARCHITECTURES}
    for name in golden.NAMES:
        found[golden.golden(name).model.hparams.arch]["golden"][name] = of_golden(name)
    recorded = np.load(others.GOLDEN)
    with tempfile.TemporaryDirectory() as folder:
        for name in others.CASES:
            case = others.make(name, Path(folder) / "model.gguf")
            error = others.nmse(others.ours(Path(folder) / "model.gguf", case), recorded[name])
            found[case.row.name]["others"][name] = decade(error)
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
