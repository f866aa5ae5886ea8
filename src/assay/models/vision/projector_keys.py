"""The metadata of an mmproj file: projector, sizes, activation, mean and deviation, each checked before use.

`PROJECTORS` has a row for each `clip.projector_type` that assay runs. A row holds what a file may leave out: which key
has the merge factor, its default, and the limits on tokens. Touch this when a projector reads a further key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.models.arch_keys import ArchKeys
from assay.system.terminal import printable

MAX_SIDE = 1 << 14  # pixels: larger than any tower's picture; bounds what a file can make assay allocate
MAX_LAYERS = 1 << 10


@dataclass(frozen=True)
class ProjectorRow:
    """Constants of a kind of projector."""

    models: str  # known models, for people
    merge_key: str = ""  # the key of the merge factor; none where patches are not merged
    merge: int = 1  # its default
    tokens: tuple[int, int] | None = None  # least and most tokens of a picture of free size


PROJECTORS: dict[str, ProjectorRow] = {
    "gemma3": ProjectorRow("Gemma 3", "projector.scale_factor", 4),
    "qwen2vl_merger": ProjectorRow("Qwen2-VL", "spatial_merge_size", 2, (8, 4096)),
    "qwen2.5vl_merger": ProjectorRow("Qwen2.5-VL", "spatial_merge_size", 2, (8, 4096)),
    "qwen3vl_merger": ProjectorRow("Qwen3-VL, Qwen3.5", "spatial_merge_size", 2, (8, 4096)),
    "idefics3": ProjectorRow("SmolVLM, Idefics3", "projector.scale_factor"),
    "gemma4v": ProjectorRow("Gemma 4", "projector.scale_factor", 3, (70, 1120)),
    "lfm2": ProjectorRow("LFM2-VL", "projector.scale_factor", 1, (64, 256)),
    "pixtral": ProjectorRow("Pixtral, Mistral Small 3.1", "spatial_merge_size", 1, (8, 1024)),
    "internvl": ProjectorRow("InternVL 2.5, 3", "projector.scale_factor"),
    "mlp": ProjectorRow("LLaVA 1.5"),
}


@dataclass(frozen=True)
class ProjectorKeys:
    """The numbers of a tower and of its pictures."""

    projector: str
    image_size: int
    patch: int
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    eps: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    act: str  # "gelu", "silu" or "gelu_quick"
    merge: int  # patches a side that become one token
    min_tokens: int | None  # of a picture of free size
    max_tokens: int | None
    limited: bool = False  # the caller gave the limits
    longest_edge: int = 0  # idefics3
    window_pattern: int = 0  # qwen2.5vl: every n-th layer attends to the whole picture
    min_tiles: int = 1  # internvl
    max_tiles: int = 12

    @property
    def row(self) -> ProjectorRow:
        return PROJECTORS[self.projector]


def is_tower(file: GGUFFile) -> bool:
    """Whether a file is an mmproj file, by its architecture. Its metadata may hold anything there."""
    arch = file.metadata.get("general.architecture")
    return isinstance(arch, str) and arch == "clip"


def projector_type(values: Mapping[str, Any], where: str) -> str:
    """The kind of projector that a file has, whether assay runs it or not."""
    arch = values.get("general.architecture")
    if not isinstance(arch, str) or arch != "clip":
        raise AssayError(
            f"{where}: is not an mmproj file (found general.architecture {printable(str(arch)):.40}, expected clip); "
            "give the file with the vision tower, usually called mmproj-…gguf"
        )
    if values.get("clip.has_vision_encoder") is not True:
        raise AssayError(
            f"{where}: has no vision tower (found clip.has_vision_encoder "
            f"{printable(str(values.get('clip.has_vision_encoder'))):.40}, expected true)"
        )
    found = values.get("clip.projector_type", values.get("clip.vision.projector_type"))
    if not isinstance(found, str):
        raise AssayError(f"{where}: clip.projector_type: missing from the metadata; the file is incomplete")
    return found


def read_projector_keys(
    values: Mapping[str, Any], where: str, min_tokens: int | None = None, max_tokens: int | None = None
) -> ProjectorKeys:
    """The keys of an mmproj file. `min_tokens` and `max_tokens` replace the limits of pictures of free size."""
    projector = projector_type(values, where)
    if projector not in PROJECTORS:
        near = get_close_matches(projector, PROJECTORS, 1)
        hint = f"; the nearest known is {near[0]}" if near else ""
        raise AssayError(
            f"{where}: clip.projector_type: unknown projector {printable(projector)!r:.60}{hint}; known are "
            f"{', '.join(PROJECTORS)}"
        )
    row, meta = PROJECTORS[projector], ArchKeys(values, "clip.vision", where)
    n_embd, n_head = meta.count("embedding_length"), meta.count("attention.head_count")
    if "attention.head_dim" not in meta and n_embd % n_head:
        raise meta.error("attention.head_count", n_head, f"a divisor of embedding_length {n_embd}")
    n_head_kv = meta.count("attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise meta.error("attention.head_count_kv", n_head_kv, f"a divisor of head_count {n_head}")
    meta.count("projection_dim")  # required, but the width of the last matrix decides
    keys = ProjectorKeys(
        projector,
        image_size=_at_most(meta, "image_size", MAX_SIDE),
        patch=_at_most(meta, "patch_size", 256),
        n_embd=n_embd,
        n_ff=meta.count("feed_forward_length"),
        n_layer=_at_most(meta, "block_count", MAX_LAYERS),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=meta.count("attention.head_dim", n_embd // n_head or 1),
        eps=meta.number("attention.layer_norm_epsilon"),
        mean=_three(meta, "image_mean"),
        std=_three(meta, "image_std"),
        act=_activation(values, where),
        merge=_at_most(meta, row.merge_key, 64, row.merge) if row.merge_key else 1,
        min_tokens=min_tokens or (row.tokens[0] if row.tokens else None),
        max_tokens=max_tokens or (row.tokens[1] if row.tokens else None),
        limited=bool(min_tokens or max_tokens),
        longest_edge=_at_most(meta, "preproc_image_size", MAX_SIDE, 0, least=0) if projector == "idefics3" else 0,
        window_pattern=meta.count("n_wa_pattern") if projector == "qwen2.5vl_merger" else 0,
        min_tiles=_at_most(meta, "preproc_min_tiles", 64, 1),
        max_tiles=_at_most(meta, "preproc_max_tiles", 64, 12),
    )
    _check_sizes(meta, keys)
    return keys


def _check_sizes(meta: ArchKeys, keys: ProjectorKeys) -> None:
    if not keys.eps >= 0:
        raise meta.error("attention.layer_norm_epsilon", keys.eps, "0 or more")
    if keys.min_tokens and keys.max_tokens and keys.min_tokens > keys.max_tokens:
        raise AssayError(
            f"{meta.where}tokens of a picture: the least are more than the most (found {keys.min_tokens} and "
            f"{keys.max_tokens})"
        )
    if keys.min_tiles > keys.max_tiles:
        raise meta.error("preproc_min_tiles", keys.min_tiles, f"at most preproc_max_tiles {keys.max_tiles}")
    if 0 in keys.std:
        raise meta.error("image_std", list(keys.std), "no zero: pixels are divided by it")
    unit = keys.patch * (keys.merge if keys.projector in ("gemma3", "idefics3", "internvl") else 1)
    if keys.projector in ("gemma3", "idefics3", "internvl", "mlp") and keys.image_size % unit:
        raise meta.error("image_size", keys.image_size, f"a multiple of {unit}, patch_size times the merge factor")
    if keys.projector.startswith("qwen") and keys.merge != 2:
        raise meta.error("spatial_merge_size", keys.merge, "2: the merger joins 2×2 patches")
    turns = keys.projector in ("gemma4v", "pixtral") or keys.projector.startswith("qwen")
    if turns and keys.head_dim % 4:
        raise meta.error("attention.head_count", keys.n_head, "heads whose width is a multiple of 4")


def _at_most(meta: ArchKeys, key: str, most: int, default: int | None = None, least: int = 1) -> int:
    found = meta.count(key, default, least=least)
    if found > most:
        raise meta.error(key, found, f"at most {most}")
    return found


def _three(meta: ArchKeys, key: str) -> tuple[float, float, float]:
    """Three float32, one for each channel."""
    found = meta.values.get(f"{meta.arch}.{key}")
    if found is None:
        raise AssayError(f"{meta.where}{meta.arch}.{key}: missing from the metadata; the file is incomplete")
    try:
        values = np.asarray(found, np.float32)
    except (TypeError, ValueError):
        values = np.zeros(0, np.float32)
    if values.ndim != 1 or len(values) < 3 or not np.isfinite(values).all():
        raise meta.error(key, "something else", "an array of three finite numbers")
    return float(values[0]), float(values[1]), float(values[2])


def _activation(values: Mapping[str, Any], where: str) -> str:
    """The tower's activation. A file that names none runs the quick GELU, as in llama.cpp."""
    gelu, silu = (values.get(f"clip.use_{name}") is True for name in ("gelu", "silu"))
    if gelu and silu:
        raise AssayError(f"{where}: clip.use_gelu and clip.use_silu are both true (expected one at most)")
    return "gelu" if gelu else "silu" if silu else "gelu_quick"
