"""Assay's own text to measure on, where the user gives none: plain English with a few names and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.text import Tokenizer

PROMPT = "The capital of France is"  # the default prompt
TEXT = """\
The lighthouse keeper wrote a line in his book every evening: the hour at which the lamp was lit, the direction of the
wind, and the ships that passed. On the ninth of March 1887 he noted three, two of them under sail. The third was a
steamer with a broken mast, moving slowly towards the harbour, and he watched it until the fog closed in. Nobody in the
village could say later where it had gone. Some believed that it had turned back to the open sea; others that it lay on
the sandbank until the spring tide lifted it off again.

A matrix times a vector is a list of sums. Each sum takes one row of the matrix, multiplies it number by number with the
vector, and adds up the products. If the numbers are rounded, the order in which they are added changes the last digits
of the result, but not the first ones. When the first ones differ, the cause is not rounding.

"Have you ever seen snow in July?" asked the boy. "Once," said his grandmother, "in the mountains, when I was as old as
you are now. We had gone up with the goats, and in the morning the grass was white. By noon it was green again, and my
brother never believed me, because he had slept through it."
"""


def sample_ids(tokenizer: Tokenizer, n_vocab: int) -> list[int]:
    """The ids of the text; for a file without a vocabulary, random ids with a fixed seed."""
    import numpy as np  # imported late: a help page prints the prompt above and must start fast

    from assay.text.vocab import NAMELESS

    if tokenizer.vocab.model == NAMELESS:
        return [int(i) for i in np.random.default_rng(20).integers(0, n_vocab, 300)]
    return tokenizer.encode(TEXT)
