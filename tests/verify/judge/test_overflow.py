"""The first value that is not finite, in models whose weights are plain floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.engines.reference import ReferenceEngine
from assay.gguf import open_file
from assay.models import load
from assay.verify.dumps.tracing import take_trace
from tests import tiny
from tests.verify.conftest import NODES, TOKENS


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_a_nan_after_a_product_with_float_weights_is_explained(tmp_path: Path, kind: str) -> None:
    """Decoding a float32 tensor gives a read-only view of the file; the explanation must not write to it."""
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf", type=kind)))
    trace = take_trace(ReferenceEngine(model), TOKENS, nodes=NODES)
    values: dict[str, Any] = {"tokens": np.array(TOKENS)} | {o.name: np.array(o.array()) for o in trace.observations}
    values["ffn_out-1"][2, 3] = np.nan
    for name in ("l_out-1", "result_norm", "result_output"):
        values[name][2] = np.nan
    found: Any = assay.diff(str(model.file.path), values)
    assert found.first_wrong == "ffn_out-1"
    assert found.result.broken.node == "ffn_out-1" and not found.result.broken.sure
