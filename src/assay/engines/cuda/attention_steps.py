"""Work of kernel steps that compute attention (attention.h): plain records, as in steps.py.

Touch this module when a kernel of attention needs another fact from the schedule pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.engines.cuda.device_values import Quantised, Value
from assay.engines.cuda.shapes import PoolView
from assay.engines.plan.values import AttentionMask, RopeTable


@dataclass(frozen=True)
class AttentionFields:
    """Arguments that all attention kernels share."""

    keys: PoolView
    values: PoolView
    mask: AttentionMask
    heads: int
    rows: int
    max_blocks: int  # blocks of 256 keys of the longest sequence
    rope: RopeTable | None = None  # where the kernel rotates q and k itself
    neox: bool = False


@dataclass(frozen=True)
class AttendRow:
    """Attention of one token a sequence. With k and v, the kernel writes the cache itself."""

    kernel: str
    fields: AttentionFields
    q: Value
    k: Value | None
    v: Value | None
    rope: Value | None
    out: Value
    partial: Value | None
    splits: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    acts: Quantised | None = None  # attend_short quantises its result as well

    @property
    def values(self) -> tuple[Value | None, ...]:
        return self.q, self.k, self.v, self.rope, self.out, self.partial


@dataclass(frozen=True)
class AttendTiles:
    """Attention of many tokens a sequence, by tiles of query rows."""

    kernel: str
    fields: AttentionFields
    q: Value
    out: Value
    scores: Value | None
    state: Value | None  # maximum and sum of each row's softmax, where scores are kept
    domain: str
    cut: int  # bytes before the tiles of this kernel in the step's table
    on_tensor_cores: bool
    grid: tuple[int, int, int]
    shared: int
    last: Value | None = None  # the last slot that each token sees, if it is not its own


@dataclass(frozen=True)
class PairScores:
    """One operation on the scores of all pairs of query and key (scores.cu)."""

    op: int
    x: Value | None
    y: Value | None
    out: Value
    heads: int
    mask: AttentionMask | None = None
    kv_heads: int = 0
    dim: int = 0
    last: Value | None = None  # the last slot that each token sees, if it is not its own
