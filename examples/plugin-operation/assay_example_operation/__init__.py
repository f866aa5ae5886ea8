"""An operation of another package: softsign, y = x / (1 + sharpness * |x|).

`register` is the entry point. assay calls it once, before it builds the first architecture of another package. It adds
the row, the textbook function and the cpu kernel.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import graph
from assay.engines.cpu import foreign_kernels
from assay.engines.reference import functions
from assay.errors import AssayError

Array = NDArray[Any]

ROW = graph.Op(
    name="softsign",
    formula="y = x / (1 + sharpness * |x|)",
    inputs=("x",),
    weights=(),
    attrs={"sharpness": 1.0},
    shape=lambda attrs, inputs, weights: inputs[0],
    traits=graph.Trait.ACTIVATION | graph.Trait.ELEMENTWISE,
)


def softsign(x: Array, *, sharpness: float) -> Array:
    """y = x / (1 + sharpness * |x|)."""
    return np.asarray(x / (1 + x.dtype.type(sharpness) * np.abs(x)))


def compiled_kernel() -> Any:
    """The function of `kernel.c`, compiled now. `-ffp-contract=off` gives the same bits with every compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise AssayError("operation softsign: no C compiler (expected cc, gcc or clang); use --engine reference")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        source = Path(__file__).with_name("kernel.c")
        command = [compiler, "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True, capture_output=True)
        return ctypes.CDLL(str(library)).softsign  # it stays loaded after the folder is removed


def register() -> None:
    graph.register(ROW)
    functions.register(ROW.name, softsign)
    foreign_kernels.register(ROW.name, compiled_kernel())  # last: without it the reference engine still works
