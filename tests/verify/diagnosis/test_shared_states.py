"""Recurrent layers that begin with another layer's window or state, planted in the second recurrent engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.load import load_dump
from tests import recurrent_planting as planting
from tests.planting import Case
from tests.second_recurrent import Recurrent

FOLDER = planting.folder()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no golden recurrent models; set ASSAY_SHARED")


class Shared(dict[int, Any]):
    """What layers keep, in one place for all of them."""

    def get(self, layer: int, default: Any = None) -> Any:
        return super().get(0, default)

    def __setitem__(self, layer: int, value: Any) -> None:
        super().__setitem__(0, value)


class Before(dict[int, Any]):
    """What layers keep; a read has the layer before, if that has kept anything."""

    def get(self, layer: int, default: Any = None) -> Any:
        before = max((k for k in self if k < layer), default=layer)
        return super().get(before if layer in self else layer, default)


class Engine(Recurrent):  # type: ignore[misc]
    """The second engine with one of these places for `what`: windows or states."""

    def __init__(self, path: Path, what: str, kind: type[dict[int, Any]]) -> None:
        self.what, self.kind = what, kind
        super().__init__(path)

    def clear(self) -> None:
        super().clear()
        setattr(self, self.what, self.kind())

    def _shown(self, side: str) -> dict[str, Any]:
        return {}  # the states are not dumped


CASES = [
    ("lfm2", "windows", Shared, "all layers share one state"),
    ("mamba2", "windows", Before, "from the second call on each layer begins with the state of the layer before"),
    ("mamba2", "states", Shared, "all layers share one state"),
    ("rwkv7", "states", Shared, "all layers share one state"),
    ("qwen35", "states", Before, "from the second call on each layer begins with the state of the layer before"),
]


@pytest.mark.parametrize("style", ["full", pytest.param("layers", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "what", "kind", "words"), CASES)
def test_another_layers_state_is_named(
    tmp_path: Path, name: str, what: str, kind: type[dict[int, Any]], words: str, style: str
) -> None:
    assert FOLDER is not None
    path = FOLDER / f"{name}.gguf"
    ids = planting.tokens_of(path)
    with np.errstate(all="ignore"):
        parts = Engine(path, what, kind).run(list(ids), planting.STEPS)
    dump = getattr(planting, style)(Case(name, (), tuple(parts)), tmp_path, ids, planting.STEPS)
    model = load(open_file(path))
    found = diagnose(model, load_dump(dump, model))
    assert [c.fault for c in found.causes] == ["cache-layer"] and found.causes[0].how.startswith(words), found
