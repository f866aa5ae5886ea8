"""An engine that is right in prefill and wrong in decode does not pass."""

from __future__ import annotations

import numpy as np

from assay.models import Model
from tests.verify.conftest import TOKENS


def test_check_finds_a_cache_fault(model: Model) -> None:
    """An engine that is right in prefill and forgets a position when it decodes."""
    from assay.engines.contract import Chunk
    from assay.engines.reference import ReferenceEngine
    from assay.verify.conformance.engine_check import check_engine

    class Forgetful(ReferenceEngine):
        def _chunk(self, i: int, chunk: Chunk, *rest):  # type: ignore[no-untyped-def]
            if chunk.start:
                for name in self._pools:
                    self._pools[name][chunk.start - 1] = 0
            return super()._chunk(i, chunk, *rest)

    checks = {c.name: c for c in check_engine(lambda: Forgetful(model, np.float32), model, TOKENS, (6,))}
    assert checks["6 tokens, prefill"].passed
    stepped = checks["6 tokens, the last 4 through the cache"]
    assert not stepped.passed and stepped.diff is not None and stepped.diff.first_wrong is not None
    assert stepped.diff.first_wrong.name == "cache_k_l0" and stepped.diff.first_wrong.own
    assert not checks["6 tokens, decode against prefill"].passed
