"""`Description`: a mistake that the grammar of edits can state ("layer 2 runs twice"), and its edit of the graph.

It is reported under a row of the catalogue. `edit_grammar` lists the generators of descriptions; this module
has the type that they share. Touch it when a description must carry more, such as another length or sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from assay.graph import Node
from assay.verify.faults.fault import Context, Edit, Selector, Variant

Description = tuple[str, Variant]
OPERAND, INDEX, TOKEN, NORMS = "operand-other", "index-off", "token-other", "norm-name-swap"
SKIPPED, REPEATED = "layer-skipped", "layer-repeated"
LAYERS, UNWRITTEN, UNCLEARED, OVERWRITTEN = "layer-weights", "rows-unwritten", "buffer-not-cleared", "embd-overwritten"
SHORT, HIDDEN, AXES, EXCHANGED = "sum-short", "keys-hidden", "axes-untransposed", "steps-exchanged"
COUNTED, PLACED_NORM, OTHER_CACHE = "step-count", "norm-position", "cache-layer"
VISIBLE, INTEGERS, FREQUENCIES, STATISTIC = "keys-visible", "rounded-number", "rope-frequencies", "norm-statistic"
BLOCKS, RING, FUNCTION, UNKEPT = "block-field", "conv-ring", "ffn-act-family", "st-unkept"
CAPPED, CAPPED_SCORES, LISTED = "head-softcap", "attn-softcap", "moe-choice-order"
# Rows of many edits each.
COMPOSED = frozenset(
    {
        OPERAND, INDEX, TOKEN, LAYERS, UNWRITTEN, UNCLEARED, OVERWRITTEN, SHORT, HIDDEN, AXES, EXCHANGED, COUNTED,
        OTHER_CACHE, VISIBLE, INTEGERS, FREQUENCIES, STATISTIC, BLOCKS, RING, UNKEPT,
        LISTED,
    }
)  # fmt: skip
REACHING_BACK = frozenset({UNCLEARED, OTHER_CACHE})  # they read values of earlier layers, which few dumps have


def placed(
    label: str, edit: Edit, ops: Sequence[str], *roles: str, when: Callable[[Context, Node], bool] | None = None
) -> Variant:
    """The edit, with its description as the label, at the nodes of these operations and roles."""
    return Variant(label, edit, where=Selector(frozenset(ops), frozenset(roles), when=when))


def special_ids(c: Context) -> list[int]:
    """Ids that engines fall back to: 0, and those that the file names."""
    keys = ("bos", "eos", "unknown", "padding", "eot")
    named = [c.model.file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
    ids = [int(i) for i in named if isinstance(i, int | np.integer) and 0 <= int(i) < c.model.hparams.n_vocab]
    return list(dict.fromkeys((0, *ids)))


def features(c: Context, name: str) -> int:
    """The number of values of a token; 0 where the value has no row for each token."""
    shape = c.model.graph.shapes.get(name, ())
    return math.prod(int(d) for d in shape[1:]) if shape[:1] == ("T",) and not any(map(_named, shape[1:])) else 0


def _named(dim: int | str) -> bool:
    return isinstance(dim, str)
