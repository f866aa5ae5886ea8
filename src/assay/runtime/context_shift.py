"""Context shift: an answer goes on when its context is full, without its oldest tokens.

When the context holds `n_ctx` tokens and another was drawn, the first `keep` tokens stay, and the oldest of the others
are dropped: `discard` of them, or half. The counts are llama-server's. The keys and values are not: llama.cpp rotates
old keys to their new positions, although their rows were computed with the dropped tokens in view. Here the tokens that
stay are computed again at their new positions. Every further logit is therefore, to the bit, that of a new request
with these tokens as its prompt. The cost is the prompt of that request, less the pages of the first `keep` tokens,
which are in the prefix cache. With the default it is one prompt token for each token generated after the first shift.

Random numbers go on with the number of the token in the whole answer. Penalties see the tokens that stay.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN = 4  # positions at the end of a context that are never kept, as in llama-server


@dataclass(frozen=True)
class ContextShift:
    """Tokens that stay when a context is full."""

    keep: int = 0  # first tokens that stay; -1: the whole prompt
    discard: int = 0  # tokens dropped at once; 0: half of those that may be dropped
    bos: bool = False  # the prompt begins with BOS, which stays too

    def dropped(self, n_prompt: int, n_ctx: int) -> tuple[int, int]:
        """The first and the end of the tokens that a full context of n_ctx drops."""
        asked = n_prompt if self.keep < 0 else self.keep + self.bos
        keep = max(min(asked, n_ctx - MARGIN), 0)
        left = n_ctx - keep
        return keep, keep + max(min(self.discard or left // 2, left), 1)
