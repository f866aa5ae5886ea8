"""The native CPU engine (native/bindings.cpp): matrix kernels, the paged KV cache, and programs.

Private: only assay.engines and bench import it. Change it together with native/bindings.cpp, which has the same
functions in the same order. A program is a list of operations on numbered values; `Program.run` executes it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PAGE: int  # positions of a cache page
ARITHMETIC: int  # version of docs/reference/arithmetic.md, the definition of every result bit

def isas() -> list[str]:
    """Instruction sets of this machine that have kernels, fastest first."""

def supported(type: int) -> bool:
    """Whether a ggml type has a decoder, and so products and embeddings."""

def unpack(
    rows: NDArray[np.uint8], type: int, columns: int
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32]]:
    """Rows of a quantised type as int8 codes [rows, columns], with scales and minima [rows, columns / 16]."""

def row_digest(words: NDArray[np.uint32]) -> tuple[int, int]:
    """The checksum of a row of logits in a receipt: two numbers of 64 bits. `words` are the bits of the floats."""

def encode_dispatches(pass_: int, calls: Sequence[int], commands: NDArray[np.uint64]) -> None:
    """Encode dispatches into wgpu's compute pass: a row of `commands` has the C handles of a pipeline (0: as before)
    and of a bind group, and three counts of workgroups. `calls` are the addresses of wgpu's functions that set a
    pipeline, set a bind group, and dispatch."""

def nearest_points(
    v: NDArray[np.float32],
    w: NDArray[np.float32],
    points: NDArray[np.float32],
    middles: NDArray[np.float32],
    near: NDArray[np.uint16],
    out: NDArray[np.int32],
) -> None:
    """For each row of v the index of the point with the smallest distance weighted by w, into `out`. `near` lists
    candidate points for each cell of the grid that `middles` cuts."""

def acts_format(type: int, exact: bool) -> str:
    """Form of the activations that a product with this weight type reads: "q8" or "f32"."""

def measure_dot_peak(threads: int, seconds: float) -> float:
    """Integer operations per second of all threads in the dot-product loop: the compute bound of a prompt."""

def measure_read_bandwidth(threads: int, bytes: int, seconds: float) -> float:
    """Bytes per second that all threads read from memory: the bound of decoding."""

class Pool:
    """A thread pool and its instruction set: `isa`, else that of the variable ASSAY_ISA, else the fastest one."""

    def __init__(self, threads: int, isa: str = "") -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def rope_rows(
        self,
        frequencies: Sequence[float],
        magnitude: float,
        positions: NDArray[np.int32],
        axes: Sequence[int],
        out: NDArray[np.float32],
    ) -> None:
        """Cosines and sines as programs compute them; pair i is turned by number axes[i] of its row of positions."""

    def weight_bytes(self, type: int, rows: int, columns: int) -> int:
        """Bytes of a matrix when it is packed; as float32 if its type is not supported."""

class Guard:
    """Protects reads of a memory-mapped file while it lives: pages past the end of a truncated file read as zeros, and
    `lost` becomes true. Without a guard such a read is a SIGBUS."""

    def __init__(self, view: NDArray[np.uint8]) -> None: ...
    @property
    def lost(self) -> bool: ...

class Loader:
    """Packs weights on the pool in the background, after the first step or a second of rest, into huge pages."""

    def __init__(self, pool: Pool) -> None: ...

class Weight:
    """Matrices [count, rows, columns] of a ggml type. With `pack` the loader interleaves them, else they are read in
    place. `mapped`: raw is a memory-mapped file, whose pages are released after packing. The first step that reads
    them does not wait for that; later ones do, and `packed` does."""

    def __init__(
        self,
        loader: Loader,
        raw: NDArray[np.uint8],
        type: int,
        shape: tuple[int, int, int],
        pack: bool,
        mapped: bool,
    ) -> None: ...
    @property
    def packed(self) -> bool: ...
    @property
    def bytes(self) -> int: ...

class Vector:
    """A copy of a norm's weights or of a bias."""

    def __init__(self, values: NDArray[np.float32]) -> None: ...

class Cache:
    """The paged KV cache. A group is (window, pages): pools of one window share a page table; window 0, the first
    group, keeps all positions. A pool is (type, holds keys, heads, head width, group)."""

    def __init__(self, groups: Sequence[tuple[int, int]], pools: Sequence[tuple[str, bool, int, int, int]]) -> None: ...
    @property
    def page_bytes(self) -> list[int]: ...
    def copy_page(self, source: int, to: int, group: int) -> None: ...
    def add_states(self, slots: int, floats: int) -> None:
        """Give each sequence `floats` values of state. Slots that are never used cost no memory."""

    def copy_state(self, source: int, to: int) -> None: ...
    def read_page(self, page: int, group: int, to: NDArray[np.uint8]) -> None:
        """Copy the bytes of a page to an array of `page_bytes[group]` bytes; `write_page` copies them back."""

    def write_page(self, page: int, group: int, from_: NDArray[np.uint8]) -> None: ...
    def read_state(self, slot: int, to: NDArray[np.uint8]) -> None: ...
    def write_state(self, slot: int, from_: NDArray[np.uint8]) -> None: ...

class Mask:
    """Which keys a query sees (window, chunk, causal), the scale of scores, attention sinks and ALiBi slopes."""

    def __init__(
        self, scale: float, window: int, chunk: int, causal: bool, sinks: Vector | None, slopes: Vector | None
    ) -> None: ...

