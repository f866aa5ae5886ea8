"""An operation of another package: a row, a textbook function and a C kernel, and no file of assay touched."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from assay.engines.contract import Array, Chunk
from assay.engines.cpu import CpuEngine, foreign_kernels
from assay.engines.reference import ReferenceEngine, functions
from assay.errors import AssayError
from assay.gguf import open_file
from assay.graph import OPS, Graph, GraphError, Node, Op, Trait, register
from assay.models import Model, load
from tests.tiny import make

IDS = np.random.default_rng(4).integers(3, 300, 70).astype(np.int32)
NAME = "leaky_gain"  # y = w * (x > 0 ? x : slope * x) + shift * z
CODE = """
#include <stdint.h>
void leaky_gain(const float* const* in, const float* const* weights, float* out, int64_t rows, const int64_t* widths,
                const double* attrs) {
    const int64_t n = widths[0];  /* widths: x, z, w, out */
    if (widths[1] != n || widths[2] != n || widths[3] != n) return;
    for (int64_t i = 0; i < rows * n; ++i) {
        const float x = in[0][i] > 0 ? in[0][i] : (float)attrs[0] * in[0][i];
        out[i] = weights[0][i % n] * x + (float)attrs[1] * in[1][i];
    }
}
"""


def leaky_gain(x: Array, z: Array, w: Array, *, slope: float, shift: float) -> Array:
    return np.asarray(w * np.where(x > 0, x, slope * x) + shift * z)


ROW = Op(NAME, "y = w * (x > 0 ? x : slope * x) + shift * z", ("x", "z"), ("w",), {"slope": 0.25, "shift": 0.5},
         lambda attrs, ins, weights: ins[0], Trait.ACTIVATION | Trait.ELEMENTWISE)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(make(tmp_path_factory.mktemp("foreign") / "m.gguf", n_embd=64)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) on this machine")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "op.c").write_text(CODE)
    built = folder / "op.so"
    subprocess.run([compiler, "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-o", built, folder / "op.c"], check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture
def operation() -> Iterator[None]:
    """The row and the textbook function, as an outside package adds them."""
    register(ROW)
    functions.register(NAME, leaky_gain)
    yield
    foreign_kernels.unregister(NAME)
    del OPS[NAME], functions.FUNCTIONS[NAME]


def with_operation(model: Model) -> Graph:
    """The new operation behind the norm of every layer, reading the residual too."""

    def change(node: Node) -> list[Node] | None:
        if not node.name.startswith("attn_norm-"):
            return None
        layer = node.name.rsplit("-", 1)[1]
        return [
            Node(f"normed-{layer}", node.op, node.inputs, node.weights, node.attrs),
            Node(node.name, NAME, (f"normed-{layer}", node.inputs[0]), node.weights, {"slope": 0.125}),
        ]

    return model.graph.rewrite(change).check()


@pytest.mark.usefixtures("operation")
def test_a_foreign_operation_runs_on_both_engines(model: Model, library: ctypes.CDLL) -> None:
    foreign_kernels.register(NAME, library.leaky_gain)
    graph = with_operation(model)
    chunk = [Chunk(IDS, 0, np.arange(3, dtype=np.int32), "all")]
    keep = ["attn_norm-0", "attn_norm-1"]
    wanted = ReferenceEngine(model, graph=graph).forward(chunk, keep)[0]
    plain = ReferenceEngine(model).forward(chunk)[0]
    assert np.abs(wanted.logits - plain.logits).max() > 1e-2  # it matters
    found = {}
    for threads in (1, 2):
        engine = CpuEngine(model, graph=graph, precision="exact", threads=threads, n_pages=4)
        found[threads] = engine.forward(chunk, keep)[0]
        assert np.allclose(found[threads].logits, wanted.logits, rtol=1e-4, atol=1e-4)
        for name in keep:
            assert np.allclose(found[threads].nodes[name], wanted.nodes[name], rtol=1e-4, atol=1e-4)
    assert np.array_equal(found[1].logits, found[2].logits)


@pytest.mark.usefixtures("operation")
def test_an_engine_without_a_kernel_says_so(model: Model) -> None:
    engine = CpuEngine(model, graph=with_operation(model), threads=1, n_pages=4)
    with pytest.raises(AssayError, match="the cpu engine does not know the operation leaky_gain"):
        engine.forward([Chunk(IDS, 0, np.arange(3, dtype=np.int32))])


def test_what_cannot_be_registered(model: Model, library: ctypes.CDLL) -> None:
    with pytest.raises(GraphError, match="unknown operation 'leaky_gain'"):
        with_operation(model)
    with pytest.raises(ValueError, match="not in the table"):
        foreign_kernels.register(NAME, library.leaky_gain)
    with pytest.raises(ValueError, match="operation linear: the name is taken"):
        register(Op("linear", "", (), (), {}, ROW.shape))
    with pytest.raises(ValueError, match="has a function already"):
        functions.register("linear", leaky_gain)
    with pytest.raises(ValueError, match="go together"):
        register(Op(NAME, "", (), (), {}, ROW.shape, Trait.STATE))
    with pytest.raises(ValueError, match="its rows depend on other rows"):
        foreign_kernels.register("pool", library.leaky_gain)
