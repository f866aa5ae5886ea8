"""A fault of another package: a row and an edit in one file, registered and then named by a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import open_file
from assay.graph import Node
from assay.models import load
from assay.verify.diagnosis.diagnose_dump import diagnose
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.faults import (
    FAULTS,
    Change,
    Context,
    Fault,
    FaultKind,
    Stage,
    Variant,
    planted,
    register_fault,
    selector,
)
from tests import tiny

TOKENS = (1, 5, 9, 7, 3, 2)


def cubed(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda gate, up: gate**3 * up)


ROW = Fault(
    id="example-cubed-gate",
    stage=Stage.FFN,
    wrong="gate^3 * up",
    right="silu(gate) * up",
    kinds=(FaultKind.COMPUTATION,),
    variants=(Variant("the gate cubed", cubed, where=selector(op="glu", roles="ffn_swiglu")),),
)


@pytest.fixture
def registered() -> Iterator[Fault]:
    register_fault(ROW)
    yield ROW
    del FAULTS[ROW.id]


def test_a_registered_fault_is_named(registered: Fault, tmp_path: Path) -> None:
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf", type="Q8_0")))
    made = planted(Context(model, (6,)), registered.variants[0])
    assert made.touched == {"ffn_swiglu-0", "ffn_swiglu-1"}
    weights, names = Weights(model.file), [n.name for n in model.graph if not n.name.startswith("cache")]
    values = interpret(made.graph, weights, inputs_of(TOKENS, range(6)), names, functions=made.functions)
    seen = tuple(Observation(n, "values", v.astype(np.float32), shape=v.shape, foreign=n) for n, v in values.items())
    found = diagnose(model, Dump("planted", TOKENS, tuple(range(6)), (6,), seen, "planted"), weights=weights)
    assert [cause.fault for cause in found.causes] == [ROW.id]


def test_an_id_is_registered_once(registered: Fault) -> None:
    with pytest.raises(AssayError, match="fault example-cubed-gate: is in the catalogue already"):
        register_fault(ROW)


def test_a_row_without_an_edit_is_refused() -> None:
    with pytest.raises(AssayError, match="has no variants"):
        register_fault(Fault("example-empty", Stage.FFN, "wrong", "right", (FaultKind.COMPUTATION,)))
    assert "example-empty" not in FAULTS
