"""The grammar of node names: `role`, or `role-N` in layer N; caches are `cache_k_lN`, `cache_v_lN`."""

from __future__ import annotations

import re
from functools import lru_cache

_LAYER = re.compile(r"^(?P<role>.+?)-(?P<layer>\d+)$|^(?P<cache>cache_[kv])_l(?P<clayer>\d+)$")


@lru_cache(maxsize=1 << 16)
def split(name: str) -> tuple[str, int | None]:
    """`Qcur-3` gives (`Qcur`, 3); `cache_k_l3` gives (`cache_k`, 3); `result_norm` gives (`result_norm`, None)."""
    m = _LAYER.match(name)
    if not m:
        return name, None
    return (m["role"], int(m["layer"])) if m["role"] else (m["cache"], int(m["clayer"]))


def join(role: str, layer: int | None) -> str:
    """The inverse of `split`."""
    if layer is None:
        return role
    return f"{role}_l{layer}" if role in ("cache_k", "cache_v") else f"{role}-{layer}"
