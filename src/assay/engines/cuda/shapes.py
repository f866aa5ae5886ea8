"""The shape of a step, the layout of a cache page, and the tiles of query rows: a program is compiled for these.

Touch this module when a program depends on another property of a batch, or when an attention kernel gets another tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import CHUNK_WORDS, KV_TYPES, PATCH_ROWS, STATE_WORDS, TILE_WORDS
from assay.engines.cuda.abi.shared_memory import attend_prompt_bytes, attend_tile_bytes
from assay.engines.plan.fuse import Attention, fuse
from assay.engines.plan.state_layout import CachePool, cache_pools
from assay.engines.plan.values import AttentionMask, attention_mask
from assay.errors import AssayError
from assay.graph import Graph


@dataclass(frozen=True)
class Shape:
    """Properties of a step that a program depends on. Rows are padded to few sizes; padding has no slot and changes no
    bit."""

    tokens: int
    outputs: int
    one: bool  # every sequence has one token, and every row is an output
    blocks: int  # blocks of 256 keys of the longest sequence; 1, 2, 4, …
    pages: int  # entries of all page tables
    tiles: int = 0  # tiles of query rows, of each cut
    cuts: int = 1  # ways in which query rows are cut into tiles
    chunks: int = 0
    longest: int = 0  # most tokens of a chunk.
    keys: int = 0  # keys of all sequences; 0 unless the program stores keys or scores.
    scores: int = 0  # pairs of query and key; 0 likewise.
    irregular: bool = False  # positions differ from slots
    best: int = 0  # the number of largest logits that replace an output row; 0: the whole row
    digest: bool = False  # the hash of an output row follows its largest logits
    states: int = 0  # states that the step writes, one a sequence without drafts; 0 where the graph keeps none

    def rows(self, domain: str) -> int:
        rows = {"tokens": self.tokens, "outputs": self.outputs, "keys": self.keys, "scores": self.scores}
        return (rows | {"sequences": self.chunks})[domain]

    def tables(self) -> dict[str, tuple[int, int]]:
        """Offset and size of each table of the step, in 32-bit words."""
        m = self.tokens
        sizes = {"tokens": m, "positions": m, "slots": m, "tables": m, "left": m, "outputs": self.outputs}
        sizes |= {
            "output_positions": self.outputs,
            "tiles": TILE_WORDS * self.tiles * self.cuts,
            "output_tiles": TILE_WORDS * self.tiles * self.cuts,
        }
        sizes |= {
            "chunks": CHUNK_WORDS * self.chunks,
            "states": STATE_WORDS * self.states,
            "keys": 2 * self.keys,
            "key_positions": self.keys,
            "pages": self.pages,
        }
        found, at = {}, 0
        for name, size in sizes.items():
            found[name] = (at, size)
            at += -(-size // 4) * 4
        return found

    @property
    def words(self) -> int:
        at, size = self.tables()["pages"]
        return at + size


@dataclass(frozen=True)
class PoolView:
    """The rows of one node in a page, or some columns of each (cache.h, Pool)."""

    offset: int  # bytes from the beginning of a page
    type: int  # one of KV_TYPES
    keys: bool  # stored transposed
    heads: int
    dim: int  # values of a head that are read
    head_bytes: int
    columns: int  # values of a head that are stored
    first: int  # the first one that is read

    def struct(self) -> Any:
        return structs.Pool(
            self.offset, self.type, int(self.keys), self.heads, self.dim, self.head_bytes, self.columns, self.first
        )


@dataclass(frozen=True)
class CacheLayout:
    """Where each pool lies in a page of the cache on the device."""

    kv_type: str
    pools: dict[str, CachePool]
    offsets: dict[int, int]  # by the pool's index
    positions_at: int
    page_bytes: int
    halved: frozenset[int] = frozenset()  # passing pools in float16, by index

    def pool(self, name: str, first: int = 0, dim: int = 0) -> PoolView:
        """A node's pool, or `dim` values from column `first` of each head."""
        p = self.pools[name]
        kv_type = _type_of(p, self.kv_type, self.halved)
        size = head_bytes(p, kv_type)
        return PoolView(self.offsets[p.index], KV_TYPES[kv_type], p.keys, p.heads, dim or p.dim, size, p.dim, first)


