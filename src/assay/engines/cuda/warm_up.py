"""The kernels that requests of a server can need, from those of a few programs.

Which kernel computes a product or attention depends on the number of tokens and keys of a step. A server has machine
code for all of these numbers before it serves, so that no stream waits for a compiler. Touch this module when kernels
are chosen by another property of a step.
"""

from __future__ import annotations

from collections.abc import Iterable

from assay.engines.cuda.structs import MODULE_OF, MODULES

PROMPTS = (2, 64)  # tokens of prompts whose programs are looked at, beside the longest step
STREAMS = (1, 2, 16)  # and streams of decode steps
# Modules whose kernels differ in the size of a tile only: a step of another size takes another one.
_BY_SIZE = (
    ("gemm_few", "gemm_many"), ("products_floats", "gemm_floats"), ("experts",), ("gemm_halves",), ("attention_one",),
    ("attention_blocks", "attention_halves"),
)  # fmt: skip
_BESIDE = {module: modules for modules in _BY_SIZE for module in modules}


def of_all_sizes(kernels: Iterable[str]) -> set[str]:
    """These kernels, and those that do the same for other numbers of tokens and keys."""
    found = set(kernels)
    for module in {MODULE_OF[kernel] for kernel in found}:
        found.update(name for beside in _BESIDE.get(module, ()) for name in MODULES[beside])
    tiles = found & MODULES["gemm_tensor"].keys()
    layouts = {_layout(name) for name in tiles}
    return found | {name for name in MODULES["gemm_tensor"] if tiles and _layout(name) in layouts | {""}}


def _layout(kernel: str) -> str:
    """The layout of the weights of a tile of gemm_tensor.cu, which its name ends with; empty if it has all."""
    names = (name.removeprefix("product_one_") for name in MODULES["products"])
    known = {*names, "q4_k", "q5_k", "q6_k"}
    return max((name for name in known if kernel.endswith(f"_{name}")), key=len, default="")
