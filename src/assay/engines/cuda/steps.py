"""Kernel steps: the records that the schedule pass hands to the passes after it.

Records of products are in product_steps.py, those of attention in attention_steps.py.

schedule.py makes steps, place.py gives every value an offset, and lower.py turns a step into a launch, or
lower_walk.py into an entry in the list of a walk. A step has its `work` (a record of one kernel family) and the values
that it reads and writes. Everything here is plain data. Touch this module when a kernel family needs another fact from
the schedule pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from assay.engines.cuda.attention_steps import AttendRow, AttendTiles, AttentionFields, PairScores
from assay.engines.cuda.device_values import Quantised, Value
from assay.engines.cuda.layout import Matrix
from assay.engines.cuda.product_steps import (
    ExpertProduct,
    FloatTiles,
    HostWork,
    Part,
    QuantisePairs,
    RowProduct,
    SortedProduct,
    SortPairs,
    TileProduct,
)
from assay.engines.cuda.shapes import PoolView
from assay.engines.plan.values import RopeTable
from assay.graph import Node


class Tier(IntEnum):
    """The megakernels, by the kinds of steps they have: each has those of the one before, and more."""

    PLAIN = 0  # walk.cu, walk_few.cu, walk_two.cu
    MORE = 1  # walk_more.cu, walk_few_more.cu
    ALL = 2  # walk_all.cu, walk_few_all.cu


@dataclass(frozen=True)
class WalkNeeds:
    """Requirements of a step on the megakernel that executes it."""

    formats: frozenset[str] = frozenset()  # of its weights; empty: every megakernel has this step
    shared: int = 0  # bytes of shared memory beside the ring buffer
    piece: int = 0  # bytes of one prefetched piece of the cache; of weights, a piece is a tile
    tier: Tier = Tier.PLAIN  # the smallest megakernel that has this step


# -- rows (steps.cu, rows.cu, best.cu) -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embed:
    table: Matrix
    index: str  # the step's table that chooses the rows
    out: Value
    width: int


@dataclass(frozen=True)
class TakeOutputRows:
    """The rows of the output tokens."""

    x: Value
    out: Value
    width: int


@dataclass(frozen=True)
class FillRopeTable:
    rope: RopeTable
    positions: str  # the step's table of positions
    rows: int
    out: Value


@dataclass(frozen=True)
class RotateRows:
    x: Value
    table: Value
    out: Value
    rows: int
    width: int
    heads: int
    n_rot: int
    neox: bool
    offset: int


@dataclass(frozen=True)
class CacheWrite:
    x: Value
    pool: PoolView


@dataclass(frozen=True)
class CacheRead:
    pool: PoolView
    out: Value
    width: int


@dataclass(frozen=True)
class ScaleByPosition:
    x: Value
    out: Value
    positions: str  # the step's table of positions
    rows: int
    width: int
    beta: float
    unit: int
    offset: int


@dataclass(frozen=True)
class PoolRows:
    """One row for each sequence."""

    x: Value
    out: Value
    width: int
    kind: str


@dataclass(frozen=True)
class Map:
    """An elementwise operation of rows: of x, and of y or of a vector of weights (rows.cu, MapOp)."""

    op: str
    x: Value
    y: Value
    out: Value
    rows: int
    width: int
    x_width: int
    y_width: int
    vector: str = ""  # weights in the place of y
    vector_row: int = 0
    table: str = ""  # weights of which y chooses a row
    table_rows: int = 0
    constant: tuple[float, ...] = ()  # numbers in the place of y
    z: Value | None = None  # a third operand
    z_width: int = 0
    weight: str = ""  # weights in the place of the third operand
    weight_row: int = 0
    integer: int = 0
    parts: int = 1
    number: float = 0.0
    second: float = 0.0


@dataclass(frozen=True)
class TotalExperts:
    """The chosen experts' rows times their weights, added in the order of the choices, and a residual behind them."""

    x: Value
    weights: Value
    residual: Value | None
    out: Value
    rows: int
    width: int
    count: int


@dataclass(frozen=True)
class MapChain:
    """Elementwise operations as one step of a walk: x of each behind the first is the result of the one before."""

    maps: tuple[Map, ...]


@dataclass(frozen=True)
class NormRows:
    kernel: str
    x: Value
    out: Value
    weights: tuple[str, ...]
    rows: int
    width: int
    parts: int  # heads of a row, each normed on its own
    own_weights: bool  # every part has weights of its own
    eps: float


@dataclass(frozen=True)
class SortRow:
    """softmax, argsort and group_mask: one block of threads a row."""

    kernel: str
    x: Value
    out: Value
    rows: int
    width: int
    groups: int
    used: int


