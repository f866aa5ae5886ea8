"""The interface between the compiler and the kernels: one description, its header, and the compiled kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from assay.engines.cuda import sources
from assay.engines.cuda.abi import arguments, enumerations, header, shared_memory
from assay.engines.cuda.kernel_table import KERNELS
from tests.engines.on_cuda import device


def test_the_committed_header_is_what_the_tables_give() -> None:
    found = (sources.folder() / "abi.h").read_text("utf-8")
    assert found == header.text(), "native/cuda/abi.h is out of date; run python -m assay.engines.cuda.abi"


@pytest.fixture(scope="module")
def library() -> Any:
    shim = device()
    if not hasattr(shim, "library"):
        pytest.skip("these are compiled kernels on the host: no shim here")
    yield shim.library
    shim.close()


def test_ctypes_and_the_compiler_lay_structs_out_alike(library: Any) -> None:
    library.shim_abi.restype = ctypes.c_char_p
    lines = [line.split(" ") for line in library.shim_abi().decode().splitlines()]
    found = {name: int(number) for name, number in lines}
    expected: dict[str, int] = {}
    for struct in arguments.STRUCTS:
        if not struct.union:
            made: Any = arguments.CLASSES[struct.name]
            expected[struct.name] = ctypes.sizeof(made)
            for name, member in header.members(struct):
                expected[f"{struct.name}.{member}"] = getattr(made, name).offset
    assert found == expected
    assert len(found) > 200


def test_each_kernel_has_the_arguments_and_threads_of_the_table(library: Any) -> None:
    for name, (kind, threads) in KERNELS.items():
        assert getattr(library, f"shim_args_{name}")() == ctypes.sizeof(kind), name
        bound = 512 if name.startswith("turns_64_") else threads  # it is launched with 384, for its registers
        assert getattr(library, f"shim_threads_{name}")() == bound, name


def test_no_enumerator_has_two_meanings() -> None:
    """In C++ they share one namespace."""
    names = [member.name for kind in enumerations.ENUMS for member in kind]
    assert len(names) == len(set(names))
    assert {row.format for row in enumerations.FORMAT_ROWS} == set(enumerations.WeightFormat)


@pytest.mark.parametrize("formula", shared_memory.FORMULAS, ids=lambda formula: formula.name)
def test_python_and_the_header_compute_the_same_bytes(formula: shared_memory.Formula) -> None:
    """The header's expression, read back as Python, at a few shapes."""
    text = header.text()
    begin = text.index("{", text.index(f"constexpr int {formula.name}("))
    expression = text[begin:].split("return ")[1].split(";")[0].replace("/", "//").replace("max_of(", "max(")
    expression = expression.replace("int(sizeof(WalkStep))", str(ctypes.sizeof(arguments.WalkStep)))
    names: dict[str, Any] = {enumerations.cpp_name(n): value for n, (value, _) in enumerations.CONSTANTS.items()}
    names |= {f.name: getattr(shared_memory, f.name) for f in shared_memory.FORMULAS}
    for shape in (1, 8, 64, 100, 256):
        values = {name: shape + 8 * i for i, name in enumerate(formula.parameters)}
        assert eval(expression, {**names, **values}) == getattr(shared_memory, formula.name)(**values)
