"""The grammar of node names: `role`, or `role-N` in layer N; nodes that keep state are `cache_k_lN`.

The letter says what is kept, as in llama.cpp: `k` keys, `v` values, `r` the window of a convolution, `s` a recurrent
matrix (`state.KINDS` has the roles). Any other letter is free for a kind of another package.
"""

from __future__ import annotations

import re
from functools import lru_cache

# At most nine digits: names come from strangers, and Python converts no number of thousands of digits.
_LAYER = re.compile(r"^(?P<role>.+?)-(?P<layer>\d{1,9})$|^(?P<cache>cache_[a-z])_l(?P<clayer>\d{1,9})$")
_STATE = re.compile(r"^cache_[a-z]$")


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
    return f"{role}_l{layer}" if _STATE.match(role) else f"{role}-{layer}"