def head_bytes(pool: CachePool, kv_type: str) -> int:
    each = {"f32": 4, "q8_0": 16}.get(kv_type, 8)
    size = 32 * -(-pool.dim // each) * 16 + (2 * 32 * (pool.dim // 32) if kv_type == "q8_0" else 0)
    return -(-size // 16) * 16


def _type_of(pool: CachePool, kv_type: str, halved: frozenset[int]) -> str:
    return "f16" if pool.index in halved else pool.type(kv_type)


def cache_layout(graph: Graph, kv_type: str, tensor: bool = False) -> CacheLayout:
    """`tensor`: keys and values of patches are kept for attention on tensor cores, where it has a kernel for them."""
    pools, at = cache_pools(graph), 0
    halved = _patch_pools(graph, pools) if tensor else frozenset[int]()
    offsets: dict[int, int] = {}
    for pool in sorted(set(pools.values()), key=lambda pool: pool.index):
        found = _type_of(pool, kv_type, halved)
        if found == "q8_0" and pool.dim % 32:
            raise AssayError(f"engine cuda: a q8_0 cache needs heads of a multiple of 32 values (found {pool.dim})")
        offsets[pool.index] = at
        at += pool.heads * head_bytes(pool, found)
    return CacheLayout(kv_type, pools, offsets, at, at + 128, halved)


def _patch_pools(graph: Graph, pools: dict[str, CachePool]) -> frozenset[int]:
    """Passing pools of a tower, which is given rows, that attention_patches.cu alone reads."""
    wanted, others = set[int](), set[int]()
    for group in fuse(graph).groups:
        if not isinstance(group, Attention):
            continue
        keys, values = pools[group.keys], pools[group.values]
        mask = attention_mask(graph, group.softmax, group.capped, "the cuda engine masks by inp_pos and inp_kpos only")
        passing = bool(graph.given) and keys.passing and values.passing and len(group.softmax.inputs) == 3
        fits = passing and sees_everything(mask) and patch_width(keys.dim) and keys.dim == values.dim
        (wanted if fits else others).update((keys.index, values.index))
    return frozenset(wanted - others)


def sees_everything(mask: AttentionMask) -> bool:
    """Whether every row sees every other one, by its score alone."""
    return not (mask.causal or mask.window or mask.chunk or mask.cap or mask.sinks or mask.slopes) and mask.scale > 0


def patch_width(dim: int) -> int:
    """The narrowest heads of a kernel of attention_patches.cu that these fit; 0 if they fit no kernel."""
    return next((width for width in structs.PATCH_WIDTHS if dim <= width and dim % 8 == 0), 0)


def fits_patches(k_pool: PoolView, v_pool: PoolView, mask: AttentionMask) -> bool:
    """Whether attention_patches.cu has a kernel for these keys and values."""
    halves = k_pool.type == v_pool.type == KV_TYPES["f16"] and not v_pool.keys
    alike = {k_pool.columns, v_pool.dim, v_pool.columns} == {k_pool.dim}
    return halves and alike and sees_everything(mask) and patch_width(k_pool.dim) > 0


# Kernels of attention_many.cu: widest head, query rows of a warp, pages of keys staged at once. The first that fits
# is used.
_TILES = (
    ("attend_tile_64", 64, 8, 2),
    ("attend_tile_128", 128, 8, 4),
    ("attend_tile_256", 256, 4, 4),
    ("attend_tile_512", 512, 2, 4),
    ("attend_tile_512_small", 512, 2, 2),
)


# Kernels of attention_prompt.cu: query rows of a tile, by the width of a head.
_PROMPTS = {64: 128, 128: 64}


def prompt_rows(v_dim: int, k_dim: int, shared: int) -> tuple[str, int, int] | None:
    """The kernel for prompts over an f16 cache, its query rows of a tile and its shared memory, if one fits."""
    rows = _PROMPTS.get(v_dim, 0)
    size = attend_prompt_bytes(rows, v_dim)
    return (f"attend_prompt_{v_dim}", rows, size) if rows and k_dim == v_dim and size <= shared - 1024 else None


# Kernels of attention_tensor.cu: query rows of a tile, widths of a head.
TENSOR_ROWS, _TENSOR_HEADS = 128, (64, 128)


def fits_tensor_cores(k_pool: PoolView, v_pool: PoolView) -> bool:
    """Whether attention_tensor.cu has a kernel for this cache."""
    halves = k_pool.type == v_pool.type == KV_TYPES["f16"] and not v_pool.keys
    dim = k_pool.dim
    return bool(halves and dim in _TENSOR_HEADS and {v_pool.dim, v_pool.columns, k_pool.columns} == {dim})


def tile_cuts(graph: Graph, layout: CacheLayout, shared: int, tensor: bool = False) -> tuple[tuple[int, int], ...]:
    """The ways in which the attention nodes of a graph cut query rows into tiles: heads of a group, rows of a tile."""
    found = set()
    for fused in fuse(graph).groups:
        if isinstance(fused, Attention):
            heads, _, dim = graph.shapes[fused.kqv.name]
            pool = layout.pools[fused.keys]
            for cut in (tile_rows(int(dim), pool.dim, shared), prompt_rows(int(dim), pool.dim, shared)):
                if cut:
                    found.add((int(heads) // pool.heads, cut[1]))
            if tensor and pool.dim in _TENSOR_HEADS:
                found.add((int(heads) // pool.heads, TENSOR_ROWS))
            if pool.index in layout.halved:
                found.add((int(heads) // pool.heads, PATCH_ROWS))
    return tuple(sorted(found))


def tile_rows(v_dim: int, k_dim: int, shared: int) -> tuple[str, int, int]:
    """The kernel for any prompt, its query rows of a tile and its shared memory."""
    quads = -(-k_dim // 4)
    for name, most, rows, staged in _TILES:
        size = attend_tile_bytes(rows, staged, quads, v_dim)
        if v_dim <= most and size <= shared - 1024:
            return name, 8 * rows, size
    raise AssayError(
        f"engine cuda: heads of {k_dim} and {v_dim} values do not fit this GPU's shared memory; use --engine cpu"
    )
