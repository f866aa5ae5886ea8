"""While many small products are made, NumPy uses one thread; afterwards as many as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.engines.reference import blas
from assay.gguf import open_file
from assay.models import load
from tests import tiny


def test_one_thread_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = blas._openblas()
    if found is None:
        pytest.skip("NumPy was not built with OpenBLAS")
    graph = load(open_file(tiny.make(tmp_path / "tiny.gguf"))).graph
    before = found[0]()
    with pytest.raises(KeyError), blas.one_thread(graph):
        assert found[0]() == 1
        raise KeyError
    assert found[0]() == before
    monkeypatch.setattr(blas, "SMALL", 1)
    with blas.one_thread(graph):
        assert found[0]() == before
