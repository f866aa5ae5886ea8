"""The probe: which tier of arithmetic gives the right bits on this adapter, and why a lower one does not.

WGSL lets a device fuse, reassociate, flush and round twice, and what it does depends on the surrounding code. So

    1. every operation runs on recorded numbers, subnormals among them, and is compared with exact rounding
    2. every kernel of the model runs on recorded inputs in the tier and in tier 2, whose integers WGSL defines exactly

The first tier without a difference is used. Verdicts are kept by adapter, driver and kernels in the cache directory.
Touch this module when a tier needs another kind of evidence.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay import _native
from assay.engines.contract import Chunk
from assay.engines.plan.batching import Step, whole
from assay.engines.wgpu.adapter import ALIGNMENT, Gpu
from assay.engines.wgpu.dispatches import Dispatch, DispatchPlan
from assay.engines.wgpu.recording import workgroups
from assay.engines.wgpu.shaders import TIERS, Kernel
from assay.engines.wgpu.step_words import RopeRows, step_words
from assay.errors import AssayError
from assay.system.files import recall, remember
from assay.system.home import home

_TOKENS = 3
_STATES = np.array([[_TOKENS, 0, 1, 0]], np.int32)  # a piece that goes on: reads place 0, writes place 1
_PRIMITIVES = ("addition", "multiplication", "fused multiply-add", "division", "square root")


@dataclass(frozen=True)
class Verdict:
    """The tier that an adapter got, whether its bits are proven, and why others failed, by tier."""

    tier: int
    proven: bool
    failures: dict[str, str]

    def __str__(self) -> str:
        found = f"tier {self.tier} ({TIERS[self.tier]}){'' if self.proven else ', bits not proven'}"
        return "; ".join([found, *(f"tier {tier} failed: {why}" for tier, why in self.failures.items())])


Found = dict[Kernel, tuple[DispatchPlan, Dispatch]]  # one dispatch of each kernel


def probe(gpu: Gpu, plans: Sequence[DispatchPlan], shared: Callable[[str], Any], forced: int | None = None) -> Verdict:
    """The verdict on this adapter for the kernels of plans. `forced`, or the variable ASSAY_TIER, allows one tier."""
    expected = ", ".join(map(str, TIERS))
    if forced is None and (asked := os.environ.get("ASSAY_TIER", "")):
        if asked not in map(str, TIERS):
            raise AssayError(f"ASSAY_TIER: no such tier (found {asked}, expected {expected}); change or unset it")
        forced = int(asked)
    if forced not in (None, *TIERS):
        raise AssayError(f"engine wgpu: no such tier (found {forced}, expected {expected})")
    first: Found = {d.kernel: (plan, d) for plan in reversed(plans) for d in reversed(plan.dispatches)}
    key = _key(gpu, first.keys(), forced)
    if known := _kept_verdict(key):
        return known
    failures: dict[str, str] = {}
    found = None
    # Adapters in software compute both sides of a branch, so that integers alone are their fastest tier.
    order = (forced,) if forced is not None else (2, 1, 0) if gpu.software else tuple(TIERS)
    for tier in order:
        why = _wrong_primitive(gpu, tier) or (_wrong_kernel(gpu, first, tier, shared) if tier < 2 else "")
        if not why:
            found = Verdict(tier, True, failures)
            break
        failures[str(tier)] = why
    if found is None:
        found = Verdict(2 if forced is None else forced, False, failures)
    _keep_verdict(key, found)
    return found


# --- operations


@cache
def probe_vectors() -> NDArray[np.uint32]:
    """Three numbers a case: plain ones, all exponents, subnormals, zeros, infinities, cancellation, halfway cases."""
    rng = np.random.default_rng(7)
    plain = rng.standard_normal((400, 3)).astype(np.float32).view(np.uint32)
    wide = rng.integers(0, 1 << 32, (500, 3), np.uint32)
    edges = np.array([0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)
    corners = rng.choice(np.concatenate([edges, edges | 0x80000000]), (400, 3))
    cancel = rng.standard_normal((300, 3)).astype(np.float32)
    cancel[:, 2] = -cancel[:, 0] * cancel[:, 1]
    tiny = (rng.standard_normal((200, 3)) * 2.0 ** rng.integers(-75, -55, (200, 3))).astype(np.float32)
    return np.concatenate([plain, wide, corners, cancel.view(np.uint32), tiny.view(np.uint32)])


def fma(a: float, b: float, c: float) -> float:
    """a * b + c of float32 numbers, rounded once to float32."""
    with np.errstate(all="ignore"):
        if not all(np.isfinite([a, b, c])) or not (a and b and c):
            return float(np.float32(np.float64(a) * np.float64(b) + np.float64(c)))  # exact in double
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return 0.0
    exponent = max(-126, exact.__abs__().numerator.bit_length() - exact.denominator.bit_length() - 1)
    if abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    with np.errstate(over="ignore"):
        nearest = float(round(exact / unit) * unit)  # ties to even
        return float(np.float32(nearest)) if nearest else math.copysign(0.0, exact)


@cache
def expected_results() -> NDArray[np.uint32]:
    """Exactly rounded results of every operation for the recorded vectors."""
    with np.errstate(all="ignore"):
        a, b, c = probe_vectors().view(np.float32).T
        fused = np.array([fma(*row) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)], np.float32)
        columns = [a + b, a * b, fused, a / b, np.sqrt(np.abs(a))]
    return np.stack(columns, axis=1).astype(np.float32).view(np.uint32)


def _wrong_primitive(gpu: Gpu, tier: int) -> str:
    """Which operation differs from exact rounding, with an example; empty if none does."""
    vectors, kernel = probe_vectors(), Kernel("primitives")
    x = gpu.loaded(vectors, "probe")
    out = gpu.buffer(4 * 5 * len(vectors), "probe")
    numbers = gpu.loaded(np.array([0, len(vectors)], np.uint32), "probe")
    group = gpu.bind_group(kernel, (numbers, 0, 8), {"x": x, "out": out})
    gpu.submit(gpu.prepared([(gpu.pipeline(kernel, tier), group, (-(-len(vectors) // 64), 1, 1))]))
    found, expected = gpu.read(out, 5 * len(vectors)).reshape(-1, 5), expected_results()
    both_nan = np.isnan(found.view(np.float32)) & np.isnan(expected.view(np.float32))
    wrong = (found != expected) & ~both_nan
    if not wrong.any():
        return ""
    case, operation = np.argwhere(wrong)[0]
    operands = ", ".join(f"{word:#010x}" for word in vectors[case])
    return (
        f"{_PRIMITIVES[operation]} of {operands} gives {found[case, operation]:#010x}, expected "
        f"{expected[case, operation]:#010x} ({int(wrong[:, operation].sum())} of {len(vectors)} cases)"
    )


# --- kernels


def _wrong_kernel(gpu: Gpu, first: Found, tier: int, shared: Callable[[str], Any]) -> str:
    """The first kernel whose results in this tier differ from those of integers; empty if none does."""
    chunk = Chunk(np.arange(1, 1 + _TOKENS, dtype=np.int32), 0, np.zeros(1, np.int32), "all")
    (step,) = whole([chunk])
    for each in (tier, 2):
        gpu.compile(first, each)
    for kernel, (plan, dispatch) in first.items():
        found, expected = (_outputs(gpu, plan, dispatch, step, t, shared) for t in (tier, 2))
        for name, words in found.items():
            wrong = np.flatnonzero(words != expected[name])
            if len(wrong):
                return (
                    f"kernel {kernel.name} ({' '.join(sorted(kernel.words)) or 'plain'}): {len(wrong)} of {len(words)} "
                    f"words of {name} differ, the first at {wrong[0]} (found {words[wrong[0]]:#010x}, expected "
                    f"{expected[name][wrong[0]]:#010x})"
                )
    return ""


def _outputs(
    gpu: Gpu, plan: DispatchPlan, dispatch: Dispatch, step: Step, tier: int, shared: Callable[[str], Any]
) -> dict[str, NDArray[np.uint32]]:
    """Output of a dispatch for recorded inputs and the model's weights."""
    kernel, made = dispatch.kernel, {}
    for binding, writes in kernel.bindings.items():
        name = dispatch.buffers[binding]
        if name.startswith(("weights", "vector", "constant", "biases", "nothing", "spare")):
            made[binding] = shared(name)
        elif name == "step":
            made[binding] = gpu.loaded(
                step_words(step, RopeRows(plan.rope_tables).at(step.positions()), _STATES), "probe"
            )
        else:
            size = min(plan.sizes.get(name) or int(shared(name).size), 16 << 20) // 4
            if kernel.name == "matvec" and binding == "x":
                found = _blocks(size, 4 * dispatch.numbers["x_stride"], dispatch.numbers["blocks"])
            else:
                found = np.zeros(size, np.uint32) if writes else _inputs(size)
            made[binding] = gpu.loaded(found, "probe")
    numbers = np.zeros(ALIGNMENT // 4, np.uint32)
    numbers[: len(dispatch.words)] = dispatch.words
    group = gpu.bind_group(kernel, (gpu.loaded(numbers, "probe"), 0, ALIGNMENT), made)
    counts = workgroups(dispatch.groups, {"T": _TOKENS, "R": _TOKENS, "B": 1, "P": 1})
    gpu.submit(gpu.prepared([(gpu.pipeline(kernel, tier), group, counts)]))
    return {b: gpu.read(made[b], int(made[b].size) // 4) for b, writes in kernel.bindings.items() if writes}


def _inputs(words: int) -> NDArray[np.uint32]:
    """Activations: mostly plain, some tiny, subnormal or zero."""
    rng = np.random.default_rng(words)
    values = rng.standard_normal(words).astype(np.float32)
    kinds = rng.integers(0, 64, words)
    values[kinds == 0] *= np.float32(2.0**-120)
    values[kinds == 1] = 0
    found = values.view(np.uint32)
    found[kinds == 2] &= 0x807FFFFF
    return found


def _blocks(words: int, stride: int, blocks: int) -> NDArray[np.uint32]:
    """Activations as int8 blocks (`quantise.wgsl`): rows of codes and three lists, the first with wild scales."""
    rng, rows = np.random.default_rng(words), words // stride
    codes = rng.integers(-127, 128, (rows, blocks, 32), np.int8)
    d = np.abs(_inputs(rows * blocks).view(np.float32).reshape(rows, blocks))
    tame = (d == 0) | ((d >= 2.0**-30) & (d < 2.0**30))
    with np.errstate(all="ignore"):
        sums = d * codes.sum(axis=2, dtype=np.int32).astype(np.float32)
    lists = [d, np.where(tame, d, np.float32(np.nan)), np.where(tame, sums, np.float32(np.nan))]
    found = np.zeros((rows, stride), np.uint32)
    found[:, : 8 * blocks] = codes.reshape(rows, -1).view(np.uint32)
    for i, values in enumerate(lists):
        first = 8 * blocks + i * (-(-blocks // 4) * 4)
        found[:, first : first + blocks] = values.astype(np.float32).view(np.uint32)
    return np.pad(found.ravel(), (0, words - found.size))


# --- verdicts on disk


def _key(gpu: Gpu, kernels: Any, forced: int | None) -> str:
    sources = sorted(kernel.source(tier) for kernel in (*kernels, Kernel("primitives")) for tier in TIERS)
    text = "\n".join([gpu.identity, str(_native.ARITHMETIC), str(forced), *sources])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kept_verdict(key: str) -> Verdict | None:
    found = recall(home() / "wgpu" / key)
    try:
        return Verdict(**json.loads(found)) if found else None
    except (TypeError, ValueError):
        return None


def _keep_verdict(key: str, verdict: Verdict) -> None:
    remember(home() / "wgpu" / key, json.dumps(asdict(verdict)).encode())
