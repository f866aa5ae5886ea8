"""Choose tensor types by measurement, so that a file of a given size has the least KL divergence.

Each tensor is quantised alone, and the divergence that this causes on a text is measured. Quantising is a small change,
so the divergence is proportional to the weighted squared error. The cost of any other type follows from its error on a
few rows of the tensor. Costs of tensors add up approximately. So the best choice for a size is found with a price per
bit (a Lagrange multiplier): every tensor takes the type with the least cost plus price, and the price is adjusted until
the size fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.engines.cpu import CpuEngine
from assay.errors import AssayError
from assay.evaluate.page import cell, render, shade, table
from assay.evaluate.pieces import TextWindow
from assay.evaluate.predictors import EngineSource, Rows
from assay.evaluate.score import divergence
from assay.gguf import GGUFFile, codecs
from assay.gguf.importance import Importance
from assay.gguf.mixes import FLOATS, NEEDY, is_quantizable, layer_of, role_of
from assay.gguf.types import GGMLType, by_name
from assay.system.stages import each

PROBE = "Q4_0"  # the type that is measured
SAMPLED = 48  # rows of a tensor on which the errors of other types are estimated
ROWS = 4096  # rows quantised at a time
CANDIDATES = (
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0",
    "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0",
)  # fmt: skip


@dataclass(frozen=True)
class Sensitivity:
    """The cost of quantising one tensor: the divergence in nats per token for every possible type."""

    name: str
    shape: tuple[int, ...]
    cost: Mapping[str, float]

    def bits(self, kind: str) -> int:
        return 8 * math.prod(self.shape[:-1]) * by_name(kind).row_bytes(self.shape[-1])


@dataclass(frozen=True)
class TypeChoice:
    """A type for every tensor, and the expected size and cost of the file."""

    types: Mapping[str, GGMLType]
    bits_per_weight: float
    cost: float


def measure(
    engine: CpuEngine,
    pieces: Sequence[TextWindow],
    importance: Importance | None,
) -> list[Sensitivity]:
    """Measure the sensitivity of every tensor of the engine's file."""
    names = measurable(engine)
    source = EngineSource(engine)
    base = [source.rows(piece) for piece in pieces]
    found = []
    for name in each(names, "measuring the cost of rounding", "tensors"):
        found.append(sensitivity(engine, source, name, pieces, base, importance))
    return found


def measurable(engine: CpuEngine) -> list[str]:
    """The matrices of the engine's file. All must be unquantised."""
    file = engine.model.file
    names = [n for n, t in file.tensors.items() if is_quantizable(n, t.shape) and n in engine.graph.weights]
    coarse = [n for n in names if file.tensors[n].type.name not in FLOATS]
    if coarse:
        kind = file.tensors[coarse[0]].type
        raise AssayError(f"{file.path.name}: {coarse[0]} is already {kind}; measure on the F16 or F32 original")
    return names