@dataclass(frozen=True)
class QuantiseRows:
    x: Value
    out: Quantised
    rows: int
    columns: int
    copies: int  # rows written; of a single row, copies that blocks of threads share out
    norm: Node | None


@dataclass(frozen=True)
class HalveRows:
    """Rows as 16-bit floats, normed first where there is a norm, or after an activation."""

    x: Value
    out: Value
    rows: int
    columns: int
    stride: int
    norm: Node | None
    layer_norm: NormRows | None = None  # in the place of `norm`
    act: int = -1  # one of abi.enumerations.Act


@dataclass(frozen=True)
class BestLogits:
    """The k largest values of each row: lists of parts of the row first, then the best of the lists. With `sums` also
    the row's hash for a receipt."""

    x: Value
    lists: Value
    sums: Value | None
    out: Value
    rows: int
    width: int
    n_lists: int
    k: int
    merge: bool  # the second of the two launches


# -- layers that remember (recurrent.cu) -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Scan:
    """A recurrence, a convolution or a token shift over each sequence's tokens; or head_bonus, which has no state."""

    kernel: str
    x: tuple[Value, ...]
    weight: str
    out: Value
    offset: int  # of its state in a state slot, in floats
    channels: int
    heads: int = 1
    groups: int = 1
    rows: int = 1  # of a head's state; of a convolution, its taps; of head_bonus, the rows of x
    kind: int = 0
    per_channel: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class ShowState:
    """A copy of a state, before or after the step, into columns of a kept value."""

    out: Value
    offset: int
    size: int
    column: int
    width: int
    after: int


@dataclass(frozen=True)
class AdvanceStates:
    """The state after this decode step becomes the state before the next one."""


@dataclass(frozen=True)
class RowSums:
    """l2_norm, row_length and sparse_gate: one warp a row, or a part of it."""

    kernel: str
    x: Value
    out: Value
    rows: int
    width: int
    parts: int
    number: float
    floor: bool


@dataclass(frozen=True)
class WalkDelta:
    """The gated delta rule of one token, with its convolution, lengths, decay and beta: a step of a walk."""

    x: tuple[Value, Value, Value]  # the row before the convolution, the inputs of decay and beta
    out: Value
    taps: str  # weights of the convolution
    rate: str  # and of the decay
    window: int  # where the window begins in a state slot, in floats; and the state
    offset: int
    heads: int
    groups: int
    act: int
    eps: float
    floor: bool
    scale: float


@dataclass(frozen=True)
class GatedNorms:
    """The norm of the heads of its result, times an activated gate, quantised; and the windows of q and k moved."""

    rule: WalkDelta
    gate: Value
    out: Value
    weight: str
    eps: float
    act: int


# -- LoRA adapters (adapters.cu) ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AdapterInputs:
    """(s * factor) * (A x) of each row."""

    x: Value
    scales: Value  # s of each row
    out: Value
    weight: str  # A
    rows: int
    columns: int
    rank: int
    factor: float


@dataclass(frozen=True)
class AdapterOutputs:
    """base + B h of each row whose scale is not 0."""

    base: Value
    scales: Value
    h: Value
    out: Value
    weight: str  # B
    rows: int
    columns: int
    rank: int


# -- steps of a walk (walk.h) ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WalkProduct:
    """A product of one token."""

    parts: tuple[Part, ...]
    x: Value
    norm: Node | None


@dataclass(frozen=True)
class WalkQuantise:
    """A row quantised once for all blocks of threads; gated or activated first, where `gating` is such a node."""

    matrix: Matrix  # whose input it is
    x: Value
    out: Value
    gating: Node | None


@dataclass(frozen=True)
class WalkFloatRows:
    """Products of one token with a few rows of float weights, where the walk's other weights are quantised."""

    parts: tuple[Part, ...]  # matrices of one layout
    x: Value
    norm: Node | None


@dataclass(frozen=True)
class ExpertChoice:
    """How the router's logits become the chosen experts and their weights."""

    used: int  # experts of a token
    routing: str  # softmax, sigmoid, or none: the logits are the probabilities
    by_logits: bool = False  # experts are chosen by logits, whatever their probabilities
    bias: str = ""  # weights that are added where experts are chosen
    softmax_chosen: bool = False
    least: float | None = None  # weights are divided by their sum, which is at least this
    scale: float = 1.0


