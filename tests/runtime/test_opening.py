"""Opening a model and an engine: sizes, templates, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.engines.contract import PAGE
from assay.errors import AssayError
from assay.runtime.opening import SHARED_CACHE, OpenOptions, open_model
from assay.runtime.params import DEFAULT_CTX
from tests import tiny


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("opening") / "tiny.gguf", n_ctx=2 * DEFAULT_CTX)


@pytest.mark.parametrize(
    ("options", "n_ctx", "positions"),
    [
        ({}, DEFAULT_CTX, SHARED_CACHE),
        ({"ctx_size": 0}, 2 * DEFAULT_CTX, SHARED_CACHE),
        ({"ctx_size": 100}, 100, SHARED_CACHE),
        ({"ctx_size": 3 * SHARED_CACHE}, 3 * SHARED_CACHE, 3 * SHARED_CACHE),
        ({"ctx_size": 100, "cache_size": 0}, 100, 128),
        ({"ctx_size": 100, "cache_size": 1000}, 100, 1024),
    ],
)
def test_sizes(path: Path, options: dict[str, int], n_ctx: int, positions: int) -> None:
    opened = open_model(path, OpenOptions(**options))
    assert (opened.n_ctx, opened.n_pages * PAGE) == (n_ctx, positions)


def test_the_engine_is_the_one_asked_for(path: Path) -> None:
    engine = open_model(path, OpenOptions(engine="reference", ctx_size=64, cache_size=0)).engine()
    assert (engine.name, engine.n_pages) == ("reference", 2)
    with pytest.raises(AssayError, match="engine abacus: not available here"):
        open_model(path, OpenOptions(engine="abacus")).engine()


def test_refused_before_anything_is_loaded(path: Path, tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="--ctx-size: too large"):
        open_model(path, OpenOptions(ctx_size=1 << 40))
    with pytest.raises(AssayError, match="no such file"):
        open_model(tmp_path / "nothing.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(AssayError):
        open_model(tmp_path / "bad.gguf")


def test_another_template_than_the_files(path: Path) -> None:
    assert open_model(path).template is not None
    assert "im_start" in (open_model(path, OpenOptions(template="chatml")).template or "").source  # type: ignore[union-attr]
    with pytest.raises(AssayError):
        _ = open_model(path, OpenOptions(template="no such template")).template