def sensitivity(
    engine: CpuEngine,
    source: EngineSource,
    name: str,
    pieces: Sequence[TextWindow],
    base: Sequence[Rows],
    importance: Importance | None,
) -> Sensitivity:
    """How quantising one tensor changes the predictions `base` for the windows."""
    file = engine.model.file
    info = file.tensors[name]
    shape, row = info.shape, info.shape[-1]
    if row % 32:
        return Sensitivity(name, shape, {"F16": 0.0})
    rows, weights = _flat(file, name, importance)
    probe, original = by_name(PROBE), info.type
    rounded = np.empty((len(rows), original.row_bytes(row)), np.uint8)
    for part in (slice(i, i + ROWS) for i in range(0, len(rows), ROWS)):
        values = codecs.decode(original, rows[part])
        again = codecs.decode(probe, codecs.encode(probe, values, _part(weights, part)))
        rounded[part] = codecs.encode(original, again)
    with engine.swapped(name, rounded.reshape(file.raw(name).shape)):
        kl = np.concatenate([divergence(b, source.rows(p)) for b, p in zip(base, pieces, strict=True)])
    caused = max(float(kl.mean()), 0.0)
    sample = slice(None, None, max(1, len(rows) // SAMPLED))
    some, weight = codecs.decode(original, rows[sample]), _part(weights, sample)
    unit = _error(PROBE, some, weight) or 1.0
    known = importance is not None and name in importance.entries
    return Sensitivity(name, shape, {
        kind: caused * _error(kind, some, weight) / unit
        for kind in CANDIDATES
        if row % by_name(kind).block_size == 0 and (known or kind not in NEEDY)
    })  # fmt: skip


def _flat(
    file: GGUFFile, name: str, importance: Importance | None
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """The rows of a tensor, and a row of weights for each; shared weights are one object."""
    raw = file.raw(name)
    rows = raw.reshape(-1, raw.shape[-1])
    found = importance.of(name, file.tensors[name].shape) if importance is not None else None
    if found is None:
        return rows, None
    return rows, found if len(found) == 1 else np.repeat(found, len(rows) // len(found), axis=0)


def _part(weights: NDArray[np.float32] | None, part: slice) -> NDArray[np.float32] | None:
    return weights if weights is None or len(weights) == 1 else weights[part]


def _error(kind: str, rows: NDArray[np.float32], weights: NDArray[np.float32] | None) -> float:
    lost = np.square(codecs.decode(kind, codecs.encode(kind, rows, weights)) - rows)
    return float(np.sum(lost if weights is None else weights * lost, dtype=np.float64))


def choose(found: Sequence[Sensitivity], bits_per_weight: float) -> TypeChoice:
    """The types with the least expected cost whose size is within the budget."""
    weights = sum(math.prod(s.shape) for s in found)
    budget = bits_per_weight * weights
    least = sum(min(s.bits(kind) for kind in s.cost) for s in found)
    if least > budget:
        raise AssayError(
            f"budget of {bits_per_weight:g} bits per weight: too small for this model (at least {least / weights:.2f})"
        )
    low, high = 0.0, 1.0  # bounds of the price per bit: at `high` every tensor takes its smallest type
    while _size(found, _at(found, high)) > budget:
        high *= 4
    for _ in range(100):
        middle = math.sqrt(max(low, 1e-30) * high)
        low, high = (low, middle) if _size(found, _at(found, middle)) <= budget else (middle, high)
    chosen = _filled(found, _at(found, high), budget)
    cost = sum(s.cost[kind] for s, kind in zip(found, chosen, strict=True))
    types = {s.name: by_name(kind) for s, kind in zip(found, chosen, strict=True)}
    return TypeChoice(types, _size(found, chosen) / weights, cost)


def _at(found: Sequence[Sensitivity], price: float) -> list[str]:
    return [min(s.cost, key=lambda kind: (s.cost[kind] + price * s.bits(kind), s.bits(kind))) for s in found]


def _size(found: Sequence[Sensitivity], chosen: Sequence[str]) -> int:
    return sum(s.bits(kind) for s, kind in zip(found, chosen, strict=True))


def _filled(found: Sequence[Sensitivity], chosen: list[str], budget: float) -> list[str]:
    """Spend the rest of the budget greedily where it reduces the cost most."""
    chosen, left = list(chosen), budget - _size(found, chosen)
    while True:
        best, gain = None, 0.0
        for i, s in enumerate(found):
            for kind in s.cost:
                more, less = s.bits(kind) - s.bits(chosen[i]), s.cost[chosen[i]] - s.cost[kind]
                if 0 < more <= left and less / more > gain:
                    best, gain = (i, kind, more), less / more
        if best is None:
            return chosen
        chosen[best[0]], left = best[1], left - best[2]


def page(title: str, found: Sequence[Sensitivity], choice: TypeChoice, said: Sequence[str]) -> str:
    """A page about the sources of the error: a heat map of layers and roles, and a table of all tensors."""
    cost = {s.name: s.cost[choice.types[s.name].name] for s in found}
    total = sum(cost.values()) or 1.0
    largest = max(cost.values(), default=0.0) or 1.0
    roles = list(dict.fromkeys(_role(s.name) for s in found if layer_of(s.name) >= 0))
    layers: dict[int, dict[str, str]] = {}
    for s in found:
        layers.setdefault(layer_of(s.name), {})[_role(s.name)] = s.name
    rows = [
        [cell(str(layer)), *(_square(names.get(role), choice, cost, total, largest) for role in roles)]
        for layer, names in sorted(layers.items())
        if layer >= 0
    ]
    by_cost = sorted(found, key=lambda s: -cost[s.name])
    listed = [
        [
            cell(s.name),
            cell(" × ".join(map(str, s.shape))),
            cell(choice.types[s.name].name),
            shade(f"{cost[s.name]:.2e}", cost[s.name] / largest),
            cell(f"{cost[s.name] / total:.1%}"),
        ]
        for s in by_cost
    ]
    return render(title, said, [
        ("Layer by layer: type, and its share of the expected divergence", table(["", *roles], rows, "map")),
        ("Every tensor", table(("tensor", "shape", "type", "KL", "share"), listed)),
    ])  # fmt: skip


def _role(name: str) -> str:
    return name.split(".", 2)[-1].removesuffix(".weight") if layer_of(name) >= 0 else role_of(name)


def _square(name: str | None, choice: TypeChoice, cost: Mapping[str, float], total: float, largest: float) -> str:
    if name is None:
        return cell("")
    return shade(f"{choice.types[name]} {cost[name] / total:.1%}", cost[name] / largest)
