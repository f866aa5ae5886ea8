"""Work of kernel steps that multiply matrices (product.h): plain records, as in steps.py.

Touch this module when a kernel of products needs another fact from the schedule pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.engines.cuda.device_values import Quantised, Value
from assay.engines.cuda.layout import Matrix
from assay.graph import Node


@dataclass(frozen=True)
class Part:
    """A matrix of a product, where its result goes, and what the kernel adds to it."""

    matrix: Matrix
    name: str
    bias: str = ""
    residual: Value | None = None
    act: int = 0
    kept: tuple[Value | None, ...] = (None, None)  # gate and up, where a trace keeps them
    out: Value | None = None
    first: int = 0  # first value of the bias


def part_reads(parts: tuple[Part, ...]) -> tuple[Value | None, ...]:
    return tuple(p.residual for p in parts)


def part_writes(parts: tuple[Part, ...]) -> tuple[Value | None, ...]:
    return tuple(v for p in parts for v in (p.out, *p.kept))


@dataclass(frozen=True)
class RowProduct:
    """A product of one row, or of a few rows with float weights. `kernel` is empty for product_floats."""

    kernel: str
    parts: tuple[Part, ...]
    x: Value
    acts: Quantised | None
    norm: Node | None
    rows: int


@dataclass(frozen=True)
class TileChoice:
    """A kernel that computes tiles of rows (of the matrix) times tokens, and how it is launched."""

    kernel: str
    rows: int
    tokens: int
    threads: int
    stages: int  # stages of the pipeline; of kernels for up to 16 tokens, the bytes of one
    shared: int


@dataclass(frozen=True)
class FloatTiles:
    """Float weights by the tiles of gemm_floats.cu."""

    parts: tuple[Part, ...]
    x: Value
    rows: int
    tile: TileChoice


@dataclass(frozen=True)
class TileProduct:
    """A product of many rows on tensor cores: quantised rows, or rows of 16-bit floats."""

    parts: tuple[Part, ...]
    x: Quantised | Value
    rows: int
    tile: TileChoice
    factors: bool  # gemm_tensor.cu reads factors of the weights in the place of scales.
    chains: int  # Chains of units, each summed on its own.
    split: bool  # Each chain has blocks of threads of its own.
    partial: Value | None


@dataclass(frozen=True)
class ExpertProduct:
    """Pair by pair: each (token, choice) has the matrix of an expert, or of a head."""

    part: Part
    x: Value
    acts: Quantised | None
    choices: Value | None  # None: every row takes all matrices in turn
    pairs: int
    pairs_per_row: int  # pairs that share a row of x


@dataclass(frozen=True)
class HostWork:
    """Experts that the cpu engine computes (host_experts.py): a call on the host between two launches."""

    part: str
    domain: str
    reads: tuple[tuple[str, Value, int], ...]  # nodes with their width
    writes: tuple[tuple[str, Value, int], ...]


@dataclass(frozen=True)
class SortPairs:
    """The pair of each slot and the matrix of each tile, grouped by matrix."""

    choices: Value | None
    order: Value
    matrices: Value
    pairs: int
    count: int
    tokens: int
    tiles: int


@dataclass(frozen=True)
class PairGate:
    """An activation of the gate, times up: the step that quantises the rows computes it."""

    up: Value
    act: int = 0
    oai: bool = False
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True)
class QuantisePairs:
    """The quantised row of each slot, of x or of x with a gate."""

    x: Value
    order: Value
    out: Quantised
    columns: int
    pairs_per_row: int
    gating: PairGate | None = None


@dataclass(frozen=True)
class SortedProduct:
    """Tiles of pairs that have the same matrix."""

    part: Part
    acts: Quantised
    order: Value
    matrices: Value
    pairs: int
    tiles: int
    tile: TileChoice
