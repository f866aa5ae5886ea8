"""Pair merging, the one algorithm behind both tokenizers.

Start from single characters. Join the adjacent pair with the lowest rank, the leftmost of equals, and repeat until no
pair has a rank. Byte-level BPE ranks a pair by its position in the list of merges. SentencePiece-style vocabularies
rank a pair by the score of the token it makes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping

_NO_RANK = 1 << 62
_SHORT = 96  # parts; below this, scanning is faster than a queue


def merge(parts: list[str], ranks: Mapping[str, int], joint: str) -> list[str]:
    """Merge adjacent `parts`; the pair (a, b) is looked up as `a + joint + b`."""
    if len(parts) > _SHORT:
        return _merge_long(parts, ranks, joint)
    rank = ranks.get
    pairs = [rank(f"{a}{joint}{b}", _NO_RANK) for a, b in itertools.pairwise(parts)]
    while pairs:
        best = min(pairs)
        if best == _NO_RANK:
            break
        i = pairs.index(best)
        parts[i] += parts.pop(i + 1)
        del pairs[i]
        if i < len(pairs):
            pairs[i] = rank(f"{parts[i]}{joint}{parts[i + 1]}", _NO_RANK)
        if i:
            pairs[i - 1] = rank(f"{parts[i - 1]}{joint}{parts[i]}", _NO_RANK)
    return parts


def _merge_long(parts: list[str], ranks: Mapping[str, int], joint: str) -> list[str]:
    """`merge` in O(n log n): a priority queue of pairs over a linked list; stale pairs are skipped."""
    n = len(parts)
    before, after = list(range(-1, n - 1)), [*range(1, n), -1]
    queue: list[tuple[int, int, int, int]] = []  # rank, left, right, length of both

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0:
            rank = ranks.get(f"{parts[left]}{joint}{parts[right]}")
            if rank is not None:
                heapq.heappush(queue, (rank, left, right, len(parts[left]) + len(parts[right])))

    for i in range(n - 1):
        offer(i, i + 1)
    while queue:
        _, left, right, length = heapq.heappop(queue)
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length:
            continue
        parts[left] += parts[right]
        parts[right] = ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part]
