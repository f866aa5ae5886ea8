"""What NVRTC makes of products that go on behind the warps' back: the host's compiler cannot show it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.engines.cuda import sources

_REGISTERS = re.compile(r"%f\d+")


def too_early(ptx: str) -> list[str]:
    """Instructions that use the sums of products between these and the wait for all of them, as they are written."""
    found: list[str] = []
    sums: set[str] = set()
    for line in ptx.splitlines():
        if "wgmma.mma_async" in line:
            sums |= set(_REGISTERS.findall(line[: line.index("}")]))
        elif "wgmma.wait_group.sync.aligned 0" in line or line.startswith(".visible"):
            sums.clear()
        elif sums & set(_REGISTERS.findall(line)):
            found.append(line.strip())
    return found


def test_what_is_too_early_is_found() -> None:
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2}, {%r1, %r2}, %rd1, p, 1, 1, 0;"
    wait, use = "wgmma.wait_group.sync.aligned 0;", "mul.rn.f32 %f3, %f2, 0f3C800000;"
    part = "wgmma.wait_group.sync.aligned 1;"
    assert too_early("\n".join((product, wait, use))) == []
    assert too_early("\n".join((product, part, use, wait))) == [use]


@pytest.mark.parametrize("module", ["gemm_tensor", "gemm_halves"])
def test_no_sum_is_used_before_its_products_are_over(module: str) -> None:
    """NVRTC 13.0 divided the last sums of a tile before the wait, which said nothing of them: right in most runs."""
    if not find_spec("cuda") or not find_spec("cuda.bindings.nvrtc"):
        pytest.skip("NVRTC is not installed: the extra `cuda` brings it")
    ptx = sources.compile_for(module, "sm_90", ptx=True).decode()
    assert ptx.count("wgmma.mma_async") > 6
    assert too_early(ptx) == []
    for rest in ptx.split("wgmma.wait_group.sync.aligned 0;")[1:]:  # what the wait says does not hang on one compiler
        assert "inline asm" in rest.split("\n", 3)[2]


def test_only_what_a_program_needs_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large kernel alone, small ones by module, shipped ones not at all; the second start compiles nothing."""
    made: list[tuple[str, tuple[str, ...]]] = []

    def compiled(module: str, target: str, kernels: tuple[str, ...] = ()) -> bytes:
        made.append((module, kernels))
        return " ".join((module, *kernels)).encode()

    monkeypatch.setattr(sources, "_SHIPPED", tmp_path)
    monkeypatch.setattr(sources, "compile_for", compiled)
    monkeypatch.setattr(sources, "_nvrtc", lambda: SimpleNamespace(nvrtcVersion=lambda: (0, 13, 0)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "best-sm_90.cubin").write_bytes(b"shipped")
    wanted = ["walk_q8_0", "embed", "rope_table", "best_lists"]
    for turn in range(2):
        kernels = sources.Kernels("sm_90")
        kernels.begin(wanted)
        found = {name: kernels.code(kernels.unit(name)) for name in wanted}
        assert found == {
            "walk_q8_0": b"walk walk_q8_0",
            "embed": b"steps",
            "rope_table": b"steps",
            "best_lists": b"shipped",
        }
        assert sorted(made) == [("steps", ()), ("walk", ("walk_q8_0",))], turn


# Bytes of machine code for sm_90 by NVRTC 13.0, 2026-11-19. Code that a walk does not run costs time, too.
SIZES = {
    ("gemm_tensor", "tensor_64_q4_k"): 125_720,
    ("walk", "walk_q4_k_q6_k"): 222_400,
    ("walk_few", "walk_few_q4_k_q6_k"): 277_696,
    ("walk_more", "walk_more_q4_k_q6_k"): 329_920,
    ("walk_all", "walk_all_q4_k_q6_k"): 708_928,
}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "kernel"), SIZES)
def test_the_code_of_large_kernels_does_not_grow_unseen(module: str, kernel: str) -> None:
    """A fifth more is not noise of a compiler's version: write down the new size, and the reason with the change."""
    if not find_spec("cuda") or not find_spec("cuda.bindings.nvrtc"):
        pytest.skip("NVRTC is not installed: the extra `cuda` brings it")
    size = len(sources.compile_for(module, "sm_90", (kernel,)))
    assert 0.5 * SIZES[module, kernel] < size < 1.2 * SIZES[module, kernel]


def test_a_kernel_is_compiled_without_the_others() -> None:
    if not find_spec("cuda") or not find_spec("cuda.bindings.nvrtc"):
        pytest.skip("NVRTC is not installed: the extra `cuda` brings it")
    ptx = sources.compile_for("rows", "sm_90", ("softmax",), ptx=True).decode()
    assert re.findall(r"\.entry (\w+)", ptx) == ["softmax"]
