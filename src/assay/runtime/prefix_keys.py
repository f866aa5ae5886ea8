"""Keys and names of prefixes: what was fed at each position, as numbers that can be compared and hashed.

A prefix may be reused only where exactly the same was fed. A sequence feeds token ids, or the rows of a picture, whose
positions may have several numbers. So the prefix tree never compares ids: it compares the keys that `feed_keys` makes,
one integer for each position.

    a token at its own position    its id, 0 or larger
    the same in other arithmetic   -1 - id: in precision `mixed`, the last token of a prompt and all tokens behind it
    anything else                  a negative number: a hash of 16 bytes of the id, the given row and the position
    this in other arithmetic       the number - 2^128

Touch this when a chunk can feed something new. The tree, the allocator and the cluster's router need no change then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from assay.engines.contract import PAGE, Array

_DIGEST = 16  # bytes: two different rows never get the same key by chance or by design


@dataclass(frozen=True)
class PrefixFeed:
    """The feed of consecutive positions: token ids, and by place the rows and positions that replace the default."""

    ids: Sequence[int]
    rows: Mapping[int, Array] = field(default_factory=dict)  # place among the ids -> the row that is given there
    positions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # place -> its position, if several numbers


def feed_keys(fed: PrefixFeed | Sequence[int]) -> Sequence[int]:
    """One key for each position; equal keys mean that the same was fed. Plain ids are their own keys."""
    if not isinstance(fed, PrefixFeed):
        return fed
    keys = list(fed.ids)
    for place in fed.rows.keys() | fed.positions.keys():
        digest = blake2b(np.int64(keys[place]).tobytes(), digest_size=_DIGEST)
        if place in fed.rows:
            row = np.ascontiguousarray(fed.rows[place])
            digest.update(f"row {row.dtype} {row.shape} ".encode() + row.tobytes())
        if place in fed.positions:
            digest.update(f"position {fed.positions[place]}".encode())
        keys[place] = -1 - int.from_bytes(digest.digest())
    return keys


def answer_keys(ids: Sequence[int]) -> list[int]:
    """Keys of tokens that precision `mixed` does not compute as a prompt: no prompt shares their pages."""
    return [-1 - i if i >= 0 else i - (1 << 8 * _DIGEST) for i in ids]


def page_name(before: str, keys: Sequence[int]) -> str:
    """A name for the prefix that ends with this page: the same wherever the same was fed."""
    if min(keys, default=0) >= 0:
        content = np.array(keys, np.int32).tobytes()
    else:
        content = b"".join(key.to_bytes(_DIGEST + 1, signed=True) for key in keys)
    return blake2b(before.encode() + content, digest_size=8).hexdigest()


def page_names(fed: PrefixFeed | Sequence[int], page_size: int = PAGE) -> list[str]:
    """Names of the pages that a sequence with this prompt can reuse. The last token is always computed."""
    keys = feed_keys(fed)
    names, name = [], ""
    for start in range(0, len(keys) - page_size, page_size):
        name = page_name(name, keys[start : start + page_size])
        names.append(name)
    return names


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading keys are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