class Program:
    """Operations in order, on values that `value` and `acts` number. Methods named like graph operations append one
    (graph/ops.py has the formulas); -1 stands for a value that is absent."""

    def __init__(self, pool: Pool, cache: Cache, exact: bool) -> None: ...
    @property
    def arena_bytes(self) -> int: ...
    def value(self, width: int, domain: str, external: bool = False) -> int: ...
    def acts(self, width: int, domain: str, format: str) -> int: ...
    def embed(self, table: Weight, by_position: bool, out: int) -> None: ...
    def rms_norm(self, x: int, w: Vector | None, eps: float, parts: int, out: int) -> None: ...
    def layer_norm(self, x: int, w: Vector, b: Vector | None, eps: float, parts: int, out: int) -> None: ...
    def bias(self, x: int, b: Vector, out: int) -> None: ...
    def gain(self, x: int, w: Vector, out: int) -> None: ...
    def binary(self, op: str, a: int, b: int, out: int, act: str = "silu") -> None: ...
    def unary(self, op: str, x: int, argument: float, out: int) -> None: ...
    def act(self, x: int, act: str, out: int) -> None: ...
    def glu_split(self, x: int, act: str, parts: int, out: int) -> None: ...
    def glu_oai(self, gate: int, up: int, alpha: float, limit: float, out: int) -> None: ...
    def clamp(self, x: int, lo: float, hi: float, out: int) -> None: ...
    def slice(self, x: int, start: int, parts: int, out: int) -> None: ...
    def concat(self, a: int, b: int, parts_a: int, parts_b: int, parts: int, out: int) -> None: ...
    def pos_scale(self, x: int, beta: float, unit: int, offset: int, out: int) -> None: ...
    def pool_rows(self, x: int, kind: str, out: int) -> None: ...
    def group_mask(self, x: int, groups: int, used: int, out: int) -> None: ...
    def expert_rows(self, op: str, x: int, idx: int, rows: Vector, out: int) -> None: ...
    def expert_sum(self, x: int, out: int) -> None: ...
    def rope_table(self, frequencies: Sequence[float], magnitude: float, out: int) -> None: ...
    def rope(self, x: int, table: int, heads: int, offset: int, neox: bool, out: int) -> None: ...
    def cache_write(self, x: int, pool: int) -> None: ...
    def cache_read(self, pool: int, out: int) -> None: ...
    def output_rows(self, x: int, out: int) -> None: ...
    def prepare(self, x: int, acts: int) -> None: ...
    def kq(self, q: int, k: int, heads: int, kv_heads: int, out: int) -> None: ...
    def attn_softmax(self, x: int, mask: Mask, out: int, last: int = -1) -> None: ...
    def kqv(self, p: int, v: int, kv_heads: int, out: int) -> None: ...
    def causal_conv(self, x: int, w: Vector, state: int, out: int) -> None: ...
    def shift(self, x: int, state: int, out: int) -> None: ...
    def scan(
        self,
        op: str,
        inputs: Sequence[int],
        weight: Vector | None,
        heads: int,
        groups: int,
        channels: int,
        scale: float,
        state: int,
        out: int,
    ) -> None:
        """delta_rule, ssm_scan, wkv6 or wkv7. `state`: where its state begins in a state slot, in floats."""

    def show_state(self, parts: Sequence[tuple[int, int]], after: bool, out: int) -> None:
        """Copy parts of each sequence's state, given as (begin, size), as it is before or after the step."""

    def rows_of_many(
        self, op: str, inputs: Sequence[int], w: Vector | None, numbers: Sequence[float], out: int
    ) -> None:
        """Row operations of recurrent layers; native/program/recurrent.cpp has the order of their `numbers`."""

    def products(
        self,
        acts: int,
        products: Sequence[tuple[Weight, int, Vector | None, int]],
        adapters: Sequence[Sequence[tuple[int, float, int, Vector]]] = (),
        x: int = -1,
    ) -> None:
        """Products of one input, each (weight, out, bias, residual). `adapters` has those of each product, in order,
        each (scale, factor, rank, pair); they read `x`, the rows that `acts` was prepared from."""

    def glu_products(
        self,
        acts: int,
        gate: Weight,
        up: Weight,
        gate_out: int,
        up_out: int,
        out: int,
        act: str,
        adapters: Sequence[Sequence[tuple[int, float, int, Vector]]] = (),
        x: int = -1,
    ) -> None:
        """act(gate) * up; `adapters` are those of gate and of up."""

    def expert_product(self, x: int, idx: int, weight: Weight, out: int) -> None: ...
    def attention(
        self,
        q: int,
        k_pool: int,
        v_pool: int,
        n_head: int,
        cap: float,
        mask: Mask,
        v_first: int,
        out: int,
        kq: int = -1,
        capped: int = -1,
        soft_max: int = -1,
        last: int = -1,
    ) -> None:
        """`last`: a value [tokens, 1], the last slot that each query sees; -1: its own."""
    def foreign(
        self, function: int, inputs: Sequence[int], weights: Sequence[Vector], attrs: Sequence[float], out: int
    ) -> None:
        """Call a C function on ranges of rows (native/program/foreign.h); `function` is its address."""

    def run(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        chunks: NDArray[np.int32],
        pages: NDArray[np.int32],
        states: NDArray[np.int32],
        externals: Sequence[NDArray[np.float32]],
        interruptible: bool,
    ) -> None:
        """Execute all operations for a batch.

        A row of `chunks` is (n_tokens, start, index in `pages` of its first page table, pages of a table, n_outputs).
        A row of `states` is (tokens, state slot before, state slot after, 1 where the sequence begins). A chunk has
        several rows where its state is kept at several tokens; the slot before is read from the first. There are no
        rows where no layer keeps a state. `externals` receive the values that were declared external.
        """