@dataclass(frozen=True)
class WalkExperts:
    """Products with the matrices of the chosen experts: gate and up with their activation, or down with the weighted
    sum of the experts and the residual."""

    parts: tuple[Part, ...]
    x: Value
    norm: Node | None
    logits: Value
    choice: ExpertChoice
    gating: Node  # the activation of gate and up
    down: bool
    which: int  # the place of the choice in shared memory: layers take two in turn
    partial: Value | None = None  # down: sums of the first half of the experts, which the blocks of the other half read
    added: tuple[Value | None, Value | None] = (None, None)  # down: a row added before the residual, and its gate

    @property
    def halves(self) -> int:
        """Of down: blocks of threads that share the experts of a group of rows."""
        return 2 if self.partial else 1

    @property
    def groups(self) -> int:
        """Groups of rows that blocks of threads share out."""
        return self.parts[0].matrix.groups * (self.halves if self.down else self.choice.used)

    @property
    def of_group(self) -> int:
        """Matrices of which a block of threads computes the same group of rows."""
        return self.choice.used // self.halves if self.down else len(self.parts)


@dataclass(frozen=True)
class BatchFloatRows:
    """A product of two to eight tokens with a few rows of float weights."""

    part: Part
    x: Value
    rows: int  # rows and tokens of a block of threads
    tokens: int


@dataclass(frozen=True)
class BatchExperts:
    """Products of two to eight tokens with the matrices of the experts that each chose: gate and up with their
    activation, or down. The result has a row for each choice."""

    parts: tuple[Part, ...]
    x: Value
    logits: Value
    choice: ExpertChoice
    gating: Node
    down: bool
    sums: int  # partial sums that shared memory has room for
    by_matrix: int  # tokens of an expert from which `mma` multiplies
    costs: tuple[int, ...]  # time of a tile of an expert with one token, two, ...: blocks share the tiles out by it


@dataclass(frozen=True)
class WeighExperts:
    """The weighted sum of the rows that each token's experts gave, and the residual."""

    x: Value
    choice: ExpertChoice
    residual: Value | None
    out: Value
    width: int


@dataclass(frozen=True)
class BatchProduct:
    """A product of two to eight tokens."""

    parts: tuple[Part, ...]
    x: Value
    units: int  # Units of x in shared memory at a time.
    groups: int  # Groups of rows that a block of threads computes at a time.
    piece: int  # Bytes of a prefetched piece; they decide how many pieces are requested ahead.


@dataclass(frozen=True)
class BatchQuantise:
    """Two to eight rows quantised for all blocks of threads; gated or normed first."""

    matrix: Matrix
    x: Value
    out: Value
    norm: Node | None
    gating: Node | None
    counted: bool  # readers wait for a count of rows, because they read x in parts


@dataclass(frozen=True)
class NormPart:
    """A norm with the add before it and the add behind it."""

    norm: Node
    x: Value
    addend: Value | None
    residual: Value | None
    total: Value | None  # x plus the addend, which others read as well
    out: Value
    width: int
    first_task: int


@dataclass(frozen=True)
class WalkNorms:
    """One norm, or two that are independent."""

    parts: tuple[NormPart, ...]
    tasks: int


@dataclass(frozen=True)
class WalkAttend:
    """Attention over blocks of 256 keys, or the fold of the blocks' partial results."""

    fields: AttentionFields
    q: Value
    k: Value
    v: Value
    rope: Value | None
    out: Value
    partial: Value | None
    norms: tuple[Node, Node] | None  # of the heads of q and of k
    factor: float  # of q, once it is rotated
    q_step: int  # values from a head of q to the next
    heads_at_once: int
    piece: int
    fold: bool

    @property
    def values(self) -> tuple[Value | None, ...]:
        return self.q, self.k, self.v, self.rope, self.out, self.partial


RowWork = (
    Embed | TakeOutputRows | FillRopeTable | RotateRows | CacheWrite | CacheRead | ScaleByPosition | PoolRows | Map
    | NormRows | SortRow | QuantiseRows | HalveRows | BestLogits | TotalExperts
)  # fmt: skip
ProductWork = (
    RowProduct | FloatTiles | TileProduct | ExpertProduct | SortPairs | QuantisePairs | SortedProduct | HostWork
)
AttentionWork = AttendRow | AttendTiles | PairScores
WalkWork = (
    WalkFloatRows | WalkExperts | WalkProduct | WalkQuantise | BatchProduct | BatchQuantise | BatchFloatRows
    | BatchExperts | WeighExperts | WalkNorms | WalkAttend | MapChain
)  # fmt: skip
StateWork = Scan | ShowState | AdvanceStates | RowSums | WalkDelta | GatedNorms
AdapterWork = AdapterInputs | AdapterOutputs
Work = RowWork | StateWork | AdapterWork | ProductWork | AttentionWork | WalkWork


@dataclass(frozen=True)
class KernelStep:
    """One launch, or one step of a walk: then `walk` says what it needs of the megakernel."""

    node: str  # the node it computes, or the first of several
    work: Work
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    walk: WalkNeeds | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        return self.reads + self.writes
