"""Counts with the right plural."""

from __future__ import annotations


def counted(n: int, word: str) -> str:
    """1 node, 2 nodes."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"
