"""Two files of one model: the divergence is what its formula says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from assay.gguf import open_file
from assay.models import load
from tests import tiny


def test_streamed_kl_is_the_kl(tmp_path: Path) -> None:
    from assay.engines.reference import ReferenceEngine
    from assay.verify.conformance.two_files import logits
    from assay.verify.dumps.tracing import take_trace

    models = [load(open_file(tiny.make(tmp_path / f"{k}.gguf", type=k))) for k in ("F32", "Q8_0")]
    ids = [1, *range(30, 60)]
    found = logits(ReferenceEngine(models[0]), ReferenceEngine(models[1]), ids, window=16)
    assert found.n_tokens == 31
    rows = [take_trace(ReferenceEngine(m), ids[:16], nodes="^result_output$").values("result_output") for m in models]
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in rows)  # type: ignore[union-attr, arg-type]
    first = np.sum(p * np.log(p / q), axis=-1)
    second = found.kl_mean * 31 - first.sum()
    assert found.kl_top >= first.max() - 1e-12 and second > 0
